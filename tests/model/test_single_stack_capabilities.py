"""What PyTorch and Transformers can do to a language model and a classifier of the family."""

import pytest
import torch
from support.models import OURS
from support.single_stacks import SIZES, causal, disturbed, left_padded
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

from residual_hf import ResidualConfig, ResidualForCausalLM, ResidualForMaskedLM, ResidualForSequenceClassification
from residual_hf.base.errors import InputError
from residual_hf.checkpoint import load_checkpoint, save_checkpoint, validate_model_folder

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "one", "two", "three", "four", "five"]


@pytest.fixture(scope="module")
def tokenizer():
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        mask_token="<mask>", model_input_names=["input_ids", "attention_mask"], padding_side="left",
    )  # fmt: skip


def gradients(model):
    ids, mask = left_padded()
    model.zero_grad()
    torch.manual_seed(0)
    model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("mode", ["resi_dual", "hyper_connections", "realformer", "rezero"])
def test_gradient_checkpointing_changes_no_gradient(mode, reentrant):
    model = causal(ln_mode=mode, dropout=0.1).double().train()
    plain = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, plain[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.slow
def test_training_step_is_one_graph():
    torch._dynamo.reset()
    model = causal(num_hidden_layers=1).train()
    plain = gradients(model)
    compiled = gradients(torch.compile(model, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close([*compiled.values()], [*plain.values()], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["resi_dual", "b2t", "attention_residuals", "realformer"])
def test_all_ways_to_generate_agree(mode):
    model, (ids, mask) = causal(ln_mode=mode), left_padded()
    options = {"attention_mask": mask, "max_new_tokens": 5, "eos_token_id": None, "do_sample": False}
    greedy = model.generate(ids, **options)
    assert torch.equal(model.generate(ids, cache_implementation="static", **options), greedy)
    alone = model.generate(ids[:1, 3:], **{**options, "attention_mask": mask[:1, 3:]})
    assert torch.equal(alone[0, 5:], greedy[0, 8:])
    beams = model.generate(ids, num_beams=3, **options)
    assert torch.equal(model.generate(ids, num_beams=3, use_cache=False, **options), beams)
    embedded = model.generate(inputs_embeds=model.get_input_embeddings()(ids), **options)
    assert torch.equal(embedded, greedy[:, 8:])


@pytest.mark.parametrize("mode", ["resi_dual", pytest.param("post_ln", marks=pytest.mark.slow)])
def test_model_is_exported(mode):
    model = causal(ln_mode=mode)
    batch, length = (torch.export.Dim(name, min=2, max=16) for name in ("batch", "length"))
    shape = {0: batch, 1: length}
    ids, mask = left_padded()
    program = torch.export.export(
        model,
        (),
        {"input_ids": ids, "attention_mask": mask, "use_cache": False},
        dynamic_shapes={"input_ids": shape, "attention_mask": shape, "use_cache": None},
    )
    longer = {"input_ids": torch.full((3, 11), 9), "attention_mask": torch.ones(3, 11, dtype=torch.long)}
    with torch.no_grad():
        found, expected = program.module()(**longer, use_cache=False), model(**longer)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-5)


def test_bfloat16_generates(tmp_path):
    causal().save_pretrained(tmp_path)
    model = ResidualForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    ids, mask = left_padded()
    assert model.generate(ids, attention_mask=mask, max_new_tokens=3, eos_token_id=None).shape == (2, 11)


def test_attention_implementations_agree():
    model, (ids, mask) = causal(d_model=32), left_padded()
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits[mask.bool()]
        model.set_attn_implementation("eager")
        found = model(ids, attention_mask=mask).logits[mask.bool()]
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)


def test_hidden_states_and_attentions_are_returned():
    model, (ids, _) = causal(), left_padded()
    model.set_attn_implementation("eager")
    output = model(ids, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == 3 and len(output.attentions) == 2
    assert output.attentions[0].shape == (2, 2, 8, 8)


def test_vocabulary_is_resized_with_the_tied_projection():
    model = causal()
    model.resize_token_embeddings(60)
    assert model.config.vocab_size == model.config.decoder_vocab_size == 60
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert model(torch.tensor([[59, 5]])).logits.shape == (1, 2, 60)


def train(model, tokenizer, collator, texts, folder, **arguments):
    settings = TrainingArguments(
        folder, max_steps=20, per_device_train_batch_size=4, learning_rate=0.02, report_to=[], save_strategy="no",
        logging_steps=5, use_cpu=True, disable_tqdm=True, seed=0, **arguments,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer = Trainer(model, settings, train_dataset=texts, data_collator=collator, processing_class=tokenizer)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer_and_text_generation(tokenizer, tmp_path, caplog):
    config = ResidualConfig(is_decoder_only=True, **SIZES | {"vocab_size": len(WORDS)})
    model = ResidualForCausalLM(config)
    texts = [tokenizer(f"{' '.join(WORDS[5 + i :])} </s>") for i in (0, 0, 1, 2)] * 4
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    losses = train(model, tokenizer, collator, texts, tmp_path / "run", label_smoothing_factor=0.1)
    assert losses[-1] < 0.7 * losses[0]
    save_checkpoint(model, tokenizer, tmp_path / "model")
    assert "modeling_single_stack.py" in validate_model_folder(tmp_path / "model")
    generate = pipeline("text-generation", model=str(tmp_path / "model"))
    found = generate(["one two", "two"], max_new_tokens=8, do_sample=False, return_full_text=False, batch_size=2)
    assert [text[0]["generated_text"].split() for text in found] == [["three", "four", "five"]] * 2
    assert "not supported" not in caplog.text
    with pytest.raises(InputError, match="a ResidualForCausalLM, must be a ResidualForConditionalGeneration"):
        load_checkpoint(tmp_path / "model")
    loaded, _ = load_checkpoint(tmp_path / "model", classes=(ResidualForCausalLM,))
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_label_smoothing_of_the_trainer_shifts_the_labels(tokenizer, tmp_path):
    model, (ids, _) = causal(), left_padded()
    settings = TrainingArguments(tmp_path, label_smoothing_factor=0.1, report_to=[], use_cpu=True)
    with torch.no_grad():
        loss = Trainer(model, settings, processing_class=tokenizer).compute_loss(
            model, {"input_ids": ids, "labels": ids.clone()}
        )
        log_probabilities = model(ids).logits[:, :-1].log_softmax(-1)
    nll = -log_probabilities.gather(-1, ids[:, 1:, None]).mean()
    assert torch.allclose(loss, 0.9 * nll - 0.1 * log_probabilities.mean(), atol=1e-5)


def test_the_trainer_counts_labels_as_for_other_language_models(tmp_path):
    """The first label of a text is not predicted; Transformers 5.4 counts it."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ids, ratios = left_padded()[0], []
    for model in (causal(), LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes))):
        settings = TrainingArguments(tmp_path, max_steps=1, logging_steps=1, report_to=[], use_cpu=True)
        own = model(ids, labels=ids).loss.item()
        trainer = Trainer(model, settings, train_dataset=[{"input_ids": row, "labels": row} for row in ids])
        trainer.train()
        ratios.append(trainer.state.log_history[0]["loss"] / own)
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-3)


def test_accumulated_batches_of_a_classifier_have_the_loss_of_one(tmp_path):
    ids, _ = left_padded()
    losses = []
    for size in (2, 1):
        torch.manual_seed(0)
        model = disturbed(ResidualForSequenceClassification(ResidualConfig(is_encoder_only=True, **SIZES)))
        settings = TrainingArguments(
            tmp_path, max_steps=1, per_device_train_batch_size=size, gradient_accumulation_steps=2 // size,
            logging_steps=1, report_to=[], use_cpu=True,
        )  # fmt: skip
        rows = [{"input_ids": row, "labels": i} for i, row in enumerate(ids)]
        trainer = Trainer(model, settings, train_dataset=rows)
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_an_encoder_is_pretrained_and_then_classifies(tokenizer, tmp_path):
    config = ResidualConfig(is_encoder_only=True, ln_mode="pre_ln", **SIZES | {"vocab_size": len(WORDS)})
    texts = [{"label": i % 2, **tokenizer("one two three" if i % 2 else "four three two")} for i in range(16)]
    masked = ResidualForMaskedLM(config)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3, seed=0)
    inputs = [{name: text[name] for name in ("input_ids", "attention_mask")} for text in texts]
    losses = train(masked, tokenizer, collator, inputs, tmp_path / "masked")
    assert losses[-1] < losses[0]
    masked.save_pretrained(tmp_path / "encoder")

    model = ResidualForSequenceClassification.from_pretrained(tmp_path / "encoder", num_labels=2)
    assert torch.equal(model.get_input_embeddings().weight, masked.get_input_embeddings().weight)
    assert train(model, tokenizer, None, texts, tmp_path / "classes")[-1] < 0.1
    model.save_pretrained(tmp_path / "classifier")
    tokenizer.save_pretrained(tmp_path / "classifier")
    classify = pipeline("text-classification", model=str(tmp_path / "classifier"))
    assert [found["label"] for found in classify(["one two", "four"])] == ["LABEL_1", "LABEL_0"]


def test_every_mode_classifies():
    ids, mask = left_padded()
    for mode in OURS:
        config = ResidualConfig(is_encoder_only=True, ln_mode=mode, **SIZES)
        model = disturbed(ResidualForSequenceClassification(config))
        model(ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters()), mode
