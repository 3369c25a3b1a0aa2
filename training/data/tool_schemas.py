"""Generated function schemas, values for their parameters, and the user's wording of a call.

Owns the vocabulary of the tool tasks: verbs, topics, kinds of parameters, fields of results. A request names the
function by words (a verb and a noun, or fixed synonyms of them) and states every argument literally, so the call is a
function of the prompt. Knows nothing of messages, thinking or turns.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from training.data.vocabulary import CITIES, NAMES, WORDS

T = TypeVar("T")
Draw = Callable[[random.Random], Any]

_FOREIGN = "café naïve Übung mañana Straße été señor 東京 你好 Жук άλφα".split()
_LINKS = "for with and of the to in is are we you my our at by no not".split()
_PHRASE_WORDS = (*WORDS, *_LINKS, *_LINKS, *_LINKS, "open-air", "re-use", "24/7")
_FIRST = (*NAMES, *"Jürgen René Sofía Zoë Søren Łukasz 王伟".split())
_LAST = tuple(
    """Meyer Smith Brown Rossi Novak Garcia Silva Tanaka Weber Olsen Dubois Ivanov Lopez Khan Moore Fischer Costa Berg
    Young Hill Stone Park Reed Grant Cole Müller Núñez O'Neill D'Amico Ødegård""".split()
)
_TOWNS = (*CITIES, "New York", "Los Angeles", "San Jose", "Cape Town", "Hong Kong", "St. Gallen")
_CITIES = (*_TOWNS, "Zürich", "São Paulo", "Málaga", "Kraków", "Tromsø", "北京")
_MONTHS = "January February March April May June July August September October November December".split()
_SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeio")


def below(rng: random.Random, count: int) -> int:
    """A number from 0 to count - 1; much cheaper than randrange."""
    return int(rng.random() * count)


def pick(rng: random.Random, options: Sequence[T]) -> T:
    return options[int(rng.random() * len(options))]


def _one_of(options: str) -> Draw:
    listed = options.split("|")
    return lambda rng: pick(rng, listed)


def _int(low: int, high: int) -> Draw:
    return lambda rng: low + below(rng, high - low + 1)


def _decimal(low: int, high: int) -> Draw:
    """A number with up to two decimals; one in four is whole."""

    def draw(rng: random.Random) -> int | float:
        whole, form = low + below(rng, high - low), below(rng, 4)
        if form == 0:
            return whole
        part = (below(rng, 9) + 1) / 10 if form < 3 else (below(rng, 99) + 1) / 100
        return round(whole + part, 2)

    return draw


def _made_up(rng: random.Random) -> str:
    return "".join([pick(rng, _SYLLABLES) for _ in range(2 + below(rng, 2))])


def _city(rng: random.Random) -> str:
    return pick(rng, _CITIES) if rng.random() < 0.7 else _made_up(rng).capitalize()


def _country(rng: random.Random) -> str:
    return (
        pick(rng, ("France", "Spain", "Peru", "Chad", "India", "Japan"))
        if rng.random() < 0.5
        else (f"{_made_up(rng).capitalize()}land")
    )


def _first_name(rng: random.Random) -> str:
    return pick(rng, _FIRST) if rng.random() < 0.7 else _made_up(rng).capitalize()


def _person(rng: random.Random) -> str:
    first = _first_name(rng)
    if rng.random() < 0.4:
        return first
    return f"{first} {pick(rng, _LAST) if rng.random() < 0.7 else _made_up(rng).capitalize()}"


def _phrase(rng: random.Random) -> str:
    """Free text of 1 to 6 words, now and then with punctuation or quotes of its own."""
    words = [pick(rng, _PHRASE_WORDS) for _ in range(1 + below(rng, 6))]
    if rng.random() < 0.5:
        words[0] = words[0].capitalize()
    form = below(rng, 16)
    if form == 0 and len(words) > 1:
        words[0] += ","
    elif form == 1:
        words[-1] += pick(rng, ("!", "?", "..."))
    elif form == 2:
        words[-1] = f'"{words[-1]}"'
    elif form == 3:
        words[0] = pick(rng, NAMES) + "'s"
    elif form == 4:
        words.append(str(below(rng, 100)))
    elif form == 5:
        words.append(f"({pick(rng, WORDS)})")
    elif form == 6:
        words.append(pick(rng, _FOREIGN))
    return " ".join(words)


def _email(rng: random.Random) -> str:
    name = _made_up(rng) if rng.random() < 0.6 else pick(rng, NAMES).lower()
    if rng.random() < 0.3:
        name += pick(rng, (".", "_", "-")) + _made_up(rng)
    return f"{name}@{_made_up(rng)}.{pick(rng, ('com', 'org', 'net', 'de', 'io'))}"


def _date(rng: random.Random) -> str:
    year, month, day = 2024 + below(rng, 6), below(rng, 12), 1 + below(rng, 28)
    form = below(rng, 4)
    if form == 0:
        return f"{day} {_MONTHS[month]} {year}"
    return f"{_MONTHS[month]} {day}" if form == 1 else f"{year}-{month + 1:02}-{day:02}"


def _time(rng: random.Random) -> str:
    return f"{below(rng, 24):02}:{5 * below(rng, 12):02}" if rng.random() < 0.8 else f"{1 + below(rng, 11)} pm"


def _code(rng: random.Random) -> str:
    letters = "".join([chr(65 + below(rng, 26)) for _ in range(1 + below(rng, 3))])
    return f"{letters}{pick(rng, ('', '-', '-'))}{below(rng, 9000) + 100}"


def _file(rng: random.Random) -> str:
    folder = f"/{_made_up(rng)}/" if rng.random() < 0.4 else ""
    stem = pick(rng, WORDS) if rng.random() < 0.5 else _made_up(rng)
    return f"{folder}{stem}{pick(rng, ('', '_1', '_2', '-old'))}.{pick(rng, ('txt', 'pdf', 'csv', 'png', 'docx'))}"


_DRAWS: dict[str, Draw] = {
    "city": _city,
    "country": _country,
    "first_name": _first_name,
    "person": _person,
    "phrase": _phrase,
    "plain_phrase": lambda rng: _phrase(rng).replace('"', ""),
    "email": _email,
    "date": _date,
    "time": _time,
    "code": _code,
    "file": _file,
    "folder": lambda rng: f"/{_made_up(rng)}",
    "url": lambda rng: f"https://{_made_up(rng)}.{pick(rng, ('com', 'org'))}/{_made_up(rng)}",
    "phone": lambda rng: f"+{1 + below(rng, 98)} {100 + below(rng, 900)} {1000 + below(rng, 9000)}",
    "street": lambda rng: f"{_made_up(rng).capitalize()} {pick(rng, ('Street', 'Road', 'Lane'))} {1 + below(rng, 99)}",
    "zip": lambda rng: f"{below(rng, 100_000):05}",
    "version": lambda rng: f"{below(rng, 10)}.{below(rng, 10)}.{below(rng, 20)}",
    "word": lambda rng: pick(rng, WORDS),
    "yes_no": lambda rng: rng.random() < 0.5,
    "room": _one_of("kitchen|bedroom|bathroom|hall|garage|office|attic|cellar"),
    "topping": _one_of("cheese|ham|onion|olives|basil|corn|tuna|egg|mushrooms|pepper"),
    "weekday": _one_of("Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"),
    "condition": _one_of("sunny|cloudy|rainy|windy|stormy|foggy|snowy"),
    "zone": _one_of("UTC|CET|EST|PST|GMT|JST"),
    "colour_name": _one_of("North|South|Green|Blue|Oak|Lake|Sun"),
    "department": _one_of("sales|finance|legal|support|design"),
    "thing": _one_of(
        "red lamp|blue chair|green sofa|desk|mirror|carpet|tea pot|coffee mug|soup bowl|bread knife|rain coat|wool hat|"
        "phone case|usb cable|keyboard|notebook|pencil|paper bag|bike pump|tent|rope|ladder|hammer|paint|brush|candle"
    ),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of parameter: its possible names, how a user says it, and its values."""

    type: str  # string, free (a string said in quotes), integer, number, boolean, enum, strings, integers, object
    names: tuple[str, ...]
    phrases: tuple[str, ...]  # {v} is the value
    draw: Draw  # one value; one element of an array
    parts: tuple[str, ...]  # enum: all literals; object: kinds of its fields


