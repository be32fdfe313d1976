"""The words of the generated corpus: a cast of characters, their belongings, and what they do where."""

from collections import namedtuple

Pair = tuple[str, str]  # English, German


def cells(row: str) -> list[str]:
    """The cells of a row of a table; a dash is an empty one."""
    return ["" if cell == "-" else cell for cell in row.split()]


def rows(table: str) -> list[list[str]]:
    """The rows of a table."""
    return [cells(line) for line in table.strip().splitlines()]


# Where the genitive ending is -n or -en, accusative and dative take it too: der Bär, den Bären.
Noun = namedtuple("Noun", "kind en en_plural gender de genitive de_plural")
NOUNS = [Noun(*row) for row in rows("""
cast   bear      bears      m  Bär          en  Bären
cast   giant     giants     m  Riese        n   Riesen
cast   dragon    dragons    m  Drache       n   Drachen
cast   fox       foxes      m  Fuchs        es  Füchse
cast   king      kings      m  König        s   Könige
cast   owl       owls       f  Eule         -   Eulen
cast   mouse     mice       f  Maus         -   Mäuse
cast   goose     geese      f  Gans         -   Gänse
cast   witch     witches    f  Hexe         -   Hexen
cast   queen     queens     f  Königin      -   Königinnen
cast   unicorn   unicorns   n  Einhorn      s   Einhörner
cast   ghost     ghosts     n  Gespenst     es  Gespenster
cast   horse     horses     n  Pferd        es  Pferde
tool   key       keys       m  Schlüssel    s   Schlüssel
tool   umbrella  umbrellas  m  Regenschirm  s   Regenschirme
tool   lantern   lanterns   f  Laterne      -   Laternen
tool   clock     clocks     f  Uhr          -   Uhren
tool   boat      boats      n  Boot         es  Boote
wear   hat       hats       m  Hut          es  Hüte
wear   coat      coats      m  Mantel       s   Mäntel
wear   crown     crowns     f  Krone        -   Kronen
wear   shirt     shirts     n  Hemd         es  Hemden
food   apple     apples     m  Apfel        s   Äpfel
food   mushroom  mushrooms  m  Pilz         es  Pilze
food   pear      pears      f  Birne        -   Birnen
food   egg       eggs       n  Ei           s   Eier
text   letter    letters    m  Brief        es  Briefe
text   story     stories    f  Geschichte   -   Geschichten
text   book      books      n  Buch         es  Bücher
place  forest    forests    m  Wald         es  Wälder
place  lake      lakes      m  See          s   Seen
place  kitchen   kitchens   f  Küche        -   Küchen
place  island    islands    f  Insel        -   Inseln
place  castle    castles    n  Schloss      es  Schlösser
""")]  # fmt: skip

# English and German prepositions: where one is (dative), where one goes (accusative)
PLACES = {"forest": "in in into in", "lake": "at an to an", "kitchen": "in in into in", "island": "on auf to auf",
          "castle": "in in into in"}  # fmt: skip

_ADJECTIVES = rows("""
hungry     hungrig    cast
sad        traurig    cast
happy      glücklich  cast
brave      mutig      cast
old        alt        cast tool wear text place
small      klein      cast tool wear food text place
big        groß       cast tool wear food place
beautiful  schön      tool wear text place
golden     golden     tool wear food
red        rot        tool wear food
black      schwarz    tool wear
long       lang       text
""")  # fmt: skip
ADJECTIVES: dict[str, list[Pair]] = {
    noun.kind: [(en, de) for en, de, *kinds in _ADJECTIVES if noun.kind in kinds] for noun in NOUNS
}

# `stem` is that of du and er where the vowel changes (lesen, er liest); `cases` are those of receiver and object.
Verb = namedtuple("Verb", "en en_past particle prefix infinitive participle stem auxiliary preposition cases objects")
VERBS = [Verb(*row) for row in rows("""
buy     bought    -    -    kaufen     gekauft     -       haben  -    acc      tool,wear,food,text
find    found     -    -    finden     gefunden    -       haben  -    acc      tool,wear,food,text
lose    lost      -    -    verlieren  verloren    -       haben  -    acc      tool,wear,text
steal   stole     -    -    stehlen    gestohlen   stiehl  haben  -    acc      tool,wear,food,text
look    looked    for  -    suchen     gesucht     -       haben  -    acc      tool,wear,cast
repair  repaired  -    -    reparieren repariert   -       haben  -    acc      tool
eat     ate       -    -    essen      gegessen    iss     haben  -    acc      food
read    read      -    -    lesen      gelesen     lies    haben  -    acc      text
visit   visited   -    -    besuchen   besucht     -       haben  -    acc      cast
wake    woke      -    -    wecken     geweckt     -       haben  -    acc      cast
call    called    -    an   rufen      angerufen   -       haben  -    acc      cast
invite  invited   -    ein  laden      eingeladen  läd     haben  -    acc      cast
laugh   laughed   at   aus  lachen     ausgelacht  -       haben  -    acc      cast
help    helped    -    -    helfen     geholfen    hilf    haben  -    dat      cast
follow  followed  -    -    folgen     gefolgt     -       sein   -    dat      cast
listen  listened  to   zu   hören      zugehört    -       haben  -    dat      cast
wait    waited    for  -    warten     gewartet    -       haben  auf  acc      cast
dream   dreamed   of   -    träumen    geträumt    -       haben  von  dat      cast,tool,wear,food
dance   danced    with -    tanzen     getanzt     -       haben  mit  dat      cast
give    gave      -    -    geben      gegeben     gib     haben  -    dat,acc  tool,wear,food,text
show    showed    -    -    zeigen     gezeigt     -       haben  -    dat,acc  tool,wear,text
lend    lent      -    -    leihen     geliehen    -       haben  -    dat,acc  tool,wear
read    read      -    vor  lesen      vorgelesen  lies    haben  -    dat,acc  text
sing    sang      -    -    singen     gesungen    -       haben  -    -        -
work    worked    -    -    arbeiten   gearbeitet  -       haben  -    -        -
sleep   slept     -    -    schlafen   geschlafen  schläf  haben  -    -        -
go      went      -    -    gehen      gegangen    -       sein   -    goal     -
fly     flew      -    -    fliegen    geflogen    -       sein   -    goal     -
""")]  # fmt: skip
BE, HAVE, LIVE, COST, SAY, NEED = [Verb(*row) for row in rows("""
be      was       -    -    sein       gewesen     -       sein   -    -        -
have    had       -    -    haben      gehabt      -       haben  -    -        -
live    lived     -    -    wohnen     gewohnt     -       haben  -    -        -
cost    cost      -    -    kosten     gekostet    -       haben  -    -        -
say     said      -    -    sagen      gesagt      -       haben  -    -        -
need    needed    -    -    brauchen   gebraucht   -       haben  -    -        -
""")]  # fmt: skip
