"""Kinds of parameters: how they may be called, how a user says them, and the values they take.

Knows nothing of functions or of what they are about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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


DRAWS: dict[str, Draw] = {
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


def drawer(words: list[str]) -> Draw:
    """From a type and the name of a drawer or the bounds of a number."""
    if len(words) == 3:
        return (_decimal if words[0] == "number" else _int)(int(words[1]), int(words[2]))
    return DRAWS[words[1]]


def _kinds_of(rows: str) -> Iterator[tuple[str, Kind]]:
    for row in rows.strip().splitlines():
        key, spec, names, phrases = [*row.split("; "), ""][:4]
        type_, *parts = spec.split()
        compound = type_ in ("enum", "object")
        draw = DRAWS["phrase"] if compound or not parts else drawer([type_, *parts])
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
