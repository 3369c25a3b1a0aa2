"""Generated function schemas, values for their parameters, and the user's wording of a call.

Owns the vocabulary of the tool tasks: verbs, topics, kinds of parameters, fields of results. A request names the function
by words (a verb and a noun, or fixed synonyms of them) and states every argument literally, so the call is a function of
the prompt. Knows nothing of messages, thinking or turns.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from training.data.vocabulary import CITIES, NAMES, WORDS

T = TypeVar("T")
Draw = Callable[[random.Random], Any]

_LAST = (
    "Meyer Smith Brown Rossi Novak Garcia Silva Kim Tanaka Weber Olsen Dubois Ivanov Lopez Khan Moore Fischer Costa Berg "
    "Young Hill Wood Stone Lake Field Müller Núñez O'Neill D'Amico Ødegård Park Reed Grant Cole"
).split()
_FIRST = (*NAMES, *"Jürgen René Sofía Zoë Søren Łukasz".split())
_TOWNS = (*CITIES, "New York", "Los Angeles", "San Jose", "Cape Town", "Hong Kong", "St. Gallen")
_CITIES = (*_TOWNS, "Zürich", "São Paulo", "Málaga", "Kraków", "Tromsø", "北京")
_LINKS = "for with and of the to in is are we you my our at by no not".split()
_WORDS = (*WORDS, *_LINKS, *_LINKS, *_LINKS, *"open-air café naïve Übung mañana".split())
_THINGS = (
    "red lamp|blue chair|green sofa|wooden table|desk|mirror|carpet|tea pot|coffee mug|soup bowl|bread knife|rain coat|wool "
    "hat|leather belt|phone case|usb cable|keyboard|notebook|pencil|paper bag|bike pump|tent|camping stove|rope|ladder|"
    "hammer|paint|brush|flower pot|candle"
).split("|")
_SYLLABLES = "ba be bo da de do fa fi ga go ka ke ki ko la le li lo ma me mi mo na ne no pa pe ra re ri ro sa se so ta te to va vi zo".split()
_MONTHS = "January February March April May June July August September October November December".split()


def below(rng: random.Random, count: int) -> int:
    """A number from 0 to count - 1; much cheaper than randrange."""
    return int(rng.random() * count)


def pick(rng: random.Random, options: Sequence[T]) -> T:
    return options[int(rng.random() * len(options))]


def _int(low: int, high: int) -> Draw:
    return lambda rng: low + below(rng, high - low + 1)


def _decimal(low: int, high: int) -> Draw:
    """A number with up to two decimals; one in four is whole."""

    def draw(rng: random.Random) -> int | float:
        whole, part = low + below(rng, high - low), below(rng, 4)
        if part == 0:
            return whole
        value = whole + (below(rng, 9) + 1) / 10 if part < 3 else whole + (below(rng, 99) + 1) / 100
        return round(value, 2)

    return draw


def _made_up(rng: random.Random) -> str:
    return "".join([pick(rng, _SYLLABLES) for _ in range(2 + below(rng, 2))]).capitalize()


def _city(rng: random.Random) -> str:
    return pick(rng, _CITIES) if rng.random() < 0.7 else _made_up(rng)


def _first_name(rng: random.Random) -> str:
    return pick(rng, _FIRST) if rng.random() < 0.7 else _made_up(rng)


def _person(rng: random.Random) -> str:
    first = _first_name(rng)
    if rng.random() < 0.4:
        return first
    return first + " " + (pick(rng, _LAST) if rng.random() < 0.7 else _made_up(rng))


def _phrase(rng: random.Random) -> str:
    """Free text of 1 to 6 words, now and then with punctuation or quotes of its own."""
    words = [pick(rng, _WORDS) for _ in range(1 + below(rng, 6))]
    if rng.random() < 0.5:
        words[0] = words[0].capitalize()
    kind = below(rng, 16)
    if kind == 0 and len(words) > 1:
        words[0] += ","
    elif kind == 1:
        words[-1] += pick(rng, ("!", "?", "..."))
    elif kind == 2:
        words[-1] = '"' + words[-1] + '"'
    elif kind == 3:
        words[0] = pick(rng, _FIRST) + "'s"
    elif kind == 4:
        words.append(str(below(rng, 100)))
    elif kind == 5:
        words.append("(" + pick(rng, _WORDS) + ")")
    return " ".join(words)


def _email(rng: random.Random) -> str:
    name = _made_up(rng).lower() if rng.random() < 0.6 else pick(rng, NAMES).lower()
    if rng.random() < 0.3:
        name += pick(rng, (".", "_", "-")) + _made_up(rng).lower()
    return f"{name}@{_made_up(rng).lower()}.{pick(rng, ('com', 'org', 'net', 'de', 'io'))}"


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


def _phone(rng: random.Random) -> str:
    return f"+{1 + below(rng, 98)} {100 + below(rng, 900)} {1000 + below(rng, 9000)}"


def _zip(rng: random.Random) -> str:
    return f"{below(rng, 100000):05}"


def _street(rng: random.Random) -> str:
    return f"{_made_up(rng)} {pick(rng, ('Street', 'Road', 'Lane', 'Square'))} {1 + below(rng, 99)}"


def _file(rng: random.Random) -> str:
    folder = "/" + _made_up(rng).lower() + "/" if rng.random() < 0.4 else ""
    stem = pick(rng, WORDS) if rng.random() < 0.5 else _made_up(rng).lower()
    return f"{folder}{stem}{pick(rng, ('', '_1', '_2', '-old'))}.{pick(rng, ('txt', 'pdf', 'csv', 'png', 'docx'))}"


def _url(rng: random.Random) -> str:
    return f"https://{_made_up(rng).lower()}.{pick(rng, ('com', 'org'))}/{_made_up(rng).lower()}"


def _one_of(options: str) -> Draw:
    listed = tuple(options.split("|"))
    return lambda rng: pick(rng, listed)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of parameter: its possible names, how a user says it, and its values."""

    type: str  # string, free (a string said in quotes), integer, number, boolean, enum, strings, integers, object
    names: tuple[str, ...]
    phrases: tuple[str, ...]  # {v} is the value
    draw: Draw  # of one value; of one element for arrays
    parts: tuple[str, ...] = ()  # enum: all literals; object: kinds of its fields

    @property
    def words(self) -> set[str]:
        """Names that no other parameter of the same function may have."""
        fields = {name for part in self.parts for name in KINDS[part].names} if self.type == "object" else set()
        return fields.union(self.names)


