# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The generated corpus against hand-written tables of German, and the promises of `generate_corpus`."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re

import pytest
from support.processes import run_forked

from residual_hf.base.errors import InputError
from residual_hf.data.synthetic import MAX_PAIRS, generate_corpus
from residual_hf.data.synthetic import generator as corpus
from residual_hf.data.synthetic.grammar import (
    ACC,
    DAT,
    NOM,
    PRONOUNS,
    THE,
    THIS,
    A,
    Clause,
    Element,
    english,
    german,
    noun_phrase,
    object_part,
)
from residual_hf.data.synthetic.words import BE, NOUNS, VERBS

SIZES = {"train": 6000, "valid": 300, "test": 300}

# Every noun: nominative, accusative, dative, genitive singular; nominative and dative plural.
DECLENSIONS = """
der Bär, den Bären, dem Bären, des Bären; die Bären, den Bären
der Riese, den Riesen, dem Riesen, des Riesen; die Riesen, den Riesen
der Drache, den Drachen, dem Drachen, des Drachen; die Drachen, den Drachen
der Fuchs, den Fuchs, dem Fuchs, des Fuchses; die Füchse, den Füchsen
der König, den König, dem König, des Königs; die Könige, den Königen
die Eule, die Eule, der Eule, der Eule; die Eulen, den Eulen
die Maus, die Maus, der Maus, der Maus; die Mäuse, den Mäusen
die Gans, die Gans, der Gans, der Gans; die Gänse, den Gänsen
die Hexe, die Hexe, der Hexe, der Hexe; die Hexen, den Hexen
die Königin, die Königin, der Königin, der Königin; die Königinnen, den Königinnen
das Einhorn, das Einhorn, dem Einhorn, des Einhorns; die Einhörner, den Einhörnern
das Gespenst, das Gespenst, dem Gespenst, des Gespenstes; die Gespenster, den Gespenstern
das Pferd, das Pferd, dem Pferd, des Pferdes; die Pferde, den Pferden
der Schlüssel, den Schlüssel, dem Schlüssel, des Schlüssels; die Schlüssel, den Schlüsseln
der Regenschirm, den Regenschirm, dem Regenschirm, des Regenschirms; die Regenschirme, den Regenschirmen
die Laterne, die Laterne, der Laterne, der Laterne; die Laternen, den Laternen
die Uhr, die Uhr, der Uhr, der Uhr; die Uhren, den Uhren
das Boot, das Boot, dem Boot, des Bootes; die Boote, den Booten
der Hut, den Hut, dem Hut, des Hutes; die Hüte, den Hüten
der Mantel, den Mantel, dem Mantel, des Mantels; die Mäntel, den Mänteln
die Krone, die Krone, der Krone, der Krone; die Kronen, den Kronen
das Hemd, das Hemd, dem Hemd, des Hemdes; die Hemden, den Hemden
der Apfel, den Apfel, dem Apfel, des Apfels; die Äpfel, den Äpfeln
der Pilz, den Pilz, dem Pilz, des Pilzes; die Pilze, den Pilzen
die Birne, die Birne, der Birne, der Birne; die Birnen, den Birnen
das Ei, das Ei, dem Ei, des Eis; die Eier, den Eiern
der Brief, den Brief, dem Brief, des Briefes; die Briefe, den Briefen
die Geschichte, die Geschichte, der Geschichte, der Geschichte; die Geschichten, den Geschichten
das Buch, das Buch, dem Buch, des Buches; die Bücher, den Büchern
der Wald, den Wald, dem Wald, des Waldes; die Wälder, den Wäldern
der See, den See, dem See, des Sees; die Seen, den Seen
die Küche, die Küche, der Küche, der Küche; die Küchen, den Küchen
die Insel, die Insel, der Insel, der Insel; die Inseln, den Inseln
das Schloss, das Schloss, dem Schloss, des Schlosses; die Schlösser, den Schlössern
""".strip().splitlines()

