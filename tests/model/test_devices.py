"""Models on a default device, for which `meta` stands here, and how often they would wait for a GPU."""

import pytest
import torch
from support.models import LABELS, SOURCE, TARGET, every_shape, logits_of, make, randomise
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import EncoderDecoderCache, StaticCache

from residual_hf import ResidualForConditionalGeneration
from residual_hf.losses.label_smoothing import LossMeter
from residual_hf.model.decoding import OwnLength


class CountReads(TorchDispatchMode):
    """Context that counts `int(tensor)`, `bool(tensor)`, `.item()`, `nonzero` and the like in `count`."""

    reads = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in self.reads
        return func(*args, **(kwargs or {}))


@every_shape
def test_a_model_on_the_default_device_computes_there(mode):
    with torch.device("meta"):
        model = make(mode, None, decoder_layers=2)
        ids = torch.ones(2, 5, dtype=torch.long)
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    output = model(input_ids=ids, labels=ids)
    assert output.logits.is_meta and output.logits.shape == (2, 5, model.config.vocab_size)


@pytest.mark.parametrize("assign", [True, False])
def test_a_model_without_memory_is_filled(assign):
    model = randomise(make("resi_dual"))
    with torch.device("meta"):
        empty = ResidualForConditionalGeneration(model.config)
    filled = empty if assign else empty.to_empty(device="cpu")
    for buffer in () if assign else filled.buffers():
        buffer.fill_(7)
    filled.load_state_dict(model.state_dict(), assign=assign)
    assert torch.equal(logits_of(filled.eval()), logits_of(model))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative"])
def test_steps_with_a_static_cache_read_nothing(positions):
    model = randomise(make("pre_ln", position_embedding_type=positions))
    cache = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=8) for _ in range(2)))
    memory = (model.get_encoder()(SOURCE).last_hidden_state,)
    inputs = {"encoder_outputs": memory, "past_key_values": cache, "use_cache": True}
    with torch.no_grad():
        model(**inputs, decoder_input_ids=TARGET[:, :1])
        with CountReads() as reads:
            model(**inputs, decoder_input_ids=TARGET[:, 1:2])
    assert reads.count == 0


def test_a_static_cache_beyond_the_positions_is_refused_where_they_end():
    model = make("pre_ln", max_position_embeddings=3)
    cache = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=8) for _ in range(2)))
    inputs = {"encoder_outputs": (torch.randn(2, 3, 16),), "past_key_values": cache, "use_cache": True}
    model(**inputs, decoder_input_ids=TARGET[:, :3])
    with pytest.raises(ValueError, match="received 4 tokens, but max_position_embeddings is 3"):
        model(**inputs, decoder_input_ids=TARGET[:, 3:4])


def test_the_length_rule_reads_once_per_batch():
    model = randomise(make("resi_dual"))

    def reads(sentences):
        source = SOURCE[:1].repeat(sentences, 1)
        with CountReads() as found:
            model._own_limits({"attention_mask": source.ne(1), "max_length_a": 1.0, "max_length_b": 2.0})
        return found.count

    assert reads(7) == reads(1) == 0  # `tolist` reads all of them at once


def test_limits_are_on_the_device_of_the_hypotheses_from_the_first_step():
    criterion = OwnLength(torch.tensor([1, 3]))
    steps = [criterion(torch.ones(4, length), None) for length in (5, 6, 7)]
    assert [step.tolist() for step in steps] == [[True, True, False, False]] * 2 + [[True] * 4]
    assert criterion(torch.ones(4, 7, device="meta"), None).device == steps[0].device  # nothing is copied


def test_the_loss_of_a_batch_waits_once(monkeypatch):
    """For the number of its tokens, which saves the projection of padding."""
    monkeypatch.setattr("residual_hf.losses.token_costs.library", lambda: None)  # the kernels of a CPU check labels
    meter, hidden = LossMeter(0.1, "fairseq"), torch.randn(*LABELS.shape, 16, requires_grad=True)
    for items in (None, torch.tensor(9)):
        with CountReads() as reads:
            meter(hidden, torch.randn(30, 16), LABELS, items).backward()
        assert reads.count == 1