def _kind(type_: str, names: str, phrases: str = "", draw: Draw = _phrase, parts: str = "") -> Kind:
    return Kind(
        type_, tuple(names.split("|")), tuple(phrases.split("|")) if phrases else (), draw, tuple(parts.split())
    )


KINDS: dict[str, Kind] = {
    "city": _kind("string", "city|location|town|place", "in {v}|near {v}", _city),
    "origin": _kind("string", "origin|departure city|start point", "from {v}|starting in {v}", _city),
    "destination": _kind("string", "destination|arrival city|target", "to {v}|going to {v}", _city),
    "person": _kind("string", "name|person|full name", "for {v}|in the name of {v}", _person),
    "recipient": _kind("string", "recipient|receiver|addressee", "to {v}|addressed to {v}", _person),
    "owner": _kind("string", "owner|assignee|responsible", "owned by {v}|assigned to {v}", _person),
    "email": _kind("string", "email|email address|mail", "to {v}|using the address {v}", _email),
    "title": _kind("free", "title|subject|headline", "titled {v}|called {v}", _phrase),
    "label": _kind("free", "label|caption|description", "labelled {v}", _phrase),
    "new_name": _kind("free", "new name|new title", "to {v}|giving it the name {v}", _phrase),
    "text": _kind("free", "text|body|content", "saying {v}|that says {v}", _phrase),
    "note": _kind("free", "note|comment|remark", "adding {v}|and mention {v}", _phrase),
    "query": _kind("free", "query|keyword|search text", "about {v}|matching {v}", _phrase),
    "date": _kind("string", "date|day", "on {v}", _date),
    "deadline": _kind("string", "deadline|due date|end date", "by {v}|until {v}", _date),
    "time": _kind("string", "time|clock time", "at {v}", _time),
    "code": _kind("string", "code|reference|id", "with number {v}", _code),
    "phone": _kind("string", "phone|phone number|mobile", "with the phone {v}", _phone),
    "url": _kind("string", "url|link|web address", "from {v}", _url),
    "file": _kind("string", "file|path|file name", "from {v}", _file),
    "folder": _kind("string", "folder|target folder", "into {v}", lambda rng: "/" + _made_up(rng).lower()),
    "item": _kind("string", "item|product|article", "", _one_of("|".join(_THINGS))),
    "street": _kind("string", "street", "", _street),
    "zip": _kind("string", "zip code|postal code", "", _zip),
    "room": _kind(
        "string", "room|area", "in the {v}", _one_of("kitchen|bedroom|bathroom|hall|garage|office|attic|cellar")
    ),
    "guests": _kind("integer", "guests|people|party size", "for {v} people|for {v} persons", _int(1, 20)),
    "days": _kind("integer", "days|number of days", "for {v} days", _int(2, 30)),
    "minutes": _kind("integer", "minutes|duration", "for {v} minutes|lasting {v} minutes", _int(2, 180)),
    "quantity": _kind("integer", "quantity|number of pieces|count", "", _int(1, 500)),
    "limit": _kind("integer", "limit|max results", "with at most {v} results", _int(2, 100)),
    "year": _kind("integer", "year", "from the year {v}", _int(1950, 2029)),
    "floor": _kind("integer", "floor|level", "on floor {v}", _int(-3, 40)),
    "percent": _kind("integer", "percent|intensity", "at {v} percent", _int(1, 100)),
    "stars": _kind("integer", "stars|rating|score", "with {v} stars", _int(2, 10)),
    "priority_no": _kind("integer", "rank|order number", "", _int(1, 99)),
    "price": _kind("number", "price|max price|budget", "for {v} euros|for at most {v}", _decimal(5, 900)),
    "amount": _kind("number", "amount|sum|value", "of {v}|over {v}", _decimal(1, 3000)),
    "degrees": _kind("number", "temperature|degrees", "at {v} degrees", _decimal(-20, 40)),
    "weight": _kind("number", "weight|weight kg", "weighing {v} kg", _decimal(1, 60)),
    "distance": _kind("number", "distance|radius", "within {v} km", _decimal(1, 80)),
    "latitude": _kind("number", "latitude", "", _decimal(-90, 90)),
    "longitude": _kind("number", "longitude", "", _decimal(-180, 180)),
    "width": _kind("integer", "width", "", _int(1, 900)),
    "height": _kind("integer", "height", "", _int(1, 900)),
    "rate": _kind("number", "rate|interest", "at a rate of {v}", _decimal(0, 12)),
    "offset": _kind("integer", "offset|change", "", _int(-50, 50)),
    "unit": _kind("enum", "unit|units", "in {v}", parts="celsius fahrenheit kelvin"),
    "metric": _kind("enum", "system|measure", "in {v} units", parts="metric imperial nautical"),
    "size": _kind("enum", "size|format", "in size {v}", parts="small medium large tiny huge"),
    "color": _kind("enum", "color|colour", "in {v}", parts="red blue green white black yellow pink"),
    "priority": _kind("enum", "priority|importance|urgency", "with {v} priority", parts="low normal high critical"),
    "category": _kind(
        "enum", "category|group|topic", "in the category {v}", parts="work home travel health money sport"
    ),
    "mode": _kind("enum", "mode|program", "in {v} mode", parts="eco fast silent turbo auto night"),
    "class": _kind("enum", "class|cabin", "in {v} class", parts="economy business first premium"),
    "currency": _kind("enum", "currency|money unit", "in {v}", parts="EUR USD GBP JPY CHF INR"),
    "to_currency": _kind("enum", "to currency|target currency", "to {v}|into {v}", parts="SEK AUD CAD NOK BRL ZAR"),
    "status": _kind("enum", "status|state", "with status {v}", parts="open closed pending done failed"),
    "frequency": _kind("enum", "frequency|interval", "every {v}", parts="hour day week month year"),
    "language": _kind(
        "enum", "language|target language", "in {v}|into {v}", parts="English French German Spanish Italian Hindi"
    ),
    "doc_type": _kind("enum", "file type|export type", "as {v}", parts="pdf csv xml json html"),
    "genre": _kind("enum", "genre|style", "of the genre {v}", parts="jazz rock pop drama comedy crime"),
    "payment": _kind("enum", "payment|payment method", "paid by {v}", parts="card cash transfer voucher"),
    "tags": _kind("strings", "tags|labels|keywords", "tagged {v}", lambda rng: pick(rng, WORDS)),
    "people": _kind("strings", "attendees|participants|members", "with {v}|together with {v}", _first_name),
    "emails": _kind("strings", "emails|addresses|cc", "with copies to {v}", _email),
    "items": _kind("strings", "items|products|things", "", _one_of("|".join(_THINGS))),
    "toppings": _kind(
        "strings",
        "toppings|extras|ingredients",
        "topped with {v}",
        _one_of("cheese|ham|onion|olives|basil|corn|tuna|egg|mushrooms|pepper"),
    ),
    "weekdays": _kind(
        "strings",
        "weekdays|days of week",
        "every {v}",
        _one_of("Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"),
    ),
    "files": _kind("strings", "files|attachments", "attaching {v}", _file),
    "ids": _kind("integers", "ids|numbers", "with the numbers {v}", _int(1, 999)),
    "pages": _kind("integers", "pages|page numbers", "with pages {v}", _int(1, 99)),
    "seats": _kind("integers", "seats|seat numbers", "on seats {v}", _int(1, 60)),
    "address": _kind("object", "address|place details", "", parts="street city zip"),
    "customer": _kind("object", "customer|client data", "", parts="person email phone"),
    "coordinates": _kind("object", "coordinates|position", "", parts="latitude longitude"),
    "dimensions": _kind("object", "dimensions|measurements", "", parts="width height"),
    "options": _kind("object", "options|settings", "", parts="color size quantity"),
    "period": _kind("object", "period|date range", "", parts="date deadline"),
    "filter": _kind("object", "filter|conditions", "", parts="category price stars"),
    "breakfast": _kind("boolean", "breakfast|meals"),
    "insurance": _kind("boolean", "insurance|full cover"),
    "notify": _kind("boolean", "notification|notifications"),
    "repeat": _kind("boolean", "repetition|repeat"),
    "gift": _kind("boolean", "gift wrap|wrapping"),
    "tracking": _kind("boolean", "tracking|live tracking"),
    "encrypt": _kind("boolean", "encryption|protection"),
    "sound": _kind("boolean", "sound|audio"),
    "subtitles": _kind("boolean", "subtitles|captions"),
    "receipt": _kind("boolean", "receipt|proof"),
    "details": _kind("boolean", "details|full details"),
    "parking": _kind("boolean", "parking|garage space"),
    "luggage": _kind("boolean", "luggage|baggage"),
    "backup": _kind("boolean", "backup|safety copy"),
}
_COMMON = ("note", "tags", "priority", "notify", "code", "details", "owner", "priority_no", "offset")
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
        "own", "the", "assign, convert, translate, print, copy, download, install, repair|fix, clean, water, feed, test"
    ),
}