def _drawer(words: list[str]) -> Draw:
    """From a type and the name of a drawer or the bounds of a number."""
    if len(words) == 3:
        return (_decimal if words[0] == "number" else _int)(int(words[1]), int(words[2]))
    return _DRAWS[words[1]]


def _kinds_of(rows: str) -> Iterator[tuple[str, Kind]]:
    for row in rows.strip().splitlines():
        key, spec, names, phrases = [*row.split("; "), ""][:4]
        type_, *parts = spec.split()
        compound = type_ in ("enum", "object")
        draw = _DRAWS["phrase"] if compound or not parts else _drawer([type_, *parts])
        listed = tuple(phrases.split("|")) if phrases else ()
        yield key, Kind(type_, tuple(names.split("|")), listed, draw, tuple(parts) if compound else ())


# Key; type with its drawer, bounds, literals or fields; names; phrases. The names of boolean kinds follow "with".
KINDS: dict[str, Kind] = dict(
    _kinds_of("""
city; string city; city|location|town|place; in {v}|near {v}
origin; string city; origin|departure city|start point; from {v}|starting in {v}
destination; string city; destination|arrival city|target; to {v}|going to {v}
person; string person; name|person|full name; for {v}|in the name of {v}
recipient; string person; recipient|receiver|addressee; to {v}|addressed to {v}
owner; string person; owner|assignee|responsible; owned by {v}|assigned to {v}
email; string email; email|email address|mail; to {v}|using the address {v}
title; free; title|subject|headline; titled {v}|called {v}
label; free; label|caption|description; labelled {v}
new_name; free; new name|new title; to {v}|giving it the name {v}
text; free; text|body|content; saying {v}|that says {v}
note; free; note|comment|remark; adding {v}|and mention {v}
query; free; query|keyword|search text; about {v}|matching {v}
date; string date; date|day; on {v}
deadline; string date; deadline|due date|end date; by {v}|until {v}
time; string time; time|clock time; at {v}
code; string code; code|reference|id; with number {v}
phone; string phone; phone|phone number|mobile; with the phone {v}
url; string url; url|link|web address; from {v}
file; string file; file|path|file name; from {v}
folder; string folder; folder|target folder; into {v}
item; string thing; item|product|article
country; string country; country|nation|state; in {v}|within {v}
street; string street; street
zip; string zip; zip code|postal code
room; string room; room|area; in the {v}
guests; integer 1 20; guests|people|party size; for {v} people|for {v} persons
days; integer 2 30; days|number of days; for {v} days
minutes; integer 2 180; minutes|duration; for {v} minutes|lasting {v} minutes
quantity; integer 1 500; quantity|number of pieces|count
limit; integer 2 100; limit|max results; with at most {v} results
year; integer 1950 2029; year; from the year {v}
floor; integer -3 40; floor|level; on floor {v}
percent; integer 1 100; percent|intensity; at {v} percent
stars; integer 2 10; stars|rating|score; with {v} stars
priority_no; integer 1 99; rank|order number
price; number 5 900; price|max price|budget; for {v} euros|for at most {v}
amount; number 1 3000; amount|sum|value; of {v}|over {v}
degrees; number -20 40; temperature|degrees; at {v} degrees
weight; number 1 60; weight|weight kg; weighing {v} kg
distance; number 1 80; distance|radius; within {v} km
latitude; number -90 90; latitude
longitude; number -180 180; longitude
width; integer 1 900; width
height; integer 1 900; height
rate; number 0 12; rate|interest; at a rate of {v}
offset; integer -50 50; offset|change
unit; enum celsius fahrenheit kelvin; unit|units; in {v}
metric; enum metric imperial nautical; system|measure; in {v} units
size; enum small medium large tiny huge; size|format; in size {v}
color; enum red blue green white black yellow pink; color|colour; in {v}
priority; enum low normal high critical; priority|importance|urgency; with {v} priority
category; enum work home travel health money sport; category|group|topic; in the category {v}
mode; enum eco fast silent turbo auto night; mode|program; in {v} mode
class; enum economy business first premium; class|cabin; in {v} class
currency; enum EUR USD GBP JPY CHF INR; currency|money unit; in {v}
to_currency; enum SEK AUD CAD NOK BRL ZAR; to currency|target currency; to {v}|into {v}
status; enum open closed pending done failed; status|state; with status {v}
frequency; enum hour day week month year; frequency|interval; every {v}
language; enum English French German Spanish Italian Hindi; language|target language; in {v}|into {v}
doc_type; enum pdf csv xml json html; file type|export type; as {v}
genre; enum jazz rock pop drama comedy crime; genre|style; of the genre {v}
payment; enum card cash transfer voucher; payment|payment method; paid by {v}
tags; strings word; tags|labels|keywords; tagged {v}
people; strings first_name; attendees|participants|members; with {v}|together with {v}
emails; strings email; emails|addresses|cc; with copies to {v}
items; strings thing; items|products|things
toppings; strings topping; toppings|extras|ingredients; topped with {v}
weekdays; strings weekday; weekdays|days of week; every {v}
files; strings file; files|attachments; attaching {v}
ids; integers 1 999; ids|numbers; with the numbers {v}
pages; integers 1 99; pages|page numbers; with pages {v}
seats; integers 1 60; seats|seat numbers; on seats {v}
address; object street city zip; address|place details
customer; object person email phone; customer|client data
coordinates; object latitude longitude; coordinates|position
dimensions; object width height; dimensions|measurements
options; object color size quantity; options|settings
period; object date deadline; period|date range
filter; object category price stars; filter|conditions
breakfast; boolean; breakfast|meals
insurance; boolean; insurance|full cover
notify; boolean; notification|notifications
repeat; boolean; repetition|repeat
gift; boolean; gift wrap|wrapping
tracking; boolean; tracking|live tracking
encrypt; boolean; encryption|protection
sound; boolean; sound|audio
subtitles; boolean; subtitles|captions
receipt; boolean; receipt|proof
details; boolean; details|full details
parking; boolean; parking|garage space
luggage; boolean; luggage|baggage
backup; boolean; backup|safety copy
""")
)
_COMMON = ("note", "tags", "priority", "notify", "code", "details", "owner", "priority_no", "offset")


