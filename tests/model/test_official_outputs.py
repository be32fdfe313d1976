"""Forward, backward and search of the official implementations, number by number."""

import json
import re
from functools import cache

import numpy as np
import pytest
import torch
from support import ROOT
from support.reference import FIXTURES, Fixture

from residual_hf.conversion.fairseq import rename_parameter, split_parameter
from residual_hf.losses.label_smoothing import smoothed_cross_entropy
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

OFFICIAL_MODELS = sorted(path.stem for path in FIXTURES.glob("*.npz") if not path.stem.startswith("language_model"))

load = cache(Fixture)
WITHOUT_STATES = {
    "dlcl_post",
    "dlcl_pre",
    "deep_norm_torchscale",
    "fixup",
    "sub_ln",
    "trained_post_ln",
    "trained_resi_dual",
}
built = cache(lambda fixture: fixture.model("sdpa"))


def model_of(fixture, attention="sdpa"):
    """The model of a fixture; tests only read it."""
    model = built(fixture)
    model.set_attn_implementation(attention)
    return model


@pytest.fixture(params=OFFICIAL_MODELS)
def fixture(request):
    return load(request.param)


def run(fixture, model, source=None):
    source = fixture.source if source is None else source
    return model(
        input_ids=source,
        attention_mask=source.ne(1),
        decoder_input_ids=fixture.decoder_input,
        output_hidden_states=True,
    )


def close(fixture, ours, theirs):
    """To 1e-5, absolute or relative; where no norm bounds the values, relative to the largest of them."""
    unbounded = fixture.settings["ln_mode"] in ("t_fixup", "fixup")
    atol = 1e-5 * theirs.abs().max().item() if unbounded else 1e-5
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=atol)


def our_names(name, tensor, config):
    """The parameters of ours that one official parameter became."""
    parts = (part for part, _ in split_parameter(name, tensor, config))
    return [part if part.startswith("model.") else rename_parameter(part) for part in parts]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_outputs_and_layer_states(fixture, attention):
    with torch.no_grad():
        outputs = run(fixture, model_of(fixture, attention))
    source, target = fixture.source.ne(1), fixture.decoder_input.ne(1)
    close(fixture, outputs.encoder_last_hidden_state[source], fixture.output("encoder_out")[source])
    close(fixture, outputs.logits[target], fixture.output("logits")[target])
    for stack, states, mask in (
        ("encoder", outputs.encoder_hidden_states, source),
        ("decoder", outputs.decoder_hidden_states, target),
    ):
        official = [value for name, value in fixture.group("output/").items() if name.startswith(f"{stack}_state_")]
        official = official[-len(states) :]
        assert bool(official) == (fixture.settings["fixture"] not in WITHOUT_STATES)
        skipped = len(states) - len(official)  # older forks do not record the embedding
        for ours, theirs in zip(states[skipped:-1], official, strict=False):  # the last one is the stack's output
            close(fixture, ours[mask], theirs[mask])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_side_makes_no_difference(fixture, side):
    padded = fixture.source.clone()
    for row in padded:
        tokens = row[row.ne(1)]
        row.fill_(1)
        row[slice(len(row) - len(tokens), None) if side == "left" else slice(len(tokens))] = tokens
    with torch.no_grad():
        logits = run(fixture, model_of(fixture), padded).logits
    target = fixture.decoder_input.ne(1)
    close(fixture, logits[target], fixture.output("logits")[target])


def test_loss_and_gradients(fixture):
    model = model_of(fixture)
    labels = fixture.target.masked_fill(fixture.target == 1, -100)
    sums = smoothed_cross_entropy(run(fixture, model).logits, labels, epsilon=0.1, form="fairseq")
    assert sums.nll.item() == pytest.approx(float(fixture.output("nll_sum")), rel=1e-4)
    assert sums.smoothed.item() == pytest.approx(float(fixture.output("label_smoothed_sum")), rel=1e-4)
    parameters = dict(model.named_parameters())
    gradients = dict(zip(parameters, torch.autograd.grad(sums.smoothed, list(parameters.values())), strict=True))
    official = fixture.group("grad_norm/")
    largest = max(official.values()).item()
    compared = set()
    for name, norm in official.items():
        ours = our_names(name, fixture.group("weight/")[name], model.config)
        if set(ours) <= set(gradients):
            mine = torch.cat([gradients[part].flatten() for part in ours]).norm().item()
            # the gradient of a key bias is zero but for rounding: softmax ignores a constant
            assert mine == pytest.approx(norm.item(), rel=1e-4, abs=1e-6 * largest), name
            compared.update(ours)
    assert compared == set(gradients)