# The present of every verb with ich, du, er and wir, and its perfect with er.
CONJUGATIONS = """
kaufe kaufst kauft kaufen, hat gekauft
finde findest findet finden, hat gefunden
verliere verlierst verliert verlieren, hat verloren
stehle stiehlst stiehlt stehlen, hat gestohlen
suche suchst sucht suchen, hat gesucht
repariere reparierst repariert reparieren, hat repariert
esse isst isst essen, hat gegessen
lese liest liest lesen, hat gelesen
besuche besuchst besucht besuchen, hat besucht
wecke weckst weckt wecken, hat geweckt
rufe an rufst an ruft an rufen an, hat angerufen
lade ein lädst ein lädt ein laden ein, hat eingeladen
lache aus lachst aus lacht aus lachen aus, hat ausgelacht
helfe hilfst hilft helfen, hat geholfen
folge folgst folgt folgen, ist gefolgt
höre zu hörst zu hört zu hören zu, hat zugehört
warte wartest wartet warten, hat gewartet
träume träumst träumt träumen, hat geträumt
tanze tanzt tanzt tanzen, hat getanzt
gebe gibst gibt geben, hat gegeben
zeige zeigst zeigt zeigen, hat gezeigt
leihe leihst leiht leihen, hat geliehen
lese vor liest vor liest vor lesen vor, hat vorgelesen
singe singst singt singen, hat gesungen
arbeite arbeitest arbeitet arbeiten, hat gearbeitet
schlafe schläfst schläft schlafen, hat geschlafen
gehe gehst geht gehen, ist gegangen
fliege fliegst fliegt fliegen, ist geflogen
""".strip().splitlines()


@pytest.fixture(scope="module")
def generated() -> dict[str, list[tuple[str, str]]]:
    return generate_corpus(SIZES)


def phrase(determiner, english: str, plural: bool = False):
    return noun_phrase(determiner, None, next(noun for noun in NOUNS if noun.en == english), plural)


def verb(english: str):
    return next(verb for verb in VERBS if verb.en == english)


@pytest.mark.parametrize("row", DECLENSIONS, ids=[row.split()[1].strip(",") for row in DECLENSIONS])
def test_every_noun_declines_as_in_the_dictionary(row) -> None:
    singular, plural = (half.split(", ") for half in row.split("; "))
    found = next(noun for noun in NOUNS if noun.de == singular[0].split()[1])
    assert list(noun_phrase(THE, None, found).de) == singular
    assert [noun_phrase(THE, None, found, plural=True).de[case] for case in (NOM, DAT)] == plural


def test_the_tables_hold_every_word() -> None:
    assert len(DECLENSIONS) == len(NOUNS)
    assert len(CONJUGATIONS) == len(VERBS)


@pytest.mark.parametrize(("row", "verb"), zip(CONJUGATIONS, VERBS, strict=True), ids=[v.infinitive for v in VERBS])
def test_every_verb_conjugates_as_in_the_dictionary(row, verb) -> None:
    subjects = [PRONOUNS[name][0] for name in ("I", "you", "m", "we")]
    present = " ".join(german(Clause(subject, verb)).split(" ", 1)[1] for subject in subjects)
    perfect = german(Clause(subjects[2], verb, "past")).split(" ", 1)[1]
    assert f"{present}, {perfect}" == row


