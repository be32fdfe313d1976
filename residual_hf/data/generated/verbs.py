# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Verbs and modals of the generated corpus in both languages, and what each one is said of."""

from __future__ import annotations

from dataclasses import dataclass

from residual_hf.data.generated.english import EnglishModal, EnglishVerb, parse_verb
from residual_hf.data.generated.german import ACC, DAT, Persons, present, preterite
from residual_hf.data.generated.nouns import Noun, nouns


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in both languages; `present` is without the prefix, `preterite` is None where the perfect serves."""

    en: EnglishVerb
    infinitive: str
    prefix: str
    present: Persons
    participle: str
    auxiliary: str
    preterite: Persons | None = None


@dataclass(frozen=True, eq=False)
class Modal:
    en: EnglishModal
    present: Persons
    preterite: Persons | None


@dataclass(frozen=True, eq=False)
class Usage:
    """A verb with its German case (and preposition), its possible objects, and places where one does it.

    `use` says which tenses make sense: any, state (no progressive), event (no present), body (no will),
    still (no time of day), past, timeless.
    """

    verb: Verb
    case: int | None
    preposition: str
    objects: tuple[Noun, ...]
    persons: bool
    places: tuple[str, ...]
    needs_place: bool
    use: str


def verb(english: str, german: str) -> Verb:
    """From `call called calling` and `an.rufen angerufen`.

    The German may go on with the stem of du and er where it changes, with `sein`, and with `=` and a past tense.
    """
    infinitive, participle, *rest = german.split()
    auxiliary = "sein" if "sein" in rest else "haben"
    past = next((word[1:] for word in rest if word.startswith("=")), "")
    changed = next((word for word in rest if word != "sein" and not word.startswith("=")), "")
    prefix, _, bare = infinitive.rpartition(".")
    past_persons = preterite(past) if past else None
    return Verb(
        parse_verb(english), prefix + bare, prefix, present(bare, changed), participle, auxiliary, past_persons
    )


# English | German | case and preposition | objects (kinds, nouns, person) | places (!: always one) | use
_USAGES = """
buy bought buying | kaufen gekauft | acc | food drink flower | supermarket market | any
buy bought buying | kaufen gekauft | acc | clothes thing souvenir read furniture | city TOWN | any
sell sold selling | verkaufen verkauft | acc | vehicle furniture horse camera watch | city market TOWN | any
look looked looking +for | suchen gesucht | acc | thing animal ticket hat | kitchen garden hotel park | any
find found finding | finden gefunden | acc | thing animal ticket hat | kitchen garden office park beach | event
lose lost losing | verlieren verloren | acc | thing clothes ticket | park station beach city TOWN | past
forget forgot forgetting | vergessen vergessen vergiss | acc | thing clothes ticket read | hotel restaurant | past
need needed needing | brauchen gebraucht | acc | thing clothes furniture vehicle ticket | | state
see saw seeing | sehen gesehen sieh | acc | person animal film | | event
read read reading | lesen gelesen lies | acc | read post | kitchen garden park library balcony | any
write wrote writing | schreiben geschrieben | acc | post | kitchen garden office hotel | any
eat ate eating | essen gegessen iss | acc | food | kitchen restaurant garden park balcony | any
drink drank drinking | trinken getrunken | acc | drink | kitchen restaurant garden hotel balcony | any
order ordered ordering | bestellen bestellt | acc | food drink | restaurant hotel | any
cook cooked cooking | kochen gekocht | acc | soup potato egg | kitchen | any
wear wore wearing | tragen getragen träg | acc | coat shirt jacket hat shoe watch | | still
repair repaired repairing | reparieren repariert | acc | vehicle device lamp watch phone | garden | any
wash washed washing | waschen gewaschen wäsch | acc | car shirt dress jacket dog | garden | any
pay paid paying +for | bezahlen bezahlt | acc | ticket coat shirt jacket hat coffee beer wine | | any
visit visited visiting | besuchen besucht | acc | person museum | | any
meet met meeting | treffen getroffen triff | acc | person | restaurant park cinema station city TOWN | any
call called calling | an.rufen angerufen | acc | person | | any
invite invited inviting | ein.laden eingeladen läd | acc | person | | any
pick picked picking +up* | ab.holen abgeholt | acc | person | station airport | any
know knew knowing | kennen gekannt | acc | person hotel museum | | timeless
understand understood understanding | verstehen verstanden | acc | person book film letter | | timeless
ask asked asking | fragen gefragt | acc | person | | any
open opened opening | auf.machen aufgemacht | acc | opening suitcase gift bag | | any
close closed closing | zu.machen zugemacht | acc | opening suitcase bag | | any
turn turned turning +on* | an.machen angemacht | acc | device lamp | | any
turn turned turning +off* | aus.machen ausgemacht | acc | device lamp | | any
try tried trying +on* | an.probieren anprobiert | acc | coat shirt jacket hat shoe | | any
put put putting +on* | an.ziehen angezogen | acc | coat shirt jacket hat shoe | | any
tidy tidied tidying +up* | auf.räumen aufgeräumt | acc | kitchen room office cupboard | | any
help helped helping | helfen geholfen hilf | dat | person | kitchen garden office | any
thank thanked thanking | danken gedankt | dat | person | | any
listen listened listening +to | zu.hören zugehört | dat | person | | any
wait waited waiting +for | warten gewartet | auf acc | person train bus | station airport | any
think thought thinking +of | denken gedacht | an acc | person | | any
talk talked talking +to | sprechen gesprochen sprich | mit dat | person | garden office restaurant park | any
work worked working | arbeiten gearbeitet | | | office garden restaurant hotel library museum TOWN | any
sleep slept sleeping | schlafen geschlafen schläf | | | garden hotel room | any
sit sat sitting | sitzen gesessen | | | !garden kitchen park balcony restaurant | still
sing sang singing | singen gesungen | | | garden theatre park kitchen | any
dance danced dancing | tanzen getanzt | | | kitchen park hotel theatre | any
swim swam swimming | schwimmen geschwommen sein | | | lake | any
stay stayed staying | bleiben geblieben sein | | | !hotel city village TOWN HOME | still
eat ate eating | essen gegessen iss | | | restaurant garden kitchen HOME | any
get got getting +up | auf.stehen aufgestanden sein | | | | any
wake woke waking +up | auf.wachen aufgewacht sein | | | | body
fall fell falling +asleep | ein.schlafen eingeschlafen schläf sein | | | | body
go went going +shopping | ein.kaufen eingekauft | | | city supermarket market TOWN | any
watch watched watching +TV | fern.sehen ferngesehen sieh | | | room hotel HOME | any
come came coming +back | zurück.kommen zurückgekommen sein | | | | any
"""

_CASES = {"acc": ACC, "dat": DAT}


def _usage(line: str) -> Usage:
    english, german, government, objects, places, use = (column.strip() for column in line.split("|"))
    *preposition, case = government.split() or [""]
    return Usage(
        verb=verb(english, german),
        case=_CASES.get(case),
        preposition=" ".join(preposition),
        objects=nouns(objects.replace("person", "")),
        persons="person" in objects.split(),
        places=tuple(places.lstrip("!").split()),
        needs_place=places.startswith("!"),
        use=use,
    )


USAGES: tuple[Usage, ...] = tuple(map(_usage, _USAGES.strip().splitlines()))

VERBS: dict[str, Verb] = {usage.verb.infinitive: usage.verb for usage in USAGES}

# Verbs of the patterns that are more than verb, object and place.
GIVING = (
    (verb("give gave giving", "geben gegeben gib"), nouns("gift book key ticket flower")),
    (verb("show showed showing", "zeigen gezeigt"), nouns("picture letter room garden car watch")),
    (verb("send sent sending", "schicken geschickt"), nouns("post souvenir")),
    (verb("bring brought bringing", "bringen gebracht"), nouns("flower newspaper suitcase key coffee tea bread cake")),
    (verb("lend lent lending", "leihen geliehen"), nouns("car bicycle umbrella book camera money")),
)
GO = verb("go went going", "gehen gegangen sein")
RIDE = verb("go went going", "fahren gefahren fähr sein")  # with "by train"
FLY = verb("fly flew flying", "fliegen geflogen sein")
LIVE = verb("live lived living", "wohnen gewohnt")
PUT = verb("put put putting", "legen gelegt"), verb("put put putting", "stellen gestellt")
LIE = verb("be was being", "liegen gelegen =lag")
STAND = verb("be was being", "stehen gestanden =stand")
LEAVE = verb("leave left leaving", "ab.fahren abgefahren fähr sein")
ARRIVE = verb("arrive arrived arriving", "an.kommen angekommen sein")
START = verb("start started starting", "an.fangen angefangen fäng")
COST = verb("cost cost costing", "kosten gekostet =kostete")
BELONG = verb("belong belonged belonging +to", "gehören gehört")
SAY = verb("say said saying", "sagen gesagt")
HOPE = verb("hope hoped hoping", "hoffen gehofft")
THINK = verb("think thought thinking", "glauben geglaubt")
ASK = verb("ask asked asking", "fragen gefragt")
RAIN = verb("rain rained raining", "regnen geregnet")

_HATTE, _WAR = preterite("hatte"), preterite("war")
BE = Verb(parse_verb("be was being"), "sein", "", ("bin", "bist", "ist", "sind"), "gewesen", "sein", _WAR)
HAVE = Verb(parse_verb("have had having"), "haben", "", ("habe", "hast", "hat", "haben"), "gehabt", "haben", _HATTE)
KNOW = Verb(parse_verb("know knew knowing"), "wissen", "", ("weiß", "weißt", "weiß", "wissen"), "gewusst", "haben",
            preterite("wusste"))  # fmt: skip
LIKE = Verb(parse_verb("like liked liking"), "mögen", "", ("mag", "magst", "mag", "mögen"), "gemocht", "haben",
            preterite("mochte"))  # fmt: skip
LIKED = Usage(
    LIKE, ACC, "", nouns("animal food drink read film city hat dress coat museum"), True, (), False, "timeless"
)

AUXILIARIES = {"haben": HAVE.present, "sein": BE.present, "werden": ("werde", "wirst", "wird", "werden")}

_WANT = EnglishVerb("want", "wants", "wanted", "wanting")
_HAVE_TO = EnglishVerb("have", "has", "had", "having")
MODALS = (
    Modal(EnglishModal("can", past="able to"), ("kann", "kannst", "kann", "können"), preterite("konnte")),
    Modal(EnglishModal(verb=_HAVE_TO), ("muss", "musst", "muss", "müssen"), preterite("musste")),
    Modal(EnglishModal(verb=_WANT), ("will", "willst", "will", "wollen"), preterite("wollte")),
    Modal(
        EnglishModal(present="allowed to", past="allowed to"),
        ("darf", "darfst", "darf", "dürfen"),
        preterite("durfte"),
    ),
    Modal(EnglishModal("should"), ("soll", "sollst", "soll", "sollen"), None),
    Modal(EnglishModal("would", tail="like to "), ("möchte", "möchtest", "möchte", "möchten"), None),
)