class Topic(NamedTuple):
    noun: str
    synonyms: tuple[str, ...]
    mass: bool  # no plural and no "a"
    verbs: tuple[str, ...]
    kinds: tuple[str, ...]
    fields: tuple[str, ...]  # of results


_TOPICS = """
weather*|forecast; get; city date days unit details coordinates; temperature, humidity, wind speed, condition
air quality*|air pollution; measure, check; city date details; index, dust level, rating
traffic*; check; city time distance details; delay, average speed, open
flight; search, book, cancel, track; origin destination date class guests price luggage seats; price, duration, gate, delayed
train ticket; search, buy, cancel; origin destination date time class guests; price, platform, seat, departure time
hotel|hotel room; search, book, cancel, rate; city date days guests breakfast price parking filter; price, rating, phone number, available
table|restaurant table; book, cancel, move; city person guests date time phone note; table number, confirmation code, confirmed
taxi|cab; order, cancel, track; origin destination time guests luggage address; price, arrival time, driver
car|vehicle; rent, lock, unlock, search; city days class insurance color price period; price, fuel level, plate number, available
bike|bicycle; rent, lock, repair; city minutes size insurance; price, battery level, plate number
alarm|wake-up call; set, delete, list; time label weekdays repeat sound; alarm number, next time, active
timer|countdown; start, stop, pause; minutes label sound repeat; remaining minutes, timer number, active
reminder; create, delete, list, update; title date time priority repeat frequency; reminder number, next date, active
meeting|appointment; schedule, cancel, move, list; title date time people minutes room; meeting code, room name, start time, confirmed
calendar event|diary entry; create, delete, update, search; title date time people city notify period; event code, start time, confirmed
email|e-mail; send, read, delete, search; email title text emails files priority; message code, sender, sent time
text message|SMS; send, read, delete; recipient phone text time; message code, delivery time, delivered
letter; write, print, send; recipient text address language; letter number, price, delivery date
note|memo; create, delete, update, search; title text tags color category; note number, word count, last change
task|to-do; create, assign, delete, list; title deadline priority owner tags; task number, owner, due date, finished
file|document; open, delete, rename, copy, share, upload; file folder new_name emails encrypt; file size, owner, last change
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
invoice|bill; create, send, pay, delete, list; customer amount currency deadline items code; total, invoice number, due date, paid
payment|money transfer; send, approve, reject, refund; amount currency recipient note code receipt; fee, payment code, arrival date, confirmed
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
product|store item; search, update, delete, rate; query price color options quantity filter; price, stock count, rating, available
parcel|package; send, track, cancel; recipient address weight tracking code dimensions; price, arrival date, current place, delivered
coupon|voucher; create, delete, send; code percent deadline email; coupon code, discount, end date, active
customer record|client record; create, update, delete, search; person email phone address; customer number, city, last change, active
employee|staff member; add, delete, search, rate; person email title amount floor; employee number, department, phone number
contact|address book entry; add, delete, update, search; person phone email address; phone number, city, last change
password; reset, update, test; email code encrypt; strength, last change, end date
server|virtual machine; start, stop, reset, list; code size city; load, uptime hours, address, active
database; create, delete, export, test; code size encrypt backup; row count, database size, last change
report; create, export, print, share; title date doc_type pages emails period; report number, page count, file size
support ticket|support case; create, close, assign, list; title text priority owner status; ticket number, owner, waiting minutes, solved
survey|questionnaire; create, close, share; title deadline emails quantity; answer count, survey code, end date, active
course|training course; book, cancel, search, rate; title date language guests price; price, seat count, teacher, full
doctor visit|doctor appointment; book, cancel, move; person date time phone note; room name, waiting minutes, doctor
prescription|medicine recipe; order, cancel, check; person code quantity; price, pickup time, ready
workout|exercise session; start, stop, schedule; minutes mode date distance; calories, heart rate, distance
heart rate|pulse; measure, track; minutes person; average, highest value, lowest value
plant; water, buy, move; room amount color quantity; water level, height, price
dog|puppy; feed, clean; weight time room; weight, last meal, hungry
parking spot|parking space; book, cancel, search; city time minutes distance floor; price, spot number, available
charging station|charging point; search, book, test; city distance percent coordinates; price, power, distance, available
route|travel route; calculate, share, search; origin destination mode distance; distance, duration, delay
map; open, download, print; city size coordinates url; scale, file size, last change
news*|headlines; read, track; category language limit query; title, source, sent time
newsletter; send, cancel, write; title text emails date; reader count, sent time, open rate
poll|vote; create, close, share; title deadline items notify; answer count, winner, active
web domain|domain name; buy, sell, check; url year amount; price, owner, end date, available
mobile app|application; install, delete, update, rate; title url backup notify; version, file size, rating
blog post; write, delete, share, search; title text tags category date; view count, author, sent time
concert hall|music hall; rent, search, clean; city date guests price seats; price, seat count, phone number, available
meeting room|conference room; book, cancel, search, clean; guests date time floor minutes; seat count, floor number, available
gym membership; buy, cancel, check; person days price insurance; price, end date, member number, active
gift card; buy, send, check; amount currency recipient text gift; balance, card number, end date
"""