def _taken_names(kind: Kind) -> set[str]:
    """Names that no other parameter of the same function may have."""
    fields = kind.parts if kind.type == "object" else ()
    return set(kind.names).union(*(KINDS[part].names for part in fields))


_TAKEN_NAMES = {key: _taken_names(kind) for key, kind in KINDS.items()}
_GENERIC = ("with {n} {v}", "with the {n} {v}", "using {v} as the {n}", "with {v} as {n}")
_SENTENCES = ("The {n} {is} {v}.", "Use {v} as the {n}.", "{N}: {v}.", "Set the {n} to {v}.", "For the {n} take {v}.")
_YES = ("with {n}", "with {n} on", "with {n} set to true", "including {n}")
_NO = ("without {n}", "with {n} off", "with {n} set to false", "with no {n}")
_YES_SENTENCES = ("{N}: yes.", "I want {n}.", "Set {n} to true.", "Turn {n} on.")
_NO_SENTENCES = ("{N}: no.", "I want no {n}.", "Set {n} to false.", "Turn {n} off.")


class Verb(NamedTuple):
    words: tuple[str, ...]  # the user's words; the first is also the function's
    family: str  # verbs of one family mean much the same thing of the same noun
    article: str  # a, the, or s for the plural


def _verbs(family: str, article: str, rows: str) -> dict[str, Verb]:
    return {row.split("|")[0]: Verb(tuple(row.split("|")), family, article) for row in rows.split(", ")}


