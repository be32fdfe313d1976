"""What a push would do, without a network; test_hub.py has the uploads."""

import itertools
import json
import re

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled
from support import small_sizes
from support.tiny_translator import save_tiny, tiny_model, tiny_tokenizer

from residual_hf import ResidualConfig, ResidualForSpeechSeq2Seq
from residual_hf.base import files
from residual_hf.base.errors import InputError
from residual_hf.checkpoint import load_checkpoint, validate_model_folder
from residual_hf.cli import main
from residual_hf.hub import push
from residual_hf.hub.plain_card import save_with_card
from residual_hf.hub.push import push_run
from residual_hf.model import connections, self_contained
from residual_hf.model.checksums import CHECKSUMS
from residual_hf.model.ln_modes import PreLN

CARD = "---\nlibrary_name: transformers\npipeline_tag: translation\ntags: [translation]\n---\n# German to English\n"


@pytest.fixture
def run(tmp_path):
    """The folder of a finished run, as far as a push reads it."""
    model = save_tiny(tmp_path / "run" / "model")
    (model / "README.md").write_text(CARD + "![curve](curve.png) ![logo](https://somewhere.org/logo.png)\n")
    (model / "curve.png").write_bytes(b"png")
    (model.parent / "metrics.json").write_text("{}")
    return model.parent


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr(push, "HfApi", lambda **arguments: pytest.fail("the Hub was asked"))


def test_dry_run_lists_files_and_sizes(run, capsys):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(run / "model")  # to a file of its own
    (run / "model" / CHECKSUMS).unlink()
    (run / "model" / "optimizer.pt").write_bytes(b"a pickle")
    (run / "model" / "pytorch_model.bin").write_bytes(b"a pickle")
    assert main(["push", str(run), "somebody/de-en", "--dry-run", "--private", "--revision", "v2"]) == 0
    *listed, total, left_out, unchecked = capsys.readouterr().out.splitlines()
    uploaded = {line.split()[1]: int(line.split()[0].replace(",", "")) for line in listed}
    there = {path.name: path.stat().st_size for path in (run / "model").iterdir()}
    assert left_out == "not uploaded: optimizer.pt, pytorch_model.bin"
    assert "the Hub was not asked about the token, the repository and the card's metadata" in unchecked
    assert uploaded == {name: size for name, size in there.items() if name not in left_out}
    size = f"{sum(uploaded.values()):,}"
    assert total.split() == [size, *f"bytes in {len(uploaded)} files for somebody/de-en".split()]


def test_the_model_and_card_of_a_run_folder(run):
    assert push_run(run, "somebody/a", dry_run=True) == push_run(run / "model", "somebody/a", dry_run=True)
    (run / "model" / "README.md").rename(run / "README.md")
    (run / "model" / "curve.png").rename(run / "curve.png")
    files = push_run(run, "somebody/a", dry_run=True).files
    assert files["README.md"] == run / "README.md" and files["curve.png"] == run / "curve.png"


def test_a_run_without_card_gets_one(run):
    (run / "model" / "README.md").unlink()
    scores = {"bleu": {"value": 20.0, "signature": "nrefs:1|tok:13a"}}
    corpus = {"name": "a", "pairs": 1, "source_lang": "de", "target_lang": "en"}
    (run / "recipe.yaml").write_text("data: {}")
    (run / "run.json").write_text(json.dumps({"data": {"train": [corpus]}}))
    (run / "metrics.json").write_text(json.dumps({"updates": 10, "minutes": 1.0, "valid": {"loss": 2.0} | scores}))
    files = push_run(run, "somebody/de-en", dry_run=True).files
    assert "somebody/de-en" in files["README.md"].read_text()
    assert files["README.md"] == run / "model" / "README.md"


def insert(path, text):
    path.write_text(path.read_text() + text)


def name_other_code(model):
    config = json.loads((model / "config.json").read_text())
    config["auto_map"]["AutoModel"] = "evil.ResidualModel"
    (model / "config.json").write_text(json.dumps(config))
    (model / "evil.py").write_text("class ResidualModel: ...\n")


def link_out(model):
    (model.parent / "private.json").write_text("{}")
    (model / "added_tokens.json").symlink_to(model.parent / "private.json")


def show(name):
    def change(model):
        (model / name).write_bytes(b"private")
        insert(model / "README.md", f"![picture]({name})\n")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: insert(model / "layers.py", "import os\n"), "the model code layers.py differs from that of"),
        (name_other_code, "config.json: auto_map: .*evil.ResidualModel.* given, must be"),
        (link_out, "added_tokens.json: a link to .*private.json, outside of the folder"),
        (show(".env"), "README.md: .env is shown as a picture"),
        (show(".env.png"), "README.md: .env.png is shown as a picture"),
        (show("training_args.bin"), "README.md: training_args.bin is shown as a picture"),
    ],
    ids=["changed code", "other code", "link", "dotfile", "hidden picture", "pickle"],
)
def test_files_that_nobody_means_to_upload_are_refused_by_name(run, change, message):
    change(run / "model")
    with pytest.raises(InputError, match=message):
        push_run(run, "somebody/a", dry_run=True)


