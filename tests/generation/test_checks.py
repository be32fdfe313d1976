import pytest

from residual_hf.data.glossary import Glossary
from residual_hf.generation.checks import is_copy, repeats, suspicions


def test_repetition_is_a_passage_four_times_in_a_row_that_the_source_has_not():
    assert repeats("the cat the cat the cat the cat sat", "die Katze")
    assert repeats("猫猫猫猫猫猫猫猫", "Katze")
    assert not repeats("the cat the cat sat", "die Katze")
    assert not repeats("ha ha ha ha ha ha", "ha ha ha ha ha")
    assert not repeats("costs 1000000000 .......... dollars", "x")


def test_copy_is_the_source_up_to_case_and_punctuation_but_no_short_name():
    assert is_copy("ein Hund, läuft im park", "Ein Hund läuft im Park.")
    assert is_copy("我们今天去公园玩。", "我们今天去公园玩")
    assert not is_copy("Johann Sebastian Bach", "Johann Sebastian Bach")
    assert not is_copy("a dog runs in the park", "Ein Hund läuft im Park.")
    assert not is_copy("1 2 3 4 5", "1 2 3 4 5")


@pytest.mark.parametrize(
    ("source", "translation", "flags"),
    [
        ("Zwei von 12.500,75 Euro um 10:30 Uhr", "2 of 12,500.75 euros at 10:30", []),
        ("٢٠٢٤ و 1 000 000", "2024 and 1,000,000", []),
        ("12.5 of 1,234", "۱۲٫۵ از ۱٬۲۳۴", []),
        ("im Jahr 2024", "in 2042", ["numbers"]),
        ("im Jahr " + "9" * 5000, "in the year", ["numbers", "length"]),
        ("Hallo {name}, %1$s von %s: %d%%", "Hello {name}, %1$s of %s: %d%%", []),
        ("Hallo {name}!", "Hello {Name}!", ["placeholders"]),
        ("{{count}} neue ${dinge}", "{{count}} new ${dinge}", []),
        ("Siehe https://a.de/x?y=12.", "See https://a.de/x?y=13.", ["placeholders"]),
        ("die Eule 🦉 ruft 👍🏽", "the 🦉 owl calls 👍🏽", []),
        ("die Eule 🦉 ruft 👍🏽", "the 🦉 owl calls 👍🏻", ["placeholders"]),
        ("an a.b@c.de", "to a.b @c.de", ["placeholders"]),
        ("50% der Leute", "50 % of people", []),
        ("ein <b>Hund</b>", "a <b>dog", ["tags"]),
        ('<x id="1"/>ja', '<x id="1"/>yes', []),
        ("a < b und b > c", "a < b and b > c", []),
        (
            "我们今天去公园玩，天气很好，大家都很高兴。",
            "We are going to the park today, the weather is fine and all are happy.",
            [],
        ),
        ("Die Eule ruft. Der Fuchs fliegt ins Schloss.", "The owl calls.", ["sentences"]),
        ("Ja! Nein? Die Eule ruft „Halt!“ Der Fuchs flog.", "Yes! The owl calls “Stop!”", ["sentences"]),
        ("Die Eule ruft, und der Fuchs fliegt.", "The owl calls. And the fox is flying.", []),
        ("Dr. A. B. Meier kam am 3. Mai um 8 Uhr.", "Dr A B Meier came on 3 May at 8.", []),
        ("Er sagte ... nichts.", "He said nothing.", []),
        ("猫头鹰在叫。狐狸飞进了城堡。", "The owl calls.", ["sentences"]),
        ("ទិញ ស្វាយ ។ល។ និងនំ។", "I buy mangoes etc., also cakes.", []),
        ("ខ្ញុំឈ្មោះសុខ។ ខ្ញុំរស់នៅភ្នំពេញ។", "My name is.", ["sentences"]),
        ("Ja.", "Yes, and " + "then we went on to some other place, " * 2, ["length"]),
        ("zehn Eulen", "ten owls, that is, all of the owls of the yard", ["length"]),  # 46 characters for 10
        ("zehn Eulen", "ten owls, that is, all of the owls of a yard.", []),  # 45
    ],
)
def test_what_is_missing_or_new_is_named(source, translation, flags):
    assert suspicions(source, translation) == flags
    assert set(suspicions(translation, source)) == set(flags)


def test_terms_that_are_translated_otherwise():
    glossary = Glossary([("Hund", "dog"), ("Katze", "cat")])
    assert suspicions("ein Hund und eine Katze", "the dogs and a cat", glossary) == []
    assert suspicions("ein Hund und eine Katze", "a mutt and a cat", glossary) == ["terms"]
    assert suspicions("ein Hund und eine Katze", "a mutt and a cat") == []
