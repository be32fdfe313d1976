"""Probes of ResNets, and the effective scale of a shortcut."""

import math

import ablation
import dependency
import paper_probes
import pytest
import torch
from residual_stream import position_recall
from skip_scale import effective_scale

from residual_hf import ResidualConfig, ResidualForImageClassification, ResidualImageConfig, ResidualModel
from residual_hf.base.errors import InputError
from residual_hf.conversion import fold
from residual_hf.probes import gradients, representations

BATCH = {
    "pixel_values": torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)),
    "labels": torch.tensor([0, 1, 1, 0]),
}


def resnet(mode="xskip_ln", **fields):
    torch.manual_seed(0)
    return ResidualForImageClassification(ResidualImageConfig(depth=14, ln_mode=mode, **fields)).eval()


def test_gradient_norms_are_those_of_autograd():
    model = resnet("xskip")
    rows = {(row.layer, row.location): row.norm for row in gradients.gradient_norms(model, BATCH)}
    assert {layer for layer, _ in rows} == set(range(1, 7))
    states = []
    layers = model.model.encoder.layers
    hooks = [layer.register_forward_hook(lambda _, args, output: states.append(output[0])) for layer in layers]
    loss = model(**BATCH).loss
    for hook in hooks:
        hook.remove()
    for number, gradient in enumerate(torch.autograd.grad(loss, states, retain_graph=True), start=1):
        assert rows[number, "output"] == pytest.approx(gradient.norm().item(), rel=1e-4)  # also between stages
    loss.backward()
    weights = [layers[1].ffn.conv1.weight.grad, layers[1].ffn.conv2.weight.grad]
    expected = sum(weight.square().sum() for weight in weights).sqrt().item()
    assert rows[2, "weights"] == pytest.approx(expected, rel=1e-4)


def test_running_means_stay():
    model = resnet("xskip")
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gradients.gradient_norms(model, BATCH, training=True)
    assert before and all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_shares_ranges_and_similarities():
    model = resnet(ln_mode_options={"skip_scale": 3.0})
    shares = {row.layer: row.share for row in representations.branch_share(model, BATCH)}
    x, a = [], []
    layer = model.model.encoder.layers[1]
    layer.ffn_residual.register_forward_pre_hook(lambda _, args: x.append(args[0][0]))
    layer.ffn.register_forward_hook(lambda _, args, output: a.append(output[0]))
    with torch.no_grad():
        model(BATCH["pixel_values"])
    branch, shortcut = a[0].std(-1, correction=0).mean(), 3 * x[0].std(-1, correction=0).mean()
    assert len(shares) == 6 and shares[2] == pytest.approx(float(branch / (branch + shortcut)), rel=1e-4)
    assert len(representations.activation_ranges(model, BATCH)) == 6 * 6
    pairs = {(row.layer, row.other) for row in paper_probes.layer_cosines(model, BATCH)}
    assert (5, 6) in pairs and (1, 6) not in pairs  # states of two stages have no cosine
    assert len(paper_probes.effective_rank(model, BATCH)) == 6
    assert 1 in {row.layer for row in paper_probes.representation_change(model, BATCH)}
    assert [row.layer for row in paper_probes.branch_dependency(model, BATCH)] == [1, 2, 4, 6]


def test_layers_that_reduce_images_stay():
    rows = ablation.layer_removal(resnet("xskip"), BATCH)
    assert [row.layer for row in rows] == [0, 1, 2, 4, 6]


def test_what_needs_states_of_one_size_says_so():
    with pytest.raises(InputError, match="those of a ResNet change between stages"):
        dependency.dependency_matrix(resnet(), BATCH)
    sizes = {"image_size": 8, "d_model": 16, "encoder_layers": 1}
    config = ResidualImageConfig(architecture="vit", ln_mode="post_ln", norm_type="batch_norm", **sizes)
    with pytest.raises(InputError, match="not defined for BatchNorm"):
        dependency.dependency_matrix(ResidualForImageClassification(config), BATCH)
    with pytest.raises(InputError, match="position_recall needs batches with attention_mask and labels"):
        position_recall(resnet(), BATCH)
    with pytest.raises(ValueError, match="ResidualForImageClassification cannot be folded: only models of text"):
        fold(resnet())


def test_effective_scale_of_constants_and_learned_weights():
    model = resnet(ln_mode_options={"skip_scale": 3.0, "branch_scale": 2.0})
    assert [row.scale for row in effective_scale(model, BATCH)] == [1.5] * 6
    learned = resnet("wskip_ln")
    with torch.no_grad():
        learned.model.encoder.layers[2].ffn_residual.w.copy_(torch.tensor([-1.0, 2.0]).repeat(16))
    assert effective_scale(learned, BATCH)[2].scale == 1.5
    assert [row.scale for row in effective_scale(resnet("xskip"), BATCH)] == [1.0] * 6
    assert effective_scale(resnet("attention_residuals"), BATCH) == []
    assert {row.scale for row in effective_scale(resnet("rezero"), BATCH)} == {math.inf}


@pytest.mark.parametrize("norm_type", ["layer_norm", "batch_norm"])
def test_effective_scale_of_rskip_is_that_of_an_equal_xskip(norm_type):
    """With lambda = 3, a branch of zero bias: y_3 is LN of (1 + s1 + s1 s2) x + a, up to a shift and a factor."""
    model = resnet("rskip_ln", norm_type=norm_type, ln_mode_options={"skip_order": 3})
    connection = model.model.encoder.layers[0].ffn_residual
    dim = 0 if norm_type == "batch_norm" else -1
    seen = []
    connection.norms[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(0, 1)))
    connection.norms[1].register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(0, 1)))
    with torch.no_grad():
        connection.norms[0].weight.fill_(0.5)
        connection.norms[1].weight.fill_(2.0)
        model(BATCH["pixel_values"])
    s1, s2 = (states.std(dim, correction=0).mean().item() for states in seen)
    scale = effective_scale(model, BATCH)[0].scale
    assert scale == pytest.approx(1 + s1 / 0.5 + s1 / 0.5 * s2 / 2, rel=1e-4)


def test_effective_scale_needs_a_deviation():
    model = resnet("rskip_ln", norm_type="scale_norm")
    with pytest.raises(InputError, match="needs layer or batch norms, not ScaleNorm"):
        effective_scale(model, BATCH)


def test_effective_scale_of_text_leaves_out_padding():
    config = ResidualConfig(
        is_encoder_only=True, ln_mode="rskip_ln", vocab_size=20, d_model=8, encoder_layers=1, encoder_ffn_dim=8,
        encoder_attention_heads=2, dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = ResidualModel(config).eval()
    ids = torch.tensor([[5, 6, 7, 2]])
    padded = torch.cat([ids, torch.full((1, 3), config.pad_token_id)], dim=1)
    short, long = (effective_scale(model, {"input_ids": x, "attention_mask": x.ne(1).long()}) for x in (ids, padded))
    assert [row.scale for row in short] == pytest.approx([row.scale for row in long], rel=1e-4)
    assert [row.sublayer for row in short] == ["self_attention", "feed_forward"]