HF = "hf_" + "aBcDeFgHiJ" * 3 + "kLmN"  # of the form of a token


def test_secrets_are_refused_by_file_and_field_and_not_shown(run):
    model = run / "model"
    (model / CHECKSUMS).unlink()  # the user has edited the files
    config = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(config | {"hub": {"notes": ["x", f"use {HF}"]}}))
    message = r"generation_config\.json: hub\.notes\.1: .* \(Hugging Face Token\)"
    with pytest.raises(InputError, match=message) as error:
        push_run(run, "somebody/a", dry_run=True)
    assert HF not in str(error.value)
    (model / "generation_config.json").write_text(json.dumps(config))
    insert(model / "README.md", f"login(token='{HF}')\n")
    with pytest.raises(InputError, match=r"README\.md: line \d+: looks like a secret \(Hugging Face Token\)"):
        push_run(run, "somebody/a", dry_run=True)


@pytest.mark.parametrize("change", ["# a comment\n", "unused = 1\n"])
def test_the_installed_code_replaces_that_of_another_version_which_computes_the_same(run, change):
    model = run / "model"
    installed = {path.name: path.read_bytes() for path in model.iterdir()}
    insert(model / "norms.py", change)
    if not change.startswith("#"):
        with pytest.raises(InputError, match="the model code norms.py differs from that of the installed"):
            push_run(run, "somebody/a", dry_run=True)
    push_run(run, "somebody/a", dry_run=True, trust_remote_code=not change.startswith("#"))
    assert {path.name: path.read_bytes() for path in model.iterdir()} == installed


def test_an_interrupted_replacement_of_code_is_no_damage(run, monkeypatch):
    def interrupt(path, text):
        files.write_atomically(path, text)
        raise KeyboardInterrupt

    for name in ("layers.py", "norms.py"):
        insert(run / "model" / name, "# a comment\n")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(push, "write_atomically", interrupt)
        push_run(run, "somebody/a", dry_run=True)
    load_checkpoint(run / "model")
    assert "norms.py" in push_run(run, "somebody/a", dry_run=True).files


def test_files_that_an_older_version_did_not_have_are_added(run, monkeypatch):
    code = self_contained.model_code
    monkeypatch.setattr(self_contained, "model_code", lambda config: {**code(config), "newer.py": "a = 1\n"})
    with pytest.raises(InputError, match=r"newer\.py: no such file"):
        push_run(run, "somebody/a", dry_run=True)
    assert "newer.py" in push_run(run, "somebody/a", dry_run=True, trust_remote_code=True).files


OTHER_NORM = 'NORM_TYPES["layer_norm"] = lambda *size, **options: nn.LayerNorm(*size, **{**options, "eps": 1.0})\n'


@pytest.mark.parametrize(("code", "message"), [(OTHER_NORM, "Tensor-likes are not close"), ("1 / 0\n", "division")])
def test_code_that_computes_something_else_is_refused_and_kept(run, code, message):
    insert(run / "model" / "norms.py", code)
    changed = (run / "model" / "norms.py").read_bytes()
    with pytest.raises(InputError, match=f"does not give the results of the installed residual_hf .*: {message}"):
        push_run(run, "somebody/a", dry_run=True, trust_remote_code=True)
    assert (run / "model" / "norms.py").read_bytes() == changed


def test_code_of_a_speech_model_is_compared_on_features(tmp_path):
    fields = {**small_sizes(8, ffn_dim=12), "vocab_size": 23}
    folder = tmp_path / "model"
    ResidualForSpeechSeq2Seq(ResidualConfig(conv_channels=8, num_mel_bins=6, **fields)).save_pretrained(folder)
    insert(folder / "norms.py", "a = 1\n")
    push._check_same_results(folder)
    insert(folder / "norms.py", OTHER_NORM)
    with pytest.raises(InputError, match="Tensor-likes are not close"):
        push._check_same_results(folder)


