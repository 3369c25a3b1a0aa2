"""What functions do and are about: verbs, topics, and the fields of the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from training.data.tool_values import DRAWS, Draw, drawer


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
BY_VERB: dict[str, list[Topic]] = {verb: [topic for topic in TOPICS if verb in topic.verbs] for verb in VERBS}


def _fields_of(rows: str) -> Iterator[tuple[str, Draw]]:
    for row in rows.strip().splitlines():
        spec, names = row.split("; ")
        for name in names.split("|"):
            yield name, drawer(spec.split())


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
YES_NO = frozenset(name for name, draw in FIELDS.items() if draw is DRAWS["yes_no"])
