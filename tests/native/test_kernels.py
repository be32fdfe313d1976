"""Each kernel against the operations of PyTorch that it replaces."""

from ctypes import byref

import pytest
import torch
from support.native_library import assert_near, isa, needs_kernels  # noqa: F401
from torch.nn.functional import gelu, linear, relu, silu

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.native import library
from residual_hf.native.structures import Attention, Candidates, Table, Tally
from residual_hf.native.weights import HEAD_PADDING, Packer, pad_heads, pad_to, round_up

pytestmark = [needs_kernels, pytest.mark.usefixtures("isa")]
ACTIVATIONS = [lambda x: x, relu, gelu, silu]
TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def run_linear(dtype, weight, bias, inputs, activation=0, output_type=0):
    packer = Packer(dtype)
    packed = packer.linear(weight, bias)
    rows = len(inputs)
    states = torch.full((round_up(rows, 32), packed.inputs), torch.nan, dtype=TYPES[dtype != "float32"])
    states[:rows] = pad_to(inputs, rows, packed.inputs)
    output = torch.empty(rows, packed.outputs, dtype=TYPES[output_type])
    scratch = torch.empty(library().linear_scratch_size(packed.type, rows, packed.inputs), dtype=torch.uint8)
    pointers = states.data_ptr(), activation, output.data_ptr(), output_type, scratch.data_ptr()
    library().linear(byref(packed), rows, *pointers)
    return output


def expected_linear(dtype, weight, bias, inputs):
    """The product of operands as they are rounded."""
    if dtype != "float32":
        inputs = inputs.bfloat16()
    if dtype == "bfloat16":
        weight = weight.bfloat16()
    inputs, weight = inputs.double(), weight.double()
    if dtype == "int8":
        inputs, weight = (
            (tensor / scale).round() * scale
            for tensor in (inputs, weight)
            for scale in (tensor.abs().amax(dim=1, keepdim=True).float().double() / 127,)
        )
    return linear(inputs, weight, bias.double())


@pytest.mark.parametrize("rows", [1, 5, 13, 16, 33, 160])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 64), (100, 1), (300, 130)])
@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_linear(dtype, inputs, outputs, rows):
    weight, bias, states = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(rows, inputs)
    output = run_linear(dtype, weight, bias, states)
    # a value halfway between two integers may be rounded to either
    assert_near(output[:, :outputs], expected_linear(dtype, weight, bias, states), 1e-3 if dtype == "int8" else 3e-6)
    assert not output[:, outputs:].any()


@pytest.mark.parametrize("activation", range(4))
@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_activations_and_output_types(dtype, activation):
    weight, bias, states = torch.randn(70, 96), 3 * torch.randn(70), torch.randn(9, 96)
    expected = ACTIVATIONS[activation](expected_linear(dtype, weight, bias, states))
    for output_type, tolerance in ((0, 3e-6), (1, 4e-3)):
        output = run_linear(dtype, weight, bias, states, activation, output_type)
        assert_near(output[:, :70], expected, max(tolerance, 1e-3 if dtype == "int8" else 0))