VERBS: dict[str, Verb] = {
    **_verbs("query", "the", "get|fetch, check|look at, read, track|follow, measure, calculate|compute"),
    **_verbs("query", "s", "list|show all, search|look for|find"),
    **_verbs("make", "a", "create|make, add, write, schedule|plan, set, book|reserve, order, buy|purchase, rent|hire"),
    **_verbs("end", "the", "delete|remove, cancel|call off"),
    **_verbs("change", "the", "update|change, rename, move, reset"),
    **_verbs("send", "a", "send, upload"),
    **_verbs("send", "the", "share, export"),
    **_verbs("start", "the", "start|begin, play, turn on|switch on, open, unlock"),
    **_verbs("stop", "the", "stop|halt, pause, turn off|switch off, close|shut, lock"),
    **_verbs("money", "the", "pay|settle, refund, sell"),
    **_verbs("judge", "the", "approve|accept, reject|decline, rate"),
    **_verbs(
        "own", "the", "assign, convert, translate, print, copy, download, install, repair|fix, clean, water, feed"
    ),
    **_verbs("own", "the", "test"),
}


class Topic(NamedTuple):
    noun: str
    synonyms: tuple[str, ...]
    mass: bool  # neither plural nor "a"
    verbs: tuple[str, ...]
    kinds: tuple[str, ...]
    fields: tuple[str, ...]  # of results


def _topic(row: str) -> Topic:
    names, verbs, kinds, fields = row.split("; ")
    noun, *others = names.replace("*", "").split("|")
    return Topic(
        noun, tuple(others), "*" in names, tuple(verbs.split(", ")), tuple(kinds.split()), tuple(fields.split(", "))
    )


