"""What PyTorch, Transformers and PEFT can do to a model of the family: checkpoint, cast, compile, export, adapt."""

import copy
import inspect
import itertools

import accelerate
import peft
import pytest
import torch
from support.models import LABELS, SOURCE, TARGET, every_shape, logits_of, make, randomise
from support.single_stacks import causal
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import TransformersKwargs
from typing_extensions import Unpack

from residual_hf import ResidualForImageClassification, ResidualImageConfig
from residual_hf.model.layers import BRANCHES
from residual_hf.model.modeling_residual import (
    ResidualDecoder,
    ResidualForConditionalGeneration,
    ResidualModel,
)
from residual_hf.model.stacks import ResidualEncoder

INPUTS = {"input_ids": SOURCE, "attention_mask": SOURCE.ne(1), "decoder_input_ids": TARGET}


def gradients(model):
    model.zero_grad()
    torch.manual_seed(0)
    model(SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss.backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@every_shape
def test_gradient_checkpointing_changes_no_gradient(mode):
    model = randomise(make(mode, None, dropout=0.1)).double().train()
    plain, runs = gradients(model), []
    model.model.decoder.layers[0].ffn.register_forward_hook(lambda *_: runs.append(1))
    for reentrant in (False, True):
        runs.clear()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        checkpointed = gradients(model)
        assert len(runs) == 2  # the forward is repeated in the backward
        assert [name for name, gradient in checkpointed.items() if gradient is None] == []
        for name, gradient in plain.items():
            torch.testing.assert_close(
                checkpointed[name], gradient, msg=lambda text, name=f"{name}, {reentrant=}": f"{name}: {text}"
            )


@every_shape
def test_half_precision_stays_near_full_precision(mode):
    model = make(mode, None)
    full = logits_of(model)
    for dtype, limit in ((torch.bfloat16, 0.05), (torch.float16, 0.01)):
        half = logits_of(copy.deepcopy(model).to(dtype))
        assert half.dtype == dtype
        assert (half.float() - full).norm() / full.norm() < limit, dtype


@pytest.mark.parametrize("mode", ["resi_dual", "post_ln", "pre_ln"])
def test_half_precision_is_loaded_and_generates(mode, tmp_path):
    make(mode).save_pretrained(tmp_path)
    model = ResidualForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.generate(SOURCE, attention_mask=SOURCE.ne(1), max_new_tokens=4, num_beams=2).shape[0] == 2


@every_shape
def test_autocast_gives_finite_gradients(mode):
    model = make(mode, None).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
def test_forward_is_one_graph():
    """`fullgraph=True` refuses a graph break; the eager backend spares the C compiler."""
    torch._dynamo.reset()
    model = randomise(make("resi_dual", encoder_layers=1, decoder_layers=1))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(**INPUTS).logits, model(**INPUTS).logits)


class Branch(torch.nn.Module):
    """In the place of an attention or a feed-forward that a mode leaves as it is."""

    def forward(self, x, encoder_hidden_states=None, **kwargs):
        return ((x if encoder_hidden_states is None else x + encoder_hidden_states).tanh(),)


@every_shape
def test_layers_of_a_mode_are_one_graph(mode):
    """The layers and the boundary of the stream: the rest of a model is the same for all modes.

    A decoder where the mode puts something into the branches, which differs between the two attentions.
    """
    torch._dynamo.reset()
    model = randomise(make(mode, None, encoder_layers=2, decoder_layers=2)).model
    places = list(itertools.product(model.decoder.layers, BRANCHES.values()))
    is_inside = mode == "realformer" or any(getattr(layer, name).inner for layer, name in places)
    for layer, name in places if is_inside else itertools.product(model.encoder.layers, ("self_attn", "ffn")):
        if mode != "realformer" and not getattr(layer, name).inner:  # it adds to the scores
            setattr(layer, name, Branch())
    stack = model.decoder if is_inside else model.encoder
    inputs = torch.randn(1 + is_inside, 2, 4, 16)  # the decoder also reads the memory
    compiled = torch.compile(stack.run_layers, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(*inputs), stack.run_layers(*inputs))