def test_int8_of_zeros():
    bias = torch.randn(40)
    assert torch.equal(run_linear("int8", torch.zeros(40, 70), bias, torch.zeros(3, 70))[:, :40], bias.expand(3, -1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_inputs_that_are_not_finite_are_not_hidden(dtype, value):
    states = torch.randn(64, 64) + torch.diag(torch.full((64,), value))
    output = run_linear(dtype, torch.ones(64, 64), torch.zeros(64), torch.cat([states, torch.ones(1, 64)]))
    assert not output[:64].isfinite().any() and output[64].isfinite().all()


def attend(query, cache, table, lines, lengths, heads, head_size, scale):
    """What `rows` queries read from entries of a cache, those of their lines in a table."""
    rows, width = query.shape
    output, scratch = torch.full_like(query, torch.nan), torch.empty(4 * round_up(table.shape[-1], 16))
    pointers = {"queries": query.data_ptr(), "cache": cache.data_ptr(), "output": output.data_ptr()}
    places = Table(table.data_ptr(), table.shape[-1], lines.data_ptr(), lengths.data_ptr())
    arguments = Attention(heads, head_size, width, table=places, scratch=scratch.data_ptr(), **pointers)
    library().attention(byref(arguments), rows, TYPES.index(query.dtype), scale)
    return output


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("heads", "head_size"), [(1, 4), (3, 16), (4, 24), (2, 64), (5, 80), (2, 128)])
@pytest.mark.parametrize("longest", [1, 3, 16, 37])
def test_attention(dtype, heads, head_size, longest):
    rows, entries, sentences = 10, 50, 3
    padded_head = round_up(head_size, HEAD_PADDING)
    query, keys, values = torch.randn(rows, heads * head_size), *torch.randn(2, entries, heads * head_size)
    table = torch.randint(entries, (sentences, longest), dtype=torch.int32)
    lengths = torch.randint(1, longest + 1, (sentences,), dtype=torch.int32)
    lengths[0] = longest
    lines = torch.tensor([0, 0, 0, 0, 0, 1, 2, 2, 2, 2], dtype=torch.int32)
    scale = head_size**-0.5

    query, keys, values = (pad_heads(states.T, heads).T.to(dtype).contiguous() for states in (query, keys, values))
    cache = torch.cat([keys, values], dim=1)
    output = attend(query, cache, table, lines, lengths, heads, padded_head, scale)

    def split(states):
        return states[:, : heads * padded_head].double().view(-1, heads, padded_head).transpose(0, 1)

    for row in range(rows):
        seen = table[lines[row], : lengths[lines[row]]].long()
        weights = (split(query)[:, row, None] @ split(keys)[:, seen].mT * scale).softmax(dim=-1)
        expected = (weights @ split(values)[:, seen]).flatten()
        assert_near(output[row, : heads * padded_head], expected, 1e-6 if dtype == torch.float32 else 4e-3)
    assert not output[:, heads * padded_head :].any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("length", [1, 6, 19])
def test_attention_of_a_row_does_not_depend_on_the_others(dtype, length):
    query, cache = torch.randn(1, 64, dtype=dtype).repeat(5, 1), torch.randn(length, 128, dtype=dtype)
    entries, lengths = torch.arange(length, dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
    output = attend(query, cache, entries, torch.zeros(5, dtype=torch.int32), lengths, 1, 64, 0.125)
    assert torch.equal(output[:4], output[4:].repeat(4, 1))


def test_attention_to_nothing_is_zero():
    zero = torch.zeros(1, dtype=torch.int32)
    output = attend(torch.randn(1, 64), torch.randn(2, 128), zero, zero, zero, 1, 64, 0.125)
    assert not output.any()


def top_candidates(logits, count, parts=1):
    rows = len(logits)
    log_probs, ids = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.long)
    tallies = (Tally * rows)()
    best = Candidates(rows, count, log_probs.data_ptr(), ids.data_ptr(), tallies)
    library().start_candidates(byref(best))
    first = 0
    for part in [part.contiguous() for part in logits.chunk(parts, dim=1)]:
        library().add_candidates(byref(best), part.shape[1], first, part.data_ptr())
        first += part.shape[1]
    library().finish_candidates(byref(best))
    return log_probs, ids


@pytest.mark.parametrize("parts", [1, 5])
@pytest.mark.parametrize(("columns", "count"), [(320, 1), (320, 64), (10240, 11), (10240, 64), (640, 100)])
def test_top_candidates(columns, count, parts):
    logits = 4 * torch.randn(6, columns)
    logits[1] = logits[1].round()  # ties
    logits[2] = logits[2].sort().values
    logits[3] = logits[3].sort(descending=True).values
    logits[4] += 1000
    logits[:, -7:] = -torch.inf  # padding
    log_probs, ids = top_candidates(logits, count, parts)
    expected = logits.double().log_softmax(dim=-1)
    best = expected.topk(count, dim=-1)
    torch.testing.assert_close(log_probs.double(), best.values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(expected.gather(1, ids), best.values)
    assert all(len(set(row)) == count for row in ids.tolist())


@pytest.mark.parametrize("parts", [1, 2])
def test_ties_go_to_the_smaller_id(parts):
    logits = torch.zeros(1, 128)
    logits[0, [100, 30, 77]] = 1.0
    assert top_candidates(logits, 5, parts)[1].tolist() == [[30, 77, 100, 0, 1]]


def test_candidates_of_logits_that_are_not_numbers():
    log_probs, ids = top_candidates(torch.full((1, 64), torch.nan), 3)
    assert ids.tolist() == [[0, 0, 0]] and not log_probs.isfinite().any()