def _topic(row: str) -> Topic:
    names, verbs, kinds, fields = (part.strip() for part in row.split(";"))
    noun, *synonyms = names.replace("*", "").split("|")
    return Topic(
        noun, tuple(synonyms), "*" in names, tuple(verbs.split(", ")), tuple(kinds.split()), tuple(fields.split(", "))
    )


TOPICS: tuple[Topic, ...] = tuple(_topic(row) for row in _TOPICS.strip().splitlines())
_BY_VERB: dict[str, list[Topic]] = {verb: [topic for topic in TOPICS if verb in topic.verbs] for verb in VERBS}
_WORDS_OF: dict[str, set[str]] = {key: kind.words for key, kind in KINDS.items()}


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
        schema["required"] = [p.name for p in self.parameters if p.required]
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
    """Kinds for one function, which share no name."""
    pool = list(topic.kinds)
    if rng.random() < 0.2:
        pool.append(pick(rng, _COMMON))
    rng.shuffle(pool)
    wanted = pick(rng, (0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4))
    chosen: list[str] = []
    used: set[str] = set()
    for key in pool:
        if len(chosen) == wanted:
            break
        if used.isdisjoint(_WORDS_OF[key]):
            chosen.append(key)
            used |= _WORDS_OF[key]
    return chosen