# Noun (* marks a mass noun) and synonyms; verbs; kinds of parameters; fields of results.
_TOPICS = """
weather*|forecast; get; city date days unit details coordinates; temperature, humidity, wind speed, condition
current time*|local time; get; city country date; hour, time zone
stock price*|share price; get, track; code date to_currency details; price, change, volume
population*|number of inhabitants; get; city country year; inhabitants, change, rank
account balance*|bank balance; get; person code currency date; amount, last change, overdrawn
air quality*|air pollution; get; city date details; index, dust level, rating
traffic*|road traffic; get; city time distance details; delay, average speed, open
flight; search, book, cancel, track; origin destination date class guests price luggage seats; \
price, duration, gate, delayed
train ticket; search, buy, cancel; origin destination date time class guests; price, platform, seat, departure time
hotel|hotel room; search, book, cancel, rate; city date days guests breakfast price parking filter; \
price, rating, phone number, available
table|restaurant table; book, cancel, move; city person guests date time phone note; \
table number, confirmation code, confirmed
taxi|cab; order, cancel, track; origin destination time guests luggage address; price, arrival time, driver
car|vehicle; rent, lock, unlock, search; city days class insurance color price period; \
price, fuel level, plate number, available
bike|bicycle; rent, lock, repair; city minutes size insurance; price, battery level, plate number
alarm|wake-up call; set, delete, list; time label weekdays repeat sound; alarm number, next time, active
timer|countdown; start, stop, pause; minutes label sound repeat; remaining minutes, timer number, active
reminder; create, delete, list, update; title date time priority repeat frequency; reminder number, next date, active
meeting|appointment; schedule, cancel, move, list; title date time people minutes room; \
meeting code, room name, start time, confirmed
calendar event|diary entry; create, delete, update, search; title date time people city notify period; \
event code, start time, confirmed
email|e-mail; send, read, delete, search; email title text emails files priority; message code, sender, sent time
text message|SMS; send, read, delete; recipient phone text time; message code, delivery time, delivered
letter; write, print, send; recipient text address language; letter number, price, delivery date
note|memo; create, delete, update, search; title text tags color category; note number, word count, last change
task|to-do; create, assign, delete, list; title deadline priority owner tags; task number, owner, due date, finished
file|document; open, delete, rename, copy, share, upload; file folder new_name emails encrypt; \
file size, owner, last change
folder|directory; create, delete, rename, share; folder new_name people encrypt; folder size, file count, owner
photo|picture; upload, delete, share, print; file title size tags dimensions; width, height, file size
video clip|clip; play, pause, share, download; title url minutes subtitles sound; length, view count, available
song|tune; play, pause, rate, buy; title person genre percent stars; length, artist, year
playlist; create, share, delete, play; title genre items people repeat; song count, length, owner
film|movie; search, rate, rent; title genre year stars subtitles language; rating, length, director
concert ticket|show ticket; buy, cancel, sell; title city date seats quantity price; price, seat, hall
podcast; play, pause, download; title url minutes language; length, episode number, host
light|lamp; turn on, turn off, test; room percent color minutes floor; brightness, power, active
heating*|heater; turn on, turn off, set; room degrees mode time; temperature, power, active
front door|entrance; open, close, lock, unlock; code time notify; battery level, last change, locked
window; open, close, clean; room percent time floor; opening width, last change, locked
oven|stove; turn on, turn off, clean; degrees minutes mode; temperature, remaining minutes, active
washing machine|washer; start, stop, repair; mode degrees minutes; remaining minutes, temperature, active
robot vacuum|vacuum cleaner; start, stop, pause; room mode minutes floor; battery level, cleaned area, active
television*|TV; turn on, turn off, set; room percent minutes sound; channel, volume, active
camera; turn on, turn off, test; room time notify sound; battery level, image count, active
currency*|money; convert; amount currency to_currency date; result, rate, fee
sentence|phrase; translate, read, rate; text language sound; translation, word count, confidence
unit of measure|measuring unit; convert; amount metric details; result, factor
invoice|bill; create, send, pay, delete, list; customer amount currency deadline items code; \
total, invoice number, due date, paid
payment|money transfer; send, approve, reject, refund; amount currency recipient note code receipt; \
fee, payment code, arrival date, confirmed
bank account; open, close, check; person currency amount address; balance, account number, active
loan|credit; calculate, approve, reject; amount rate deadline currency; monthly payment, total, end date
stock order|stock trade; create, cancel, check; code quantity price; total, fee, confirmed
exchange rate; get, track; currency to_currency date; rate, change, last change
travel budget|travel fund; create, update, check; amount currency title period; total, remaining amount, end date
tax*; calculate, pay; amount year rate; total, rate, due date
pizza; order, rate, cancel; size toppings quantity address time; price, arrival time, order number
coffee; order, cancel; size quantity time room; price, waiting minutes, order number
recipe; search, create, share, rate; title query toppings minutes guests; cooking minutes, calories, rating
shopping list|grocery list; create, share, update, print; items people title deadline; item count, total, last change
product|store item; search, update, delete, rate; query price color options quantity filter; \
price, stock count, rating, available
parcel|package; send, track, cancel; recipient address weight tracking code dimensions; \
price, arrival date, current place, delivered
coupon|voucher; create, delete, send; code percent deadline email; coupon code, discount, end date, active
customer record|client record; create, update, delete, search; person email phone address; \
customer number, city, last change, active
employee|staff member; add, delete, search, rate; person email title amount floor; \
employee number, department, phone number
contact|address book entry; add, delete, update, search; person phone email address; phone number, city, last change
password; reset, update, test; email code encrypt; strength, last change, end date
server|virtual machine; start, stop, reset, list; code size city; load, uptime hours, address, active
database; create, delete, export, test; code size encrypt backup; row count, database size, last change
report; create, export, print, share; title date doc_type pages emails period; report number, page count, file size
support ticket|support case; create, close, assign, list; title text priority owner status; \
ticket number, owner, waiting minutes, solved
survey|questionnaire; create, close, share; title deadline emails quantity; \
answer count, survey code, end date, active
course|training course; book, cancel, search, rate; title date language guests price; price, seat count, teacher, full
doctor visit|doctor appointment; book, cancel, move; person date time phone note; room name, waiting minutes, doctor
prescription|medicine recipe; order, cancel, check; person code quantity; price, pickup time, ready
workout|exercise session; start, stop, schedule; minutes mode date distance; calories, heart rate, distance
heart rate*|pulse; measure, track; minutes person; average, highest value, lowest value
plant; water, buy, move; room amount color quantity; water level, height, price
dog|puppy; feed, clean; weight time room; weight, last meal, hungry
parking spot|parking space; book, cancel, search; city time minutes distance floor; price, spot number, available
charging station|charging point; search, book, test; city distance percent coordinates; \
price, power, distance, available
route|travel route; calculate, share, search; origin destination mode distance; distance, duration, delay
map; open, download, print; city size coordinates url; scale, file size, last change
news*|headlines; get; category language limit query; title, source, sent time
newsletter; send, cancel, write; title text emails date; reader count, sent time, open rate
poll|vote; create, close, share; title deadline items notify; answer count, winner, active
web domain|domain name; buy, sell, check; url year amount; price, owner, end date, available
mobile app|application; install, delete, update, rate; title url backup notify; version, file size, rating
blog post; write, delete, share, search; title text tags category date; view count, author, sent time
concert hall|music hall; rent, search, clean; city date guests price seats; price, seat count, phone number, available
meeting room|conference room; book, cancel, search, clean; guests date time floor minutes; \
seat count, floor number, available
gym membership; buy, cancel, check; person days price insurance; price, end date, member number, active
gift card; buy, send, check; amount currency recipient text gift; balance, card number, end date
"""
TOPICS: tuple[Topic, ...] = tuple(_topic(row) for row in _TOPICS.strip().splitlines())
_BY_VERB: dict[str, list[Topic]] = {verb: [topic for topic in TOPICS if verb in topic.verbs] for verb in VERBS}


