# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Nouns, names, adjectives and places of the generated corpus, as tables of words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun; `gender` is m, f or n, or p where there is only a plural; an empty plural marks a mass noun.

    `weak` masculines (der Nachbar, den Nachbarn) take their genitive form in every case but the nominative.
    """

    kind: str
    en: str
    en_plural: str
    gender: str
    de: str
    de_genitive: str
    de_plural: str
    weak: bool


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective; endings join `de_stem` (teuer, but teur-e); `fits` holds the kinds and nouns it may describe."""

    en: str
    de: str
    de_stem: str
    fits: frozenset[str]


@dataclass(frozen=True, eq=False)
class Place:
    """A noun one can be at or go to, with the prepositions for both, in both languages."""

    noun: Noun
    en_at: str
    de_at: str
    en_to: str
    de_to: str


# kind, English singular and plural, gender, German singular, genitive (m, n) and plural
_NOUNS = """
kin        mother       mothers       f  Mutter         -              Mütter
kin        father       fathers       m  Vater          Vaters         Väter
kin        sister       sisters       f  Schwester      -              Schwestern
kin        brother      brothers      m  Bruder         Bruders        Brüder
kin        grandmother  grandmothers  f  Großmutter     -              Großmütter
kin        grandfather  grandfathers  m  Großvater      Großvaters     Großväter
kin        daughter     daughters     f  Tochter        -              Töchter
kin        son          sons          m  Sohn           Sohnes         Söhne
kin        aunt         aunts         f  Tante          -              Tanten
kin        uncle        uncles        m  Onkel          Onkels         Onkel
kin        friend       friends       m  Freund         Freundes       Freunde
kin        colleague    colleagues    m  Kollege        Kollegen*      Kollegen
kin        parents      parents       p  Eltern         -              Eltern
people     neighbour    neighbours    m  Nachbar        Nachbarn*      Nachbarn
people     doctor       doctors       m  Arzt           Arztes         Ärzte
people     teacher      teachers      m  Lehrer         Lehrers        Lehrer
people     man          men           m  Mann           Mannes         Männer
people     woman        women         f  Frau           -              Frauen
people     boy          boys          m  Junge          Jungen*        Jungen
people     child        children      n  Kind           Kindes         Kinder
people     guest        guests        m  Gast           Gastes         Gäste
people     student      students      m  Student        Studenten*     Studenten
animal     dog          dogs          m  Hund           Hundes         Hunde
animal     cat          cats          f  Katze          -              Katzen
animal     horse        horses        n  Pferd          Pferdes        Pferde
food       apple        apples        m  Apfel          Apfels         Äpfel
food       egg          eggs          n  Ei             Eis            Eier
food       tomato       tomatoes      f  Tomate         -              Tomaten
food       potato       potatoes      f  Kartoffel      -              Kartoffeln
food       cake         cakes         m  Kuchen         Kuchens        Kuchen
food       soup         soups         f  Suppe          -              Suppen
food       bread        -             n  Brot           Brotes         -
food       cheese       -             m  Käse           Käses          -
food       fish         -             m  Fisch          Fisches        -
food       chocolate    -             f  Schokolade     -              -
drink      coffee       -             m  Kaffee         Kaffees        -
drink      tea          -             m  Tee            Tees           -
drink      milk         -             f  Milch          -              -
drink      water        -             n  Wasser         Wassers        -
drink      beer         -             n  Bier           Bieres         -
drink      wine         -             m  Wein           Weines         -
vessel     cup          cups          f  Tasse          -              Tassen
vessel     glass        glasses       n  Glas           Glases         Gläser
vessel     bottle       bottles       f  Flasche        -              Flaschen
clothes    coat         coats         m  Mantel         Mantels        Mäntel
clothes    shirt        shirts        n  Hemd           Hemdes         Hemden
clothes    dress        dresses       n  Kleid          Kleides        Kleider
clothes    jacket       jackets       f  Jacke          -              Jacken
clothes    hat          hats          m  Hut            Hutes          Hüte
clothes    shoe         shoes         m  Schuh          Schuhes        Schuhe
thing      key          keys          m  Schlüssel      Schlüssels     Schlüssel
thing      umbrella     umbrellas     m  Regenschirm    Regenschirms   Regenschirme
thing      bag          bags          f  Tasche         -              Taschen
thing      suitcase     suitcases     m  Koffer         Koffers        Koffer
thing      watch        watches       f  Uhr            -              Uhren
thing      camera       cameras       f  Kamera         -              Kameras
thing      phone        phones        n  Handy          Handys         Handys
souvenir   gift         gifts         n  Geschenk       Geschenks      Geschenke
souvenir   flower       flowers       f  Blume          -              Blumen
souvenir   picture      pictures      n  Bild           Bildes         Bilder
fare       ticket       tickets       f  Fahrkarte      -              Fahrkarten
read       book         books         n  Buch           Buches         Bücher
read       newspaper    newspapers    f  Zeitung        -              Zeitungen
post       letter       letters       m  Brief          Briefes        Briefe
post       postcard     postcards     f  Postkarte      -              Postkarten
furniture  table        tables        m  Tisch          Tisches        Tische
furniture  chair        chairs        m  Stuhl          Stuhls         Stühle
furniture  lamp         lamps         f  Lampe          -              Lampen
furniture  sofa         sofas         n  Sofa           Sofas          Sofas
furniture  bed          beds          n  Bett           Bettes         Betten
furniture  cupboard     cupboards     m  Schrank        Schranks       Schränke
device     radio        radios        n  Radio          Radios         Radios
device     computer     computers     m  Computer       Computers      Computer
vehicle    car          cars          n  Auto           Autos          Autos
vehicle    bicycle      bicycles      n  Fahrrad        Fahrrads       Fahrräder
transport  train        trains        m  Zug            Zuges          Züge
transport  bus          buses         m  Bus            Busses         Busse
opening    door         doors         f  Tür            -              Türen
opening    window       windows       n  Fenster        Fensters       Fenster
home       kitchen      kitchens      f  Küche          -              Küchen
home       room         rooms         n  Zimmer         Zimmers        Zimmer
home       garden       gardens       m  Garten         Gartens        Gärten
home       balcony      balconies     m  Balkon         Balkons        Balkone
venue      office       offices       n  Büro           Büros          Büros
venue      supermarket  supermarkets  m  Supermarkt     Supermarkts    Supermärkte
venue      museum       museums       n  Museum         Museums        Museen
venue      cinema       cinemas       n  Kino           Kinos          Kinos
venue      theatre      theatres      n  Theater        Theaters       Theater
venue      restaurant   restaurants   n  Restaurant     Restaurants    Restaurants
venue      hotel        hotels        n  Hotel          Hotels         Hotels
venue      library      libraries     f  Bibliothek     -              Bibliotheken
hub        station      stations      m  Bahnhof        Bahnhofs       Bahnhöfe
hub        airport      airports      m  Flughafen      Flughafens     Flughäfen
outdoors   market       markets       m  Markt          Marktes        Märkte
outdoors   city         cities        f  Stadt          -              Städte
outdoors   park         parks         m  Park           Parks          Parks
outdoors   village      villages      n  Dorf           Dorfes         Dörfer
outdoors   beach        beaches       m  Strand         Strandes       Strände
outdoors   lake         lakes         m  See            Sees           Seen
event      film         films         m  Film           Films          Filme
event      concert      concerts      n  Konzert        Konzerts       Konzerte
event      party        parties       f  Party          -              Partys
feast      birthday     birthdays     m  Geburtstag     Geburtstags    Geburtstage
means      time         -             f  Zeit           -              -
means      money        -             n  Geld           Geldes         -
"""