OWL = phrase(THE, "owl")
BEAR = object_part(phrase(THE, "bear"), ACC)
YESTERDAY, TOMORROW = Element("time", "yesterday", "gestern"), Element("time", "tomorrow", "morgen")
IN_THE_FOREST = Element("place", "in the forest", "im Wald")
A_HAT = object_part(phrase(A, "hat"), ACC)
# clause, English, German main clause, German subordinate clause
CLAUSES = [
    (Clause(OWL, verb("call"), parts=[BEAR, Element("often", "often", "oft")]),
     "the owl often calls the bear", "die Eule ruft den Bären oft an", "die Eule den Bären oft anruft"),
    (Clause(OWL, verb("call"), "past", [BEAR, YESTERDAY]), "the owl called the bear yesterday",
     "die Eule hat gestern den Bären angerufen", "die Eule gestern den Bären angerufen hat"),
    (Clause(OWL, verb("call"), "will", [BEAR, TOMORROW]), "the owl will call the bear tomorrow",
     "die Eule wird morgen den Bären anrufen", "die Eule morgen den Bären anrufen wird"),
    (Clause(OWL, verb("find"), "past", [A_HAT, IN_THE_FOREST]), "the owl found a hat in the forest",
     "die Eule hat im Wald einen Hut gefunden", "die Eule im Wald einen Hut gefunden hat"),
    (Clause(OWL, verb("give"), "past", [A_HAT, object_part(phrase(THE, "ghost"), DAT), YESTERDAY]),
     "the owl gave the ghost a hat yesterday", "die Eule hat dem Gespenst gestern einen Hut gegeben",
     "die Eule dem Gespenst gestern einen Hut gegeben hat"),
    (Clause(OWL, verb("follow"), "must", [object_part(PRONOUNS["p"][0], DAT), IN_THE_FOREST]),
     "the owl must follow them in the forest", "die Eule muss ihnen im Wald folgen",
     "die Eule ihnen im Wald folgen muss"),
    (Clause(OWL, verb("wait"), parts=[object_part(phrase(THIS, "king"), ACC, "auf"), IN_THE_FOREST]),
     "the owl waits for this king in the forest", "die Eule wartet im Wald auf diesen König",
     "die Eule im Wald auf diesen König wartet"),
    (Clause(OWL, verb("dream"), parts=[object_part(phrase(PRONOUNS["we"][1], "hat", plural=True), DAT, "von")]),
     "the owl dreams of our hats", "die Eule träumt von unseren Hüten", "die Eule von unseren Hüten träumt"),
    (Clause(OWL, BE, "past", [Element("not", "not", "nicht"), Element("predicate", "sad", "traurig")]),
     "the owl was not sad", "die Eule war nicht traurig", "die Eule nicht traurig war"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "en", "main", "subordinate"), CLAUSES, ids=[case[1] for case in CLAUSES])
def test_word_order(said: Clause, en: str, main: str, subordinate: str) -> None:
    assert (english(said), german(said), german(said, "last")) == (en, main, subordinate)


def test_questions_and_fronting_invert_verb_and_subject() -> None:
    said = Clause(OWL, verb("call"), "past", [BEAR])
    assert english(said, "") == "did the owl call the bear"
    assert german(said, "first") == "hat die Eule den Bären angerufen"
    assert english(said, "why") == "why did the owl call the bear"
    assert german(said, "first", "warum") == "warum hat die Eule den Bären angerufen"
    said.front = "yesterday", "gestern"
    assert english(said) == "yesterday the owl called the bear"
    assert german(said) == "gestern hat die Eule den Bären angerufen"


# Read and found right by a German: pattern, seed, English, German.
GOLDEN = [
    (corpus.statement, 13, "The sad unicorn showed me fifty-nine lanterns at the lake last week.",
     "Das traurige Einhorn hat mir letzte Woche am See neunundfünfzig Laternen gezeigt."),
    (corpus.statement, 22, "Every morning this dragon invites the queen.",
     "Jeden Morgen lädt dieser Drache die Königin ein."),
    (corpus.question, 7, "Why do we laugh at the brave foxes every morning?",
     "Warum lachen wir jeden Morgen die mutigen Füchse aus?"),
    (corpus.reason, 104, "I sang at the lake because I had no black umbrella.",
     "Ich habe am See gesungen, weil ich keinen schwarzen Regenschirm hatte."),
    (corpus.condition, 107, "If this goose is not happy, she must read the ghost three letters.",
     "Wenn diese Gans nicht glücklich ist, muss sie dem Gespenst drei Briefe vorlesen."),
    (corpus.condition, 104, "When it rains, the small mice repair the sad unicorn's lantern.",
     "Wenn es regnet, reparieren die kleinen Mäuse die Laterne des traurigen Einhorns."),
    (corpus.claim, 105, "The big bear says that he flew to the lake at two o'clock yesterday.",
     "Der große Bär sagt, dass er gestern um zwei Uhr an den See geflogen ist."),
    (corpus.relative, 108, "The dragons that lent the fox their golden umbrella live in the kitchen.",
     "Die Drachen, die dem Fuchs ihren goldenen Regenschirm geliehen haben, wohnen in der Küche."),
    (corpus.lost, 110, "Where is his long letter? I need it.", "Wo ist sein langer Brief? Ich brauche ihn."),
    (corpus.figure, 7, "The bear is four hundred and twenty-one years old.",
     "Der Bär ist vierhunderteinundzwanzig Jahre alt."),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "seed", "en", "de"), GOLDEN, ids=[f"{p.__name__}-{s}" for p, s, *_ in GOLDEN])