def _fields_of(rows: str) -> Iterator[tuple[str, Draw]]:
    for row in rows.strip().splitlines():
        spec, names = row.split("; ")
        for name in names.split("|"):
            yield name, _drawer(spec.split())


# Type and drawer or bounds; the fields that hold such a value.
FIELDS: dict[str, Draw] = dict(
    _fields_of("""
number -20 45; temperature|change|average|highest value|lowest value|factor|result|rate|load
integer 0 100; humidity|index|dust level|battery level|fuel level|brightness|strength|confidence|discount|water level
integer 0 100; open rate|volume|rank
integer 2 600; delay|duration|remaining minutes|waiting minutes|cooking minutes|calories|heart rate|uptime hours
integer 2 600; word count|view count|song count|page count|file count|item count|image count|answer count|seat count
integer 2 600; reader count|stock count|row count|length|width|height|opening width|power|cleaned area|channel|scale
integer 2 600; average speed|wind speed|episode number|platform|floor number
number 1 900; price|total|fee|balance|monthly payment|remaining amount|weight|distance|rating|amount
number 1 900; file size|folder size|database size
string code; gate|seat|plate number|confirmation code|meeting code|event code|message code|invoice number|payment code
string code; account number|order number|coupon code|customer number|employee number|report number|ticket number
string code; survey code|spot number|member number|card number|alarm number|timer number|reminder number|note number
string code; task number|letter number|table number
string date; next date|delivery date|arrival date|due date|end date|last change
string time; departure time|arrival time|start time|next time|sent time|delivery time|pickup time|last meal|hour
string person; driver|sender|owner|artist|director|host|teacher|doctor|author|winner
string city; current place|city
string phone; phone number
string url; address
integer 1960 2029; year
integer 100 99999; inhabitants
string plain_phrase; title|translation
string condition; condition
string zone; time zone
string colour_name; room name|hall|source
string department; department
string version; version
boolean yes_no; open|delayed|available|confirmed|active|delivered|finished|locked|paid|solved|full|ready|hungry
boolean yes_no; overdrawn
""")
)
YES_NO = frozenset(name for name, draw in FIELDS.items() if draw is _DRAWS["yes_no"])


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str  # as declared
    label: str  # in words
    kind: Kind
    schema: dict[str, Any]
    required: bool
    fields: tuple[Parameter, ...] = ()  # of an object

    def draw(self, rng: random.Random) -> Any:
        kind = self.kind
        if kind.type == "boolean":
            return rng.random() < 0.5
        if kind.type == "enum":
            return pick(rng, self.schema["enum"])
        if kind.type == "object":
            return {f.name: f.draw(rng) for f in self.fields if f.required or rng.random() < 0.5}
        if kind.type in ("strings", "integers"):
            values = [kind.draw(rng) for _ in range(1 + below(rng, 4))]
            return list(dict.fromkeys(values))
        return kind.draw(rng)

    def say(self, rng: random.Random, value: Any) -> str:
        """The value as the user writes it."""
        kind = self.kind.type
        if kind == "free":
            return quoted(rng, value)
        if kind == "boolean":
            return "yes" if value else "no"
        if kind in ("strings", "integers"):
            return joined([str(v) for v in value])
        if kind == "object":
            return joined([f"{f.label} {f.say(rng, value[f.name])}" for f in self.fields if f.name in value])
        return value if isinstance(value, str) else json.dumps(value)

    def phrase(self, rng: random.Random, value: Any) -> str:
        """The value as a part of the sentence that asks for the call."""
        if self.kind.type == "boolean":
            return pick(rng, _YES if value else _NO).format(n=self.label)
        own = self.kind.phrases
        form = pick(rng, own) if own and rng.random() < 0.6 else pick(rng, _GENERIC)
        return form.format(n=self.label, v=self.say(rng, value))

    def sentence(self, rng: random.Random, value: Any) -> str:
        """The value as a sentence of its own."""
        if self.kind.type == "boolean":
            form = pick(rng, _YES_SENTENCES if value else _NO_SENTENCES)
            return form.format(n=self.label, N=capital(self.label))
        verb = "are" if self.kind.type in ("strings", "integers") else "is"
        return pick(rng, _SENTENCES).format(n=self.label, N=capital(self.label), v=self.say(rng, value), **{"is": verb})