@pytest.mark.parametrize("name", ["trained_resi_dual", "trained_post_ln"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_best_hypotheses_and_scores(name, attention):
    """With `early_stopping=True` (a sentence is done when as many hypotheses as beams are finished: fairseq's rule)
    and scores divided by (number of tokens, `</s>` counted) ** length_penalty.
    """
    fixture = load(name)
    model = model_of(fixture, attention)
    searches = json.loads((FIXTURES / f"beam_{name}.json").read_text())["hypotheses"]
    for search, official in searches.items():
        beams, penalty = re.fullmatch(r"beam(\d+)_lenpen([\d.]+)", search).groups()
        settings = {"length_penalty": float(penalty), "early_stopping": True} if int(beams) > 1 else {}
        found = model.generate(
            input_ids=fixture.source,
            attention_mask=fixture.source.ne(1),
            num_beams=int(beams),
            num_return_sequences=int(beams),
            max_new_tokens=21,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
        for i, hypotheses in enumerate(official):
            row = found.sequences[i * int(beams)][1:].tolist()
            best = hypotheses[0]
            assert row[: len(best["tokens"])] == best["tokens"], (search, i)
            assert set(row[len(best["tokens"]) :]) <= {1}
            if int(beams) > 1:
                assert found.sequences_scores[i * int(beams)].item() == pytest.approx(best["score"], abs=1e-5)


INITS = {
    "post_ln": {},
    "resi_dual": {},
    "b2t": {},
    "b2t_no_ln": {},
    "deep_norm": {},
    "normformer": {"encoder_ln_mode": "pre_ln", "ln_mode_options": {"scale_residual": True}},
    "rezero": {},
    "t_fixup": {},
    "looklinear": {"ln_mode": "post_ln", "init_style": "looklinear"},
}


@pytest.mark.parametrize("name", INITS)
def test_initial_standard_deviations(name):
    """Within 3 % of the official code, for each kind of parameter of each stack over its layers."""
    official = json.loads((FIXTURES / f"init_{name}.json").read_text())
    config = ResidualConfig(
        vocab_size=official["vocab_size"],
        d_model=official["d_model"],
        encoder_layers=official["encoder_layers"],
        decoder_layers=official["decoder_layers"],
        encoder_ffn_dim=official["ffn_dim"],
        decoder_ffn_dim=official["ffn_dim"],
        encoder_attention_heads=official["heads"],
        decoder_attention_heads=official["heads"],
        **{"ln_mode": name, **INITS[name]},
    )
    deviations: dict[str, list[float]] = {}
    for seed in range(4):  # as many as the official figures are the mean of
        torch.manual_seed(seed)
        for parameter, values in ResidualForConditionalGeneration(config).named_parameters():
            deviations.setdefault(parameter, []).append(values.detach().std(correction=0).item())
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for official_name, figures in official["parameters"].items():
        shape = torch.empty(figures["shape"])
        for ours in our_names(official_name, shape, config):
            if ours in deviations:
                # queries and keys share one law, and their biases are short: they are compared together
                stack, kind = ours.split(".")[1], re.sub(r"[qk]_proj", "qk_proj", ".".join(ours.split(".")[-2:]))
                if kind == "v_proj.bias":
                    kind = "qk_proj.bias"
                by_kind.setdefault(f"{stack} {kind}", []).append((np.mean(deviations[ours]), figures["std"]))
    assert sum(map(len, by_kind.values())) == len(deviations)
    for kind, pairs in by_kind.items():
        mine, theirs = np.mean(pairs, axis=0)
        assert mine == pytest.approx(theirs, rel=0.03, abs=1e-12), kind


def test_the_documentation_names_the_modes_with_official_outputs():
    modes = {load(name).config().of(stack).ln_mode for name in OFFICIAL_MODELS for stack in ("encoder", "decoder")}
    text = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8")
    named = re.search(r"The outputs of (.*?) are also compared with those of official code", text, re.DOTALL)[1]
    assert re.findall(r"`(\w+)`", named) == sorted(modes)