def function(rng: random.Random, topic: Topic, verb: str, style: str) -> Function:
    """One generated schema; style is snake, camel, dashed or dotted."""
    words = pick(rng, VERBS[verb].words) if rng.random() < 0.15 else verb
    noun = pick(rng, topic.synonyms) if topic.synonyms and rng.random() < 0.1 else topic.noun
    if VERBS[verb].article == "s" and not topic.mass:
        noun = plural(noun)
    if style == "dotted":
        name = f"{spelled(noun, 'snake')}.{spelled(words, 'snake')}"
    else:
        name = spelled(f"{words} {noun}", style)
    description = capital(action(rng, topic, verb)) + "."
    style = "camel" if style == "camel" else "snake"
    described = pick(rng, (None, None, "", f" of the {topic.noun}"))
    parameters = [_parameter(rng, KINDS[k], style, rng.random() < 0.65, described) for k in _kinds(rng, topic)]
    return Function(verb, topic, name, description, tuple(parameters))


def action(rng: random.Random, topic: Topic, verb: str) -> str:
    """What is to be done, in words of the fixed lists: "book a table"."""
    words = VERBS[verb].words
    said = words[0] if rng.random() < 0.6 else pick(rng, words)
    noun = pick(rng, topic.synonyms) if topic.synonyms and rng.random() < 0.25 else topic.noun
    article = VERBS[verb].article
    if said == "search":
        said = "search for"
    if topic.mass:
        return f"{said} the {noun}".replace("all the", "the")
    if article == "s":
        form = "{} {}" if said == "show all" else pick(rng, ("{} {}", "{} the {}", "{} all {}"))
        return form.format(said, plural(noun))
    if article == "a" and rng.random() < 0.8:
        return f"{said} {'an' if noun[0] in 'aeiouAEIOU' or noun == 'SMS' else 'a'} {noun}"
    return f"{said} {'my' if rng.random() < 0.25 else 'the'} {noun}"


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


