import json
import re

import pytest
from support.finished_run import content, edit_recipe, write_json

from residual_hf.hub.card import write_card
from residual_hf.records.markdown import block, code, public, text

HOSTILE = "<script>alert(1)</script> ![x](http://evil.org/x.png) `code` | **bold** {{ 7 * 7 }}\n# Headline\n```\n---"


def test_recorded_text_is_escaped(make_run):
    run = make_run()
    record = json.loads((run / "run.json").read_text())
    record["data"]["train"][0] |= {"name": HOSTILE, "sha256": {HOSTILE: HOSTILE}}
    write_json(run / "run.json", record | {"device": HOSTILE, "command": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    write_json(run / "cleaning.json", {HOSTILE: {"pairs": 1, "kept": 1, "dropped": {HOSTILE: 1}}})
    edit_recipe(run, lambda recipe: recipe["training"].update(metric=HOSTILE))
    edit_recipe(run, lambda recipe: recipe["decoding"].update(num_beams=HOSTILE, length_penalty=HOSTILE))
    card = content(write_card(run, data_license=HOSTILE))
    fence = None
    for line in card.partition("\n---\n\n")[2].splitlines():
        marks = re.match("`{3,}", line)
        if marks and (fence is None or marks[0] == fence):
            fence = marks[0] if fence is None else None
        elif fence is None:
            spans = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line)
            assert "<script>" not in spans and not re.search(r"(?<!\\)!\[x", spans) and "49" not in spans, line
            assert not line.startswith("# Headline")


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("/home/someone/secret/tokenizer", "tokenizer"),
        ("/home/some one/secret/tokenizer", "tokenizer"),
        ("data.train={source: /home/someone/a.de, target: ~/texts/a.en}", "data.train={source: a.de, target: a.en}"),
        ("train '/home/some one/recipe.yaml' --output-dir runs/one", "train 'recipe.yaml' --output-dir runs/one"),
        ("train --set 'output_dir=/home/some one/my run' x", "train --set 'output_dir=my run' x"),
        ("C:\\Users\\someone\\a.de", "a.de"),
        ("source=C:\\Users\\someone\\a.de", "source=a.de"),
        ("file:///home/someone/a.de", "a.de"),
        ("https://huggingface.co/a/b and/or c", "https://huggingface.co/a/b and/or c"),
        ("https://me:hf_abcdefghijkl@huggingface.co/a", "https://***@huggingface.co/a"),
        ("hub_token=hf_abcdefghijkl", "hub_token=***"),
        (
            "--set training.hub_token=abc --hub-token 'x y' max_tokens=4096",
            "--set training.hub_token=*** --hub-token *** max_tokens=4096",
        ),
        ("key ghp_0123456789abcdef, sk-0123456789abcdef and AKIA0123456789ABCDEF", "key ***, *** and ***"),
        ("user/hf-marian-deen, user/sk-cs-transformer_2", "user/hf-marian-deen, user/sk-cs-transformer_2"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("https://host/a?access_token=abc&b=1", "https://host/a?access_token=***&b=1"),
        ("train --set 'a=/home/o'\"'\"'neil/x y' z", "train --set 'a=x y' z"),
        ('no file "/home/o\'neil/a.de"', 'no file "a.de"'),
        ('"C:\\Users\\Some One\\a.de" and "/home/some one/b.de"', '"a.de" and "b.de"'),
        ("C:/Users/someone/a.de", "a.de"),
        ("source=\\\\server\\share\\a.de", "source=a.de"),
        ("source: ../../someone/a.de, target: ./texts/a.en", "source: a.de, target: a.en"),
        ("data/of someone", "data/of someone"),
        ("texts/of/someone/a.de and texts\\of\\b.de", "a.de and b.de"),
        ("dataset someone/corpus of s3://bucket/private/a.de", "dataset someone/corpus of a.de"),
    ],
)
def test_folders_and_tokens_are_removed(recorded, shown):
    assert public(recorded) == shown
    assert public({"a": [recorded]}) == {"a": [shown]}


def test_samples_and_names_are_shown_as_they_are(make_run):
    run = make_run()
    line = "On 12/05/2020 he/she/it said: the password: letmein"
    (run / "test.sources.txt").write_text(f"{line}\n" * 30, encoding="utf-8")
    card = content(write_card(run, model_name="user/sk-en-transformer1234567"))
    assert f"| source | {line} |" in card and 'from_pretrained("user/sk-en-transformer1234567")' in card


def test_values_with_the_name_of_a_secret_are_masked():
    values = {"hub_token": "abc", "WANDB_API_KEY": "0123", "password": "x", "max_tokens": "auto", "pad_token": "<pad>"}
    shown = dict.fromkeys(("hub_token", "WANDB_API_KEY", "password"), "***")
    assert public(values) == values | shown


def test_markdown():
    assert text("a_b _c_ <i> | x\ny") == r"a_b \_c\_ \<i\> \| x y"
    assert code("a`b``c") == "``` a`b``c ```" and code("a|b", cell=True) == r"`a\|b`"
    assert block("a\n```\nb", "yaml") == "````yaml\na\n```\nb\n````"