def test_golden_sentences(pattern, seed: int, en: str, de: str) -> None:
    assert pattern(random.Random(seed)) == (en, de)


def test_every_pattern_has_a_golden_sentence() -> None:
    assert set(corpus.SHARES) == {pattern for pattern, *_ in GOLDEN}


def test_no_sentence_occurs_twice(generated) -> None:
    assert {name: len(pairs) for name, pairs in generated.items()} == SIZES
    for side in (0, 1):
        together = [pair[side] for pairs in generated.values() for pair in pairs]
        assert len(set(together)) == len(together)


def test_sentences_are_short_and_closed(generated) -> None:
    lengths = [len(en.split()) for en, _ in generated["train"]]
    assert min(lengths) >= 2 and max(lengths) <= 26
    assert 9 < sum(lengths) / len(lengths) < 11
    for en, de in generated["train"]:
        assert en[0].isupper() and de[0].isupper() and en[-1] == de[-1] and en[-1] in ".?"
        assert "  " not in en + de


def test_german_is_a_function_of_english() -> None:
    dice, german_of = random.Random(7), {}
    patterns = itertools.cycle(corpus.SHARES)
    for en, de in (next(patterns)(dice) for _ in range(20000)):
        assert german_of.setdefault(en, de) == de


def test_held_out_words_are_seen_in_training(generated) -> None:
    """Numbers are made of parts and may be new; of all other words hardly one."""
    numbers = re.compile("hundert|und(zwanzig|dreißig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig)")
    for side in (0, 1):
        seen = {word for pair in generated["train"] for word in re.findall(r"\w+", pair[side])}
        words = [word for pair in generated["test"] for word in re.findall(r"\w+", pair[side])]
        new = [word for word in words if word not in seen and not numbers.search(word)]
        assert len(new) < 0.002 * len(words), new


# Changes whenever words or grammar change: results of models trained before are then not comparable.
FIRST_1000 = "0112e10e9a9cae3a"


def test_the_same_in_every_process() -> None:
    """Neither the order of sets, which differs between processes, nor their number decides. Guards every table."""
    program = (
        "import json; from residual_hf.data.synthetic import generate_corpus;"
        "print(json.dumps(generate_corpus({'train': 1000})['train']))"
    )
    elsewhere = json.loads(run_forked("-c", program).stdout)
    for pairs in (elsewhere, generate_corpus({"train": 1000})["train"]):
        text = "\n".join("\t".join(pair) for pair in pairs)
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == FIRST_1000
    assert generate_corpus({"train": 1000}, seed=1)["train"] != pairs


def test_held_out_parts_do_not_depend_on_the_size_of_the_training_part(generated) -> None:
    small = generate_corpus({**SIZES, "train": 1000})
    assert small["valid"] == generated["valid"]
    assert small["test"] == generated["test"]


def test_more_pairs_than_there_are_are_refused() -> None:
    with pytest.raises(InputError, match=str(MAX_PAIRS)):
        generate_corpus({"train": MAX_PAIRS, "test": 1})