# English, German, kinds and nouns it describes; a bar sets off the stem where the ending changes it
_ADJECTIVES = """
new          neu             clothes thing furniture vehicle device home museum hotel restaurant read
old          alt             clothes thing furniture vehicle device read picture people animal park station hotel
big          groß            furniture vehicle animal bag suitcase cake room kitchen garden supermarket gift
small        klein           furniture vehicle animal bag child home restaurant hotel village gift
beautiful    schön           clothes flower picture garden city village beach lake park dress
cheap        billig          clothes bag watch camera phone vehicle ticket wine hotel
expensive    teuer|teur      clothes bag watch camera phone vehicle ticket wine hotel restaurant
heavy        schwer          suitcase bag table cupboard book
red          rot             clothes apple tomato flower car bicycle bag umbrella sofa chair
blue         blau            clothes car bicycle bag umbrella suitcase door
green        grün            clothes apple car bicycle bag sofa door
black        schwarz         clothes dog cat horse car bag umbrella suitcase
white        weiß            clothes cat horse flower lamp door
fresh        frisch          apple egg tomato bread fish cheese milk
hot          heiß            coffee tea soup
cold         kalt            water milk beer tea soup
warm         warm            coat jacket soup room bread
sweet        süß             apple cake wine chocolate tea
good         gut             doctor teacher restaurant hotel film book wine cheese cake concert
young        jung            man woman doctor teacher neighbour dog
nice         nett            people
friendly     freundlich      people dog
ill          krank           man woman child dog
tired        müde|müd        man woman child boy
happy        glücklich       man woman child boy
hungry       hungrig         man woman child boy dog cat
famous       berühmt         museum theatre film man woman
interesting  interessant     read museum film letter city
boring       langweilig      read film concert party
long         lang            letter film dress coat concert
short        kurz            letter film dress postcard
important    wichtig         letter guest key book
quiet        ruhig           park village hotel restaurant room garden beach library
modern       modern          furniture museum station airport kitchen office library
clean        sauber          hotel room beach kitchen shirt cup glass
dark         dunkel|dunkl    room kitchen coat cinema
"""

