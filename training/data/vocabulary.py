"""The words the text tasks draw from: about 700 common short English words by class, names, cities, colours.

Kept small on purpose: the tokenizer holds a few thousand tokens, and nearly every word here should be one of them.
Knows nothing of the tasks. No list may be reordered once a checkpoint was trained: items are drawn by position.
"""

from __future__ import annotations


def _list(words: str) -> tuple[str, ...]:
    return tuple(words.split())


ANIMALS = _list(
    """
    cat dog horse cow pig goat sheep hen duck goose mouse rat fox wolf bear lion tiger deer hare frog toad snake
    bird crow owl hawk eagle swan fish shark whale crab seal bee ant fly moth worm snail spider camel donkey monkey
    rabbit beetle lamb pony otter turtle
    """
)
FOODS = _list(
    """
    apple pear plum grape lemon peach cherry melon bread butter cheese egg milk honey sugar salt pepper rice bean
    corn onion carrot potato tomato soup cake pie tea coffee juice water wine oil nut fig berry cookie salad pasta
    pizza toast jam cream flour garlic
    """
)
THINGS = _list(
    """
    table chair bed lamp door window wall roof floor box bag basket bottle cup plate bowl spoon fork knife pan pot
    book page letter pen pencil paper card map coin key lock clock watch bell drum flute piano guitar song hat coat
    shirt shoe sock belt ring glove scarf dress button thread needle rope chain hammer nail saw axe shovel ladder
    bucket broom brush soap towel mirror candle match torch fire stove oven engine wheel car cart bus train boat
    ship sail plane bike truck kite ball doll toy game dice flag tent stick stone brick glass metal wood cloth wool
    silk leather pillow blanket carpet curtain shelf desk drawer sign camera radio phone screen wire cable battery
    pipe pump valve motor robot rocket
    """
)
PLACES = _list(
    """
    house barn shed garden field farm road street path village town city park forest hill mountain valley river lake
    sea beach island desert cave church school office shop market kitchen cellar attic stable yard port inn hotel
    theatre hospital mill
    """
)
PEOPLE = _list(
    """
    man woman boy girl child baby friend father mother brother sister uncle aunt cousin farmer baker butcher teacher
    doctor nurse lawyer judge driver pilot sailor soldier guard king queen prince knight singer dancer writer
    painter actor student cook waiter clerk miner hunter fisher tailor gardener carpenter mason captain mayor
    merchant
    """
)
NATURE = _list(
    """
    sun moon star sky cloud rain snow wind storm fog ice frost dust sand mud grass leaf tree root branch flower rose
    seed bush moss oak pine wave shore rock
    """
)
TIMES = _list("morning evening night noon day week month year spring summer autumn winter hour minute")
BODY = _list("head face eye ear nose mouth tooth hair neck arm hand finger leg foot knee back heart bone skin")
ADJECTIVES = _list(
    """
    old new young big small tall short long wide narrow heavy light dark bright warm cold hot cool wet dry soft hard
    rough smooth sharp dull clean dirty rich poor strong weak fast slow quiet loud calm brave kind proud happy sad
    angry tired hungry busy lazy clever wise funny strange plain simple sweet sour bitter fresh stale empty full
    open round flat deep shallow high low early late rare common thick thin tiny huge gentle wild tame broken lucky
    famous
    """
)
VERBS_PAST = _list(
    """
    carried moved pushed pulled lifted dropped washed painted mended cleaned opened closed counted bought sold
    borrowed watched noticed admired followed touched wanted needed liked loved hated forgot lost kept hid brought
    took gave sent showed drew cut cooked packed saved shared offered checked measured
    """
)
MOTIONS = _list("walked ran went drove came rode climbed hurried returned travelled wandered marched")
ADVERBS = _list(
    """
    slowly quickly quietly loudly gently often never always sometimes again soon today yesterday tomorrow early
    together alone twice once almost later
    """
)
OTHERS = _list(
    """
    above below under over between behind inside outside near far left right north south east west first last next
    many few some every each other same both half whole one two three four five six seven eight nine ten about after
    before during until while because since very quite too also just only still even more most less much ask call
    come drink eat fall feel fight fill find finish give grow hear help hold hope jump keep know learn leave listen
    live look make meet move need pay play pull push read rest ride run say sell send sing sit sleep smile speak
    stand start stay stop swim take talk teach tell think throw touch try turn use wait walk want wash wear win work
    write idea plan story news word name number line circle square point corner edge middle side top bottom piece
    part pair group team crowd party prize gift trip visit lesson question answer reason result rule change chance
    choice danger dream fear joy luck peace power pride price profit promise proof
    """
)

COLOURS = _list("red blue green yellow orange purple pink brown black white grey silver gold teal")

# Every word a list task may draw; sorted, so that the position of a word does not depend on its class.
WORDS = tuple(
    sorted(
        {
            *(ANIMALS + FOODS + THINGS + PLACES + PEOPLE + NATURE + TIMES + BODY),
            *(ADJECTIVES + VERBS_PAST + MOTIONS + ADVERBS + OTHERS + COLOURS),
        }
    )
)

# Keys of the needle task: no sentence of its filler uses these nouns.
LANDMARKS = _list(
    """
    harbour tower bridge castle museum library palace temple fountain station airport bakery factory tunnel gate
    lighthouse cottage chapel stadium vault cabin studio garage prison clinic
    """
)

NAMES = _list(
    """
    Abel Ada Adam Aida Alan Alba Alex Alice Alma Amir Amy Ana Anders Andy Anna Anton Aria Arno Arthur Asa Astrid
    Axel Bea Bella Ben Bert Beth Bill Bob Bruno Cara Carl Carla Carlo Carmen Cem Chen Chloe Clara Cleo Cora Cyrus
    Dan Dana Daisy Dina David Dora Doris Dylan Eda Eddy Edith Elena Eli Elias Ella Elsa Emil Emma Enzo Eric Erik
    Esra Eva Evan Ezra Faye Felix Finn Flora Frank Fred Frida Gary Gia Gil Gina Glen Grace Greta Gus Hana Hans Harry
    Hugo Ian Ida Igor Ines Inga Iris Ivan Ivy Jack Jade Jan Jane Jean Jim Joan Joe John Jonah Jonas Juan Jude Julia
    June Kai Karl Kate Ken Kim Kira Kurt Lara Lars Laura Lea Lena Leo Leon Liam Lily Lina Lisa Liv Lola Lou Luca
    Lucy Luis Luna Maja Mara Marc Maria Mark Marta Mary Max Maya Mia Mila Milo Mina Mira Moritz Nadia Nell Nico Nils
    Nina Noah Noor Nora Nova Olaf Olga Oli Omar Oscar Otto Owen Pablo Paul Peter Petra Pia Rana Ravi Rex Rita Rob
    Robin Rosa Ruby Ruth Sam Sara Sofia Stella Sven Tara Ted Theo Tim Tina Tom Toni Uma Vera Victor Wanda Will Yara
    Yusuf Zara Zoe
    """
)

CITIES = _list(
    """
    Athens Bergen Berlin Bern Bonn Boston Bremen Cairo Chicago Cork Dallas Delhi Denver Dover Dublin Geneva Genoa
    Ghent Hanoi Havana Kyoto Lagos Leeds Lima Lisbon London Lyon Madrid Malmo Miami Milan Moscow Munich Nairobi
    Naples Nice Oslo Oxford Paris Perth Porto Prague Quito Riga Rome Seoul Sydney Tokyo Toronto Turin Venice Vienna
    Warsaw York Zagreb
    """
)