_YES_NO_FIELDS = "open|delayed|available|confirmed|active|delivered|finished|locked|paid|solved|full|ready|hungry"
_FIELD_VALUES: tuple[tuple[Draw, str], ...] = (
    (_decimal(-20, 45), "temperature|change|average|highest value|lowest value|factor|result|rate|load"),
    (
        _int(0, 100),
        "humidity|index|dust level|percentage|battery level|fuel level|brightness|strength|confidence|discount|water level|open rate|volume",
    ),
    (
        _int(2, 600),
        "delay|duration|remaining minutes|waiting minutes|cooking minutes|calories|word count|view count|song count|page count|file count|item count|image count|answer count|reader count|seat count|stock count|row count|uptime hours|length|width|height|opening width|power|cleaned area|heart rate|channel|average speed|wind speed|episode number|platform|floor number|scale",
    ),
    (
        _decimal(1, 900),
        "price|total|fee|balance|monthly payment|remaining amount|weight|distance|file size|folder size|database size|rating",
    ),
    (
        _code,
        "gate|seat|plate number|confirmation code|meeting code|event code|message code|invoice number|payment code|account number|order number|coupon code|customer number|employee number|report number|ticket number|survey code|spot number|member number|card number|alarm number|timer number|reminder number|note number|task number|letter number|table number",
    ),
    (_date, "next date|delivery date|arrival date|due date|end date|last change"),
    (_time, "departure time|arrival time|start time|next time|sent time|delivery time|pickup time|last meal"),
    (_person, "driver|sender|owner|artist|director|host|teacher|doctor|author|winner"),
    (_city, "current place|city"),
    (_phone, "phone number"),
    (_url, "address"),
    (_int(1960, 2029), "year"),
    (lambda rng: _phrase(rng).replace('"', ""), "title|translation"),
    (_one_of("sunny|cloudy|rainy|windy|stormy|foggy|snowy"), "condition"),
    (_one_of("North|South|Green|Blue|Oak|Lake|Sun"), "room name|hall|source"),
    (_one_of("sales|finance|legal|support|design"), "department"),
    (lambda rng: f"{below(rng, 10)}.{below(rng, 10)}.{below(rng, 20)}", "version"),
    (lambda rng: rng.random() < 0.5, _YES_NO_FIELDS),
)
FIELDS: dict[str, Draw] = {name: draw for draw, names in _FIELD_VALUES for name in names.split("|")}
YES_NO = frozenset(_YES_NO_FIELDS.split("|"))