def joined(parts: list[str]) -> str:
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def quoted(rng: random.Random, text: str) -> str:
    """In quotes that do not occur in the text itself."""
    if '"' in text:
        return f"“{text}”" if "'" in text else f"'{text}'"
    form = below(rng, 8)
    if form == 0 and "'" not in text:
        return f"'{text}'"
    return f"“{text}”" if form == 1 else f'"{text}"'


def plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if " of " in noun:
        head, rest = noun.split(" of ", 1)
        return f"{plural(head)} of {rest}"
    return noun + ("es" if noun.endswith(("s", "x", "sh", "ch")) else "s")


def spelled(words: str, style: str) -> str:
    """Words as an identifier: snake, camel or dashed."""
    parts = words.lower().replace("-", " ").split()
    if style == "camel":
        return parts[0] + "".join([part.capitalize() for part in parts[1:]])
    return ("-" if style == "dashed" else "_").join(parts)


@dataclass(frozen=True, slots=True)
class Function:
    verb: str
    topic: Topic
    name: str
    description: str
    parameters: tuple[Parameter, ...]

    @property
    def tool(self) -> dict[str, Any]:
        """The declaration as in OpenAI's chat API."""
        schema: dict[str, Any] = {"type": "object", "properties": {p.name: p.schema for p in self.parameters}}
        if required := [p.name for p in self.parameters if p.required]:
            schema["required"] = required
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Arguments in the order of the schema, no two of the same value."""
        while True:
            arguments = {p.name: p.draw(rng) for p in self.parameters if p.required or rng.random() < 0.5}
            values = [json.dumps(v) for v in arguments.values() if not isinstance(v, bool)]
            if len(set(values)) == len(values):
                return arguments


def _parameter(rng: random.Random, kind: Kind, style: str, required: bool, described: str | None) -> Parameter:
    label = pick(rng, kind.names)
    schema: dict[str, Any] = {"type": kind.type}
    fields: tuple[Parameter, ...] = ()
    if kind.type in ("free", "enum"):
        schema["type"] = "string"
    elif kind.type in ("strings", "integers"):
        schema["type"] = "array"
    if described is not None:
        schema["description"] = f"{capital(label)}{described}"
    if kind.type == "enum":
        schema["enum"] = rng.sample(kind.parts, 2 + below(rng, min(4, len(kind.parts)) - 1))
    elif kind.type in ("strings", "integers"):
        schema["items"] = {"type": kind.type[:-1]}
    elif kind.type == "object":
        parts = kind.parts if rng.random() < 0.6 else kind.parts[:2]
        must = rng.random() < 0.7
        fields = tuple([_parameter(rng, KINDS[p], style, must or i == 0, None) for i, p in enumerate(parts)])
        schema["properties"] = {f.name: f.schema for f in fields}
        schema["required"] = [f.name for f in fields if f.required]
    return Parameter(spelled(label, style), label, kind, schema, required, fields)


def _kinds(rng: random.Random, topic: Topic) -> list[str]:
    """Kinds for one function."""
    pool = list(topic.kinds)
    if rng.random() < 0.2:
        pool.append(pick(rng, _COMMON))
    rng.shuffle(pool)
    return apart(pool, pick(rng, (0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4)))


def apart(pool: Sequence[str], wanted: int) -> list[str]:
    """The first kinds that share no name, as many as wanted if there are."""
    chosen: list[str] = []
    used: set[str] = set()
    for key in pool:
        if len(chosen) == wanted:
            break
        if used.isdisjoint(_TAKEN_NAMES[key]):
            chosen.append(key)
            used |= _TAKEN_NAMES[key]
    return chosen


def function(rng: random.Random, topic: Topic, verb: str, style: str, kinds: Sequence[str] | None = None) -> Function:
    """One generated schema; style is snake, camel, dashed or dotted. Kinds of its parameters are drawn if not given."""
    words = pick(rng, VERBS[verb].words) if rng.random() < 0.15 else verb
    noun = pick(rng, topic.synonyms) if topic.synonyms and rng.random() < 0.1 else topic.noun
    if VERBS[verb].article == "s" and not topic.mass:
        noun = plural(noun)
    if style == "dotted":
        name = f"{spelled(noun, 'snake')}.{spelled(words, 'snake')}"
    else:
        name = spelled(f"{words} {noun}", style)
    description = capital(action(rng, topic, verb).words) + "."
    style = "camel" if style == "camel" else "snake"
    described = pick(rng, (None, None, "", f" of the {topic.noun}"))
    chosen = _kinds(rng, topic) if kinds is None else kinds
    parameters = [_parameter(rng, KINDS[k], style, rng.random() < 0.65, described) for k in chosen]
    return Function(verb, topic, name, description, tuple(parameters))


class Action(NamedTuple):
    """What is to be done, in words of the fixed lists: "book a table"."""

    verb: str
    article: str  # with the blank behind it
    noun: str

    @property
    def words(self) -> str:
        return f"{self.verb} {self.article}{self.noun}"


def action(rng: random.Random, topic: Topic, verb: str) -> Action:
    words, _, article = VERBS[verb]
    said = words[0] if rng.random() < 0.6 else pick(rng, words)
    noun = pick(rng, topic.synonyms) if topic.synonyms and rng.random() < 0.25 else topic.noun
    if topic.mass:
        return Action(said, "the ", noun)
    if article == "s":
        said = "search for" if said == "search" else said
        return Action(said, "" if said == "show all" else pick(rng, ("", "the ", "all ")), plural(noun))
    if article == "a" and rng.random() < 0.8:
        return Action(said, "an " if noun[0] in "aeiouAEIOU" or noun == "SMS" else "a ", noun)
    return Action(said, "my " if rng.random() < 0.25 else "the ", noun)


def toolbox(rng: random.Random, count: int) -> list[Function]:
    """Declared functions, about half of them near misses of another one: same noun or same verb."""
    main = pick(rng, ("snake", "snake", "snake", "camel", "dashed", "dotted"))
    chosen: list[tuple[Topic, str]] = []
    while len(chosen) < count:
        near = rng.random() if chosen else 1.0
        topic, verb = pick(rng, chosen) if chosen else (TOPICS[0], "")
        if near < 0.3:
            verb = pick(rng, topic.verbs)
        elif near < 0.55:
            topic = pick(rng, _BY_VERB[verb])
        else:
            topic = pick(rng, TOPICS)
            verb = pick(rng, topic.verbs)
        if all(topic is not t or verb != v for t, v in chosen):
            chosen.append((topic, verb))
    rng.shuffle(chosen)
    styles = [main if rng.random() < 0.9 else pick(rng, ("snake", "camel", "dashed", "dotted")) for _ in chosen]
    return [function(rng, topic, verb, style) for (topic, verb), style in zip(chosen, styles, strict=True)]


def outside(rng: random.Random, declared: list[Function]) -> Function:
    """A function that is not declared, nor does a declared one do much the same; often a near miss."""
    while True:
        near, known = rng.random(), pick(rng, declared)
        topic = known.topic if near < 0.4 else pick(rng, _BY_VERB[known.verb]) if near < 0.65 else pick(rng, TOPICS)
        verb = known.verb if 0.4 <= near < 0.65 else pick(rng, topic.verbs)
        family = VERBS[verb].family
        if all(topic is not f.topic or family != VERBS[f.verb].family for f in declared):
            return function(rng, topic, verb, "snake")