# noun, English and German preposition for being there and for going there
_PLACES = """
kitchen      in  in   into  in
room         in  in   into  in
garden       in  in   into  in
balcony      on  auf  onto  auf
office       in  in   to    in
supermarket  in  in   to    in
museum       in  in   to    in
cinema       at  in   to    in
theatre      at  in   to    in
restaurant   in  in   to    in
hotel        in  in   to    zu
library      in  in   to    in
station      at  an   to    zu
airport      at  an   to    zu
market       at  auf  to    auf
city         in  in   to    in
park         in  in   to    in
village      in  in   to    in
beach        on  an   to    an
lake         at  an   to    an
"""


def _noun(kind: str, en: str, rest: list[str]) -> Noun:
    en_plural, gender, de, genitive, de_plural = (column.replace("-", "") for column in rest)
    weak = genitive.endswith("*")
    return Noun(kind, en, en_plural, gender, de, genitive.rstrip("*") or de, de_plural, weak)


def _adjective(en: str, de: str, fits: str) -> Adjective:
    base, _, stem = de.partition("|")
    return Adjective(en, base, stem or base, frozenset(fits.split()))


def _rows(table: str, columns: int) -> list[list[str]]:
    return [line.split(maxsplit=columns - 1) for line in table.strip().splitlines()]


NOUNS: dict[str, Noun] = {row[1]: _noun(row[0], row[1], row[2:]) for row in _rows(_NOUNS, 7)}
ADJECTIVES: tuple[Adjective, ...] = tuple(_adjective(*row) for row in _rows(_ADJECTIVES, 3))
PLACES: dict[str, Place] = {row[0]: Place(NOUNS[row[0]], *row[1:]) for row in _rows(_PLACES, 5)}

# English and German comparative, what it may compare
COMPARATIVES = (
    ("older", "älter", "vehicle camera watch coat sofa"), ("bigger", "größer", "car room garden suitcase kitchen"),
    ("smaller", "kleiner", "room garden bag kitchen office"), ("cheaper", "billiger", "vehicle watch coat ticket"),
    ("more expensive", "teurer", "vehicle watch camera dress sofa"),
    ("more beautiful", "schöner", "garden flower picture dress jacket"),
    ("more interesting", "interessanter", "read letter film"),
)  # fmt: skip
PERSONAL_COMPARATIVES = ("older", "älter"), ("younger", "jünger"), ("nicer", "netter"), ("friendlier", "freundlicher")
WOMEN = ("Anna", "Maria", "Laura", "Lena", "Julia", "Sophie")
MEN = ("Peter", "Paul", "Martin", "David", "Emil", "Jan")
CITIES = {
    "Berlin": "Berlin", "Hamburg": "Hamburg", "Munich": "München", "Cologne": "Köln",
    "Vienna": "Wien", "Zurich": "Zürich", "Paris": "Paris", "Rome": "Rom",
}  # fmt: skip


def nouns(words: str) -> tuple[Noun, ...]:
    """The nouns named in `words`, each by its kind or by its English singular, in the order of the table."""
    wanted = set(words.split())
    found = tuple(noun for noun in NOUNS.values() if noun.kind in wanted or noun.en in wanted)
    unknown = wanted - {noun.kind for noun in found} - {noun.en for noun in found}
    if unknown:
        raise KeyError(f"no noun or kind of noun: {', '.join(sorted(unknown))}")
    return found


def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in ADJECTIVES if noun.kind in adjective.fits or noun.en in adjective.fits)
