"""ResNets and vision Transformers: equal to plain ones, for every mode, saved with their code."""

import copy

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.models import OURS, shapes_of
from support.plain_resnet import PlainResNet, copy_weights
from support.single_stacks import disturbed
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, ViTConfig, ViTForImageClassification

from residual_hf import ResidualConfig, ResidualForImageClassification, ResidualImageConfig, ResidualImageModel
from residual_hf.model.norms import BatchNorm

VIT = {"architecture": "vit", "encoder_layers": 2, "d_model": 16, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
LABELS = torch.tensor([1, 2, 0])


def images(height=10, width=14):
    return torch.randn(3, 3, height, width, generator=torch.Generator().manual_seed(3))


def resnet(mode="xskip", depth=8, **fields):
    torch.manual_seed(0)
    fields = {"num_labels": 5, **fields}
    return ResidualForImageClassification(ResidualImageConfig(ln_mode=mode, depth=depth, **fields))


def test_sizes_are_those_of_the_paper():
    """He et al. 2015, table 6: 0.27, 0.46, 0.66, 0.85 and 1.7 million parameters."""
    with torch.device("meta"):
        models = [resnet(depth=depth, num_labels=10) for depth in (20, 32, 44, 56, 110)]
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    assert [round(count / 1e6, 2) for count in counts] == [0.27, 0.46, 0.66, 0.85, 1.73]
    assert models[-1].config.encoder_layers == 54


@pytest.mark.parametrize("size", [(8, 8), (9, 13)])
def test_without_scale_and_norms_it_is_the_plain_resnet(size):
    model = resnet(depth=14).train()
    plain = copy_weights(model, PlainResNet(14, 5)).train()
    x = images(*size)
    ours, theirs = model(x).logits, plain(x)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    for logits in (ours, theirs):
        logits.square().sum().backward()
    block = model.model.encoder.layers[3].ffn
    assert torch.allclose(block.conv1.weight.grad, plain.blocks[3].branch[2].weight.grad, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert torch.allclose(model.eval()(x).logits, plain.eval()(x), rtol=1e-5, atol=1e-5)


def connected(model, join, streams=1):
    """The plain network with the connections of a model, `join(connection, streams, branch)` on the last dimension."""
    connections = [layer.ffn_residual for layer in model.model.encoder.layers]

    def joined(i, members, a):
        result = join(connections[i], [x.movedim(1, -1) for x in members], a.movedim(1, -1))
        return tuple(x.movedim(-1, 1) for x in result)

    return copy_weights(model, PlainResNet(model.config.depth, 5, joined, streams)).eval()


JOINS = {
    "xskip": (lambda c, s, a: (0.5 * s[0] + a,), {"skip_scale": 0.5}),
    "xskip_ln": (lambda c, s, a: (c.norm(3 * s[0] + 2 * a),), {"skip_scale": 3.0, "branch_scale": 2.0}),
    "rskip_ln": (lambda c, s, a: (c.norms[1](s[0] + c.norms[0](s[0] + a)),), {"skip_order": 2}),
    "wskip_ln": (lambda c, s, a: (c.norm(c.w * s[0] + a),), {"skip_init": 2.0}),
    "b2t": (lambda c, s, a: (c.norm(2 * s[0] + a),), {}),  # a layer has one sub-layer
    "resi_dual": (lambda c, s, a: (c.norm(s[0] + a), s[1] + a), {}),
}


@pytest.mark.parametrize("mode", JOINS)
def test_a_block_is_joined_by_the_equation_of_its_mode(mode):
    join, options = JOINS[mode]
    model = disturbed(resnet(mode, depth=14, ln_mode_options=options))
    plain = connected(model, join, streams=1 + (mode == "resi_dual"))
    boundary, x = model.model.encoder.boundary, images()
    with torch.no_grad():
        end = (lambda s: s[0] + boundary.norm(s[1].movedim(1, -1)).movedim(-1, 1)) if mode == "resi_dual" else None
        theirs = plain(x) if end is None else plain(x, end)
        assert torch.allclose(model(x).logits, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", shapes_of(mode for mode in OURS if mode != "realformer"))
def test_every_mode_trains_and_reloads(mode, tmp_path):
    model = disturbed(resnet(mode)).train()
    model(images(), labels=LABELS).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert type(loaded) is ResidualForImageClassification
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    with torch.no_grad():
        assert torch.equal(loaded(images()).logits, model.eval()(images()).logits)


def test_of_several_streams_all_take_the_shortcut():
    """Streams that were cut or padded differently would not add up to that of Pre-LN."""
    one = resnet("pre_ln").eval()
    many = resnet("hyper_connections", ln_mode_options={"streams": 3, "dynamic": False}).eval()
    many.load_state_dict(one.state_dict(), strict=False)
    with torch.no_grad():
        for layer in many.model.encoder.layers:
            for name, value in layer.ffn_residual.starting_values().items():
                layer.ffn_residual.get_parameter(name).copy_(torch.as_tensor(value))
        assert torch.allclose(many(images()).logits, one(images()).logits, rtol=1e-4, atol=1e-5)


def test_connections_with_batch_norm():
    model = resnet("xskip_ln", norm_type="batch_norm").train()
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    assert [norm.num_features for norm in norms] == [16, 32, 64]
    states = model(images(), output_hidden_states=True).hidden_states[1]
    assert torch.allclose(states.flatten(0, 1).mean(0), torch.zeros(16), atol=1e-5)
    assert torch.allclose(states.flatten(0, 1).std(0, correction=0), torch.ones(16), atol=1e-3)
    assert norms[0].running_mean.ne(0).any()
    with pytest.raises(StrictDataclassError, match="norm_type: 'batch_norm' given, must be one of"):
        ResidualConfig(norm_type="batch_norm")


def test_states_are_those_of_each_stage():
    outputs = resnet(depth=14)(images(9, 13), output_hidden_states=True)
    assert [tuple(x.shape[1:]) for x in outputs.hidden_states] == [
        (9 * 13, 16), (9 * 13, 16), (9 * 13, 16), (5 * 7, 32), (5 * 7, 32), (3 * 4, 64), (3 * 4, 64)
    ]  # fmt: skip


def test_gradients_are_the_same_with_checkpointing():
    torch.manual_seed(0)
    config = {**VIT, "image_size": 8, "num_labels": 5}
    model = ResidualForImageClassification(ResidualImageConfig(ln_mode="resi_dual", **config)).train()
    again = copy.deepcopy(model)
    again.gradient_checkpointing_enable()
    for each in (model, again):
        each(images(8, 8), labels=LABELS).loss.backward()
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fields", [{"depth": 8}, {**VIT, "image_size": 8, "norm_type": "batch_norm"}])
def test_running_means_would_count_each_batch_twice_with_checkpointing(fields):
    config = ResidualImageConfig(**fields)
    for model in (ResidualForImageClassification(config), ResidualImageModel(config)):
        with pytest.raises(ValueError, match="does not support"):
            model.gradient_checkpointing_enable()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 21}, "depth must be 6n \\+ 2"),
        ({"depth": 2}, "depth must be 6n \\+ 2"),
        ({"d_model": 30}, "d_model must be a multiple of 4"),
        ({"ln_mode": "realformer"}, "'realformer' passes on scores of attention"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop: 0.1 given, but a ResNet of depth 20 does not have it"),
        ({"classifier_pooling": "first"}, "classifier_pooling: 'first' given, but a ResNet of depth 20"),
        ({"init_style": "fairseq_main"}, "init_style: 'fairseq_main' given, but a ResNet"),
        ({"activation_function": "gelu"}, "activation_function: 'gelu' given, but a ResNet"),
        ({"encoder_layers": 5}, "encoder_layers must be 9 in a ResNet of depth 20, not 5"),
        ({"position_embedding_type": "sinusoidal"}, "position_embedding_type must be 'none' in a ResNet"),
        ({"vocab_size": 100}, "vocab_size: 100 given"),
        ({"reads_capitals": True}, "reads_capitals: True given"),
        ({"decoder_layers": 2}, "decoder_layers: 2 given"),
        ({"architecture": "vit", "depth": 20}, "depth: 20 given"),
        ({"architecture": "vit", "patch_size": 5}, "patch_size must divide image_size 32, not 5"),
        ({"architecture": "vit", "patch_size": 0}, "patch_size: 0 given, must be an integer >= 1"),
        ({"architecture": "vit", "max_position_embeddings": 7}, "max_position_embeddings must be 64 in a ViT"),
        ({"architecture": "resnext"}, "architecture: 'resnext' given"),
    ],
)
def test_refused(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        ResidualImageConfig(**fields)


def test_images_of_another_shape_are_named():
    for x in (torch.zeros(2, 1, 8, 8), torch.zeros(3, 8, 8)):
        with pytest.raises(ValueError, match=r"pixel_values of shape .* must be \(batch, 3, height, width\)"):
            resnet()(x)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("mode", ["post_ln", "b2t", "dlcl_pre", "realformer"])
def test_vision_transformer(mode, pooling, tmp_path):
    fields = {**VIT, "image_size": 8, "num_labels": 5, "classifier_pooling": pooling}
    model = disturbed(ResidualForImageClassification(ResidualImageConfig(ln_mode=mode, **fields)))
    outputs = model(images(8, 8), labels=LABELS, output_hidden_states=True)
    outputs.loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert outputs.hidden_states[0].shape == (3, 4 + (pooling == "first"), 16)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded(images(8, 8)).logits, outputs.logits)
    with pytest.raises(ValueError, match="images of 8 x 12 given, must be 8 x 8"):
        model(images(8, 12))