@pytest.mark.slow
def test_training_step_is_one_graph():
    """With two streams; test_single_stack_capabilities.py has one."""
    torch._dynamo.reset()
    model = randomise(make("resi_dual", encoder_layers=1, decoder_layers=1)).train()
    plain = gradients(model)
    compiled = gradients(torch.compile(model, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close([*compiled.values()], [*plain.values()], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "layers"),
    [
        ("resi_dual", 1),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in (("dlcl_pre", 2), ("normformer", 1))),
    ],
)
def test_model_is_exported(mode, layers):
    """test_export_of_decoders.py has RealFormer."""
    model = randomise(make(mode, None, encoder_layers=1, decoder_layers=layers))
    batch, source, target = (torch.export.Dim(name, min=2, max=16) for name in ("batch", "source", "target"))
    shapes = {"input_ids": {0: batch, 1: source}, "attention_mask": {0: batch, 1: source}}
    shapes["decoder_input_ids"] = {0: batch, 1: target}
    inputs = {**INPUTS, "use_cache": False}
    program = torch.export.export(model, (), inputs, dynamic_shapes={**shapes, "use_cache": None})
    longer = {"input_ids": torch.full((3, 7), 9), "decoder_input_ids": torch.full((3, 6), 8)}
    longer["attention_mask"] = longer["input_ids"].ne(1)
    with torch.no_grad():
        torch.testing.assert_close(
            program.module()(**longer, use_cache=False).logits, model(**longer).logits, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_loading_goes_through_the_meta_device(positions, tmp_path):
    model = randomise(make("resi_dual", position_embedding_type=positions))
    model.save_pretrained(tmp_path)
    loaded = ResidualForConditionalGeneration.from_pretrained(tmp_path, device_map="cpu", low_cpu_mem_usage=True)
    assert not any(tensor.is_meta for tensor in (*loaded.parameters(), *loaded.buffers()))
    assert torch.equal(logits_of(loaded), logits_of(model))
    with torch.device("meta"):
        empty = ResidualForConditionalGeneration(model.config)
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_a_model_is_dispatched_over_devices_layer_by_layer(tmp_path):
    """The second stream of a layer moves with the first: here over "disk" and CPU, as there is one device."""
    model = randomise(make("resi_dual"))
    model.save_pretrained(tmp_path / "model")
    names = {"model.encoder", "model.decoder.embed_tokens", "model.decoder.embed_positions", "model.decoder.boundary"}
    device_map = dict.fromkeys(names, "cpu") | {"lm_head": "cpu"}
    device_map |= {f"model.decoder.layers.{i}": "disk" if i == 1 else "cpu" for i in range(3)}
    loaded = ResidualForConditionalGeneration.from_pretrained(
        tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offload"
    )
    assert accelerate.utils.infer_auto_device_map(model)
    assert torch.equal(logits_of(loaded), logits_of(model))


@every_shape
def test_offloaded_weights_give_the_same_logits(mode):
    """Every module loads its own weights when it is called, also the normalized output projection."""
    model = randomise(make(mode, None, fix_norm=True, encoder_layers=1, decoder_layers=2))
    old = logits_of(model)
    accelerate.cpu_offload(model, "cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.equal(logits_of(model), old)


def test_layers_are_not_split_over_devices():
    model = make("resi_dual", d_model=64, encoder_ffn_dim=256, decoder_ffn_dim=256)
    sizes = accelerate.utils.compute_module_sizes(model)
    limit = sizes["model.encoder.layers.0"] * 2
    device_map = accelerate.infer_auto_device_map(
        model, {0: limit, "cpu": 10**9}, no_split_module_classes=model._no_split_modules
    )
    inside = [name for name in device_map if ".layers." in name and name.count(".") > 3]
    assert inside == []


@pytest.mark.parametrize(
    "build",
    [lambda: make("resi_dual"), causal, lambda: ResidualForImageClassification(ResidualImageConfig(depth=8))],
    ids=["both_stacks", "decoder", "resnet"],
)
def test_fsdp_finds_the_layers(build):
    model = build()
    plugin = accelerate.FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")
    plugin.set_auto_wrap_policy(model)
    layers = {type(module) for module in model.modules() if isinstance(module, GradientCheckpointingLayer)}
    assert plugin.auto_wrap_policy.keywords["transformer_layer_cls"] == layers


def train_adapter(adapted):
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):
        adapted(input_ids=SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss.backward()
        optimizer.step()
    return adapted.eval()


def test_lora_trains_its_matrices_only(tmp_path):
    model = randomise(make("resi_dual"))
    old = logits_of(model)
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q_proj", "v_proj", "fc1", "fc2"])
    adapted = peft.get_peft_model(model, config)
    assert torch.equal(logits_of(adapted), old)
    train_adapter(adapted)
    assert all("lora_" in name for name, p in adapted.named_parameters() if p.requires_grad)
    new = logits_of(adapted)
    assert not torch.allclose(new, old)
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(randomise(make("resi_dual")), tmp_path)
    assert torch.equal(logits_of(again.eval()), new)
    torch.testing.assert_close(logits_of(adapted.merge_and_unload()), new, rtol=1e-4, atol=1e-5)


def test_lora_of_the_output_layer_needs_its_own_table_and_no_criterion():
    model = randomise(make("resi_dual", **SEPARATE))
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["lm_head"])
    adapted = train_adapter(peft.get_peft_model(model, config))
    new = logits_of(adapted)
    model.criterion = lambda *arguments, **options: torch.tensor(0.0)
    with pytest.raises(ValueError, match="criterion: given for a model with an adapter of lm_head"):
        adapted(input_ids=SOURCE, labels=LABELS)
    model.criterion = None
    torch.testing.assert_close(logits_of(adapted.merge_and_unload()), new, rtol=1e-4, atol=1e-4)


def test_a_merged_model_with_two_vocabularies_is_saved_with_its_tied_output(tmp_path):
    model = randomise(make("resi_dual", share_encoder_decoder_embeddings=False))
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q_proj"])
    merged = train_adapter(peft.get_peft_model(model, config)).merge_and_unload()
    merged.save_pretrained(tmp_path)
    assert torch.equal(logits_of(ResidualForConditionalGeneration.from_pretrained(tmp_path)), logits_of(merged))


def test_adapters_of_the_projections_of_an_adaptive_softmax_are_refused():
    model = causal(adaptive_cutoffs=[10])
    config = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": "all-linear"}
    with pytest.raises(ValueError, match="adaptive_cutoffs: adapters .* exclude_modules='(.*)'") as error:
        peft.get_peft_model(model, peft.LoraConfig(**config))(SOURCE, labels=SOURCE)
    excluded = str(error.value).split("'")[1]
    adapted = peft.get_peft_model(causal(adaptive_cutoffs=[10]), peft.LoraConfig(**config, exclude_modules=excluded))
    adapted(SOURCE, labels=SOURCE).loss.backward()


def test_lora_without_targets_adapts_queries_and_values():
    adapted = peft.get_peft_model(make("resi_dual"), peft.LoraConfig(task_type="SEQ_2_SEQ_LM"))
    changed = {name.split(".lora_")[0].rpartition(".")[2] for name, p in adapted.named_parameters() if p.requires_grad}
    assert changed == {"q_proj", "v_proj"}


SEPARATE = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("fields", "adapter"),
    [
        ({}, {"trainable_token_indices": [5, 6, 13]}),
        (SEPARATE, {"trainable_token_indices": [5, 6, 13]}),
        (SEPARATE, {"target_modules": ["q_proj", "embed_tokens"]}),
        ({}, {"modules_to_save": ["embed_tokens"]}),
    ],
    ids=["tokens", "tokens of separate tables", "lora of separate tables", "complete table"],
)
def test_adapted_embeddings_keep_their_scale(fields, adapter):
    model = randomise(make("resi_dual", **fields))
    old = logits_of(model)
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, **{"target_modules": ["q_proj"], **adapter})
    adapted = peft.get_peft_model(model, config)
    assert torch.equal(logits_of(adapted), old)
    new = logits_of(train_adapter(adapted))
    assert not torch.allclose(new, old, rtol=0.1)
    torch.testing.assert_close(logits_of(adapted.merge_and_unload()), new, rtol=1e-4, atol=1e-4)