def test_a_model_without_records_gets_a_card_that_says_where_it_is_from(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, source_lang="de", target_lang="en")
    folder = save_with_card(model, tokenizer, tmp_path / "my [model]", "Converted from <a>.")
    card = push_run(folder, "somebody/a", dry_run=True).files["README.md"].read_text()
    shown = ["- de\n- en\n", "`resi_dual` residual", "Translates German to English. An encoder-decoder Transformer"]
    shown += ["connections. Converted from \\<a\\>.", 'model="my [model]"']
    assert not [text for text in shown if text not in card]
    title = re.sub("^# .*", "# A better title", card, flags=re.MULTILINE)
    (folder / "README.md").write_text(f"{title}residual-hf transcribe my [model] a.wav\n")
    uploaded = push.loading_from("somebody/a", folder / "README.md")
    assert "residual-hf transcribe somebody/a a.wav" in uploaded
    assert '"my [model]"' in card and '"my [model]"' not in uploaded
    assert 'model="somebody/a"' in uploaded and 'from_pretrained("somebody/a"' in uploaded
    (tmp_path / "downloaded.md").write_text(uploaded)
    assert "somebody/a" not in push.loading_from("else/b", tmp_path / "downloaded.md")
    branch = push.loading_from("somebody/a", folder / "README.md", "deep")
    assert 'model="somebody/a", revision="deep"' in branch and 'Tokenizer.from_pretrained("somebody/a", rev' in branch
    assert "hf download somebody/a --revision deep --local-dir deep" in branch
    assert push.loading_from("somebody/a", folder / "README.md", "main") == uploaded
    same = push.loading_from("somebody/a", folder / "README.md", "my [model]")
    assert 'Translator.from_pretrained("my [model]")' in same
    assert 'Translator.from_pretrained("deep")' in branch and "residual-hf transcribe deep a.wav" in branch


@pytest.mark.parametrize(
    ("folder", "name", "message"),
    [
        ("nowhere", "somebody/a", "nowhere: neither a saved model"),
        (".", "somebody/a", "neither a saved model .* nor a finished run"),
        ("run", "somebody/a/b", "repo_id: .*somebody/a/b"),
        ("run", "some body", "repo_id: .*some body"),
    ],
)
def test_bad_arguments(run, folder, name, message, capsys):
    assert main(["push", str(run.parent / folder), name]) == 2
    with pytest.raises(InputError, match=message):
        push_run(run.parent / folder, name)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OfflineModeIsEnabled("offline"), "somebody/a: HF_HUB_OFFLINE is set, unset it to push"),
        (push.HTTPError("Connection refused"), "somebody/a: .* cannot be reached: Connection refused"),
    ],
)
def test_no_way_to_the_hub(run, monkeypatch, error, message):
    def create_repo(self, *arguments, **settings):
        raise error

    monkeypatch.setattr(push, "HfApi", HfApi)
    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    with pytest.raises(InputError, match=message):
        push_run(run, "somebody/a")


def test_mode_that_would_load_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "LN_MODES", dict(connections.LN_MODES))
    mode = connections.register_ln_mode("scripted")(type("Scripted", (PreLN,), {"__module__": "__main__"}))
    folder = save_tiny(tmp_path / "model", ln_mode=mode.name)
    with pytest.raises(InputError, match=r"the code of ln_mode 'scripted' \(__main__\) is missing"):
        push_run(folder, "somebody/a", dry_run=True)


MODE = """
from residual_hf import register_ln_mode
from residual_hf.model.ln_modes import PreLN


@register_ln_mode("{name}")
class Mine(PreLN):
    pass
"""


def test_modes_of_ones_own_in_both_stacks(tmp_path, user_mode):
    names = [f"pushed_{number}" for number in range(4)]
    for name in names:
        user_mode(name, MODE.format(name=name))
    for encoder, decoder in itertools.permutations(names, 2):
        modes = {"encoder_ln_mode": encoder, "decoder_ln_mode": decoder}
        folder = save_tiny(tmp_path / "model", overwrite=True, **modes)
        assert {f"{encoder}.py", f"{decoder}.py"} <= {*validate_model_folder(folder)}


def test_a_mode_in_the_code_of_the_model_is_run_if_trusted(tmp_path, user_mode):
    user_mode("pushed_unknown", MODE.format(name="pushed_unknown"))
    folder = save_tiny(tmp_path / "model", ln_mode="pushed_unknown")
    del connections.LN_MODES["pushed_unknown"]
    with pytest.raises(InputError, match="unknown ln_mode 'pushed_unknown'"):
        push_run(folder, "somebody/a", dry_run=True)
    with pytest.raises(InputError, match=r"README\.md|card"):
        push_run(folder, "somebody/a", dry_run=True, trust_remote_code=True)
    del connections.LN_MODES["pushed_unknown"]
    path = folder / "pushed_unknown.py"
    path.write_text(f"import nothing_of_this_name\n{path.read_text()}")
    with pytest.raises(InputError, match=r"model: .*pushed_unknown\.py"):
        push_run(folder, "somebody/a", dry_run=True, trust_remote_code=True)