@pytest.mark.parametrize("fields", [{"depth": 8}, {**VIT, "image_size": 8}], ids=["resnet", "vit"])
def test_images_in_fp32_are_read_in_half_precision(fields):
    model = ResidualForImageClassification(ResidualImageConfig(**fields)).bfloat16().eval()
    assert model(images(8, 8)).logits.dtype == torch.bfloat16


def test_pre_ln_is_the_vit_of_transformers():
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    theirs = disturbed(ViTForImageClassification(ViTConfig(**sizes, intermediate_size=32, num_labels=5)))
    config = ResidualImageConfig(
        **VIT, ln_mode="pre_ln", image_size=8, num_labels=5, classifier_pooling="first", activation_function="gelu",
        layer_norm_eps=theirs.config.layer_norm_eps,
    )  # fmt: skip
    model = ResidualForImageClassification(config).eval()
    places = {
        "embeddings.cls_token": "embed_tokens.token",
        "embeddings.position_embeddings": "embed_positions.weight",
        "embeddings.patch_embeddings.projection": "embed_tokens.projection",
        "layernorm_before": "self_attn_residual.norm",
        "layernorm_after": "ffn_residual.norm",
        "attention.attention.query": "self_attn.q_proj",
        "attention.attention.key": "self_attn.k_proj",
        "attention.attention.value": "self_attn.v_proj",
        "attention.q_proj": "self_attn.q_proj",
        "attention.k_proj": "self_attn.k_proj",
        "attention.v_proj": "self_attn.v_proj",
        "attention.output.dense": "self_attn.out_proj",
        "attention.o_proj": "self_attn.out_proj",
        "intermediate.dense": "ffn.fc1",
        "mlp.fc1": "ffn.fc1",
        "mlp.fc2": "ffn.fc2",
        "output.dense": "ffn.fc2",
        "vit.layernorm": "vit.boundary.norm",
        "encoder.layer.": "layers.",
        "vit.": "model.encoder.",
        "classifier.": "score.",
    }
    for name, tensor in theirs.state_dict().items():
        for there, here in places.items():
            name = name.replace(there, here)
        model.state_dict()[name].copy_(tensor.squeeze())
    with torch.no_grad():
        assert torch.allclose(model(images(8, 8)).logits, theirs(images(8, 8)).logits, rtol=1e-5, atol=1e-5)


def test_config_and_base_model(tmp_path):
    config = ResidualImageConfig(depth=14, ln_mode="rskip_ln", ln_mode_options={"skip_order": 3}, num_labels=3)
    model = ResidualForImageClassification(config)
    model.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert type(again) is ResidualImageConfig and again.to_diff_dict() == config.to_diff_dict()
    assert not {"vocab_size", "decoder_layers"} & set(config.to_diff_dict())
    with pytest.raises(ValueError, match="encoder_layers must be 3 in a ResNet of depth 8, not 6"):
        ResidualImageModel(AutoConfig.from_pretrained(tmp_path, depth=8))
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is ResidualImageModel and base(**base.dummy_inputs).last_hidden_state.shape == (2, 64, 64)
    assert torch.equal(base.encoder.layers[0].ffn.conv1.weight, model.model.encoder.layers[0].ffn.conv1.weight)