def test_trained_tokens_of_one_table_are_tied_everywhere():
    """PEFT ties the target table and the output projection to the adapter of the input embeddings, `encoder`."""
    model = randomise(make("resi_dual"))
    old, source = logits_of(model), torch.tensor([[5, 6, 13, 7, 2]])
    tokens = peft.TrainableTokensConfig(token_indices=[5, 6, 13], target_modules=["encoder.embed_tokens"])
    adapted = peft.get_peft_model(model, tokens)
    assert torch.equal(logits_of(adapted), old)
    new = logits_of(train_adapter(adapted))
    changed = (new - old).abs().amax(dim=(0, 1)) > 1e-3
    assert changed[[5, 6, 13]].all()
    found = adapted.generate(input_ids=source, num_beams=3)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(logits_of(merged), new, rtol=1e-4, atol=1e-4)
    tables = [merged.lm_head, merged.model.encoder.embed_tokens, merged.model.decoder.embed_tokens]
    assert len({id(table.weight) for table in tables}) == 1
    assert torch.equal(found, merged.generate(input_ids=source, num_beams=3))


@pytest.mark.parametrize(
    ("fields", "adapter"),
    [
        ({}, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["embed_tokens"])),
        (
            {"position_embedding_type": "learned"},
            peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["embed_positions"]),
        ),
        (SEPARATE, peft.TrainableTokensConfig(token_indices=[5, 6, 13], target_modules=["embed_tokens"])),
    ],
    ids=["tokens", "positions", "some tokens"],
)
def test_adapted_embeddings_are_used_by_the_search(fields, adapter):
    model = randomise(make("resi_dual", **fields))
    adapted = train_adapter(peft.get_peft_model(model, adapter))
    source = torch.tensor([[5, 6, 13, 7, 2]])
    found = adapted.generate(input_ids=source, num_beams=3)
    model.generation_config.fast_decoding = False
    assert torch.equal(found, adapted.generate(input_ids=source, num_beams=3))


def test_adapters_that_would_skip_the_normalization_of_embeddings_are_refused():
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["embed_tokens"])
    adapted = peft.get_peft_model(make("resi_dual", fix_norm=True), config)
    with pytest.raises(ValueError, match="fix_norm: adapters on normalized embeddings are not supported"):
        logits_of(adapted)


@pytest.mark.parametrize("cls", [ResidualForConditionalGeneration, ResidualModel, ResidualEncoder, ResidualDecoder])
def test_forward_declares_the_arguments_of_transformers(cls):
    """Transformers' tests read from the annotation that `output_attentions` and others may be passed."""
    annotation = inspect.signature(cls.forward).parameters["kwargs"].annotation
    assert annotation == Unpack[TransformersKwargs]
