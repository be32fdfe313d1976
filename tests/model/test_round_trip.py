"""Saved models give the same outputs where only Transformers is installed.

Translators of every mode, and decoders alone with a mode of each shape. All folders hold the same code, and
`test_single_stack.py` saves and loads every mode with the package.
"""

import runpy

import pytest
from support import ROOT
from support.models import SHAPES
from support.processes import run_forked

MAKE = runpy.run_path(str(ROOT / "examples/tiny_models/make.py"))
MODES, WITH_PIPELINE = MAKE["MODES"], ("resi_dual", "realformer")
ABSENT = ("residual_hf", "accelerate", "datasets", "evaluate", "sacrebleu", "sentencepiece", "peft")

SCRIPT = f"""
import json, sys
for name in {ABSENT!r}:
    sys.modules[name] = None  # where it is installed too
import torch
torch.set_num_threads(1)
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

folder, *modes = sys.argv[1:]
classes = {{}}
decoders = [(AutoModelForCausalLM, folder + "/causal_lm", mode) for mode in {SHAPES!r}]
for auto, home, mode in [*((AutoModelForSeq2SeqLM, folder, mode) for mode in modes), *decoders]:
    place = home + "/" + mode
    with open(place + "/expected.json") as file:
        expected = {{name: torch.tensor(values) for name, values in json.load(file).items()}}
    ids = expected.pop("generated")
    logits = expected.pop("logits")
    if auto not in classes:  # the other folders hold the same code: loading that again takes most of the time
        classes[auto] = type(auto.from_pretrained(place, trust_remote_code=True))
    model = classes[auto].from_pretrained(place)
    assert model.config.ln_mode == mode
    with torch.no_grad():
        assert torch.allclose(model(**expected).logits, logits, rtol=1e-5, atol=1e-5), mode
    expected.pop("decoder_input_ids", None)
    found = model.generate(**expected, max_new_tokens={MAKE["NEW_TOKENS"]}, do_sample=False)
    assert torch.equal(found, ids), (mode, found, ids)
# by these names `Trainer` knows that label smoothing shifts the labels
assert classes[AutoModelForCausalLM].__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
for mode in {WITH_PIPELINE!r}:
    place = folder + "/" + mode
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=True)
    with open(place + "/expected.json") as file:
        text = tokenizer.batch_decode(json.load(file)["input_ids"], skip_special_tokens=True)
    translate = pipeline("translation", model=place, device="cpu", trust_remote_code=True)
    with open(place + "/expected.json") as file:
        wanted = tokenizer.batch_decode(json.load(file)["generated"], skip_special_tokens=True)
    for batch_size in (1, 3):
        found = translate(text, max_new_tokens={MAKE["NEW_TOKENS"]}, num_beams=1, batch_size=batch_size)
        assert [one["translation_text"] for one in found] == wanted, (mode, found, wanted)
loaded = [name for name in sys.modules if name.partition(".")[0] in {ABSENT!r} and sys.modules[name] is not None]
assert not loaded, loaded
"""


def test_the_catalogue_is_complete():
    assert len(MODES) >= 30 and {"resi_dual", "post_ln", "pre_ln", "b2t", "admin", "hyper_connections"} < {*MODES}


@pytest.mark.slow  # `test_self_contained.py` loads one without the package
def test_same_tokens_without_the_package(tmp_path):
    MAKE["make_models"](tmp_path / "saved", MODES, SHAPES)
    places = [tmp_path / "saved" / mode for mode in MODES]
    places += [tmp_path / "saved" / "causal_lm" / mode for mode in SHAPES]
    code = {tuple((path.name, path.read_bytes()) for path in sorted(place.glob("*.py"))) for place in places}
    assert len(code) == 2  # of translation and of language models
    run_forked("-c", SCRIPT, tmp_path / "saved", *MODES, cwd=tmp_path, HF_MODULES_CACHE=str(tmp_path / "modules"))
    assert len({(place / "expected.json").read_text() for place in places}) == len(
        places
    )  # else one could pass for another
