"""The weights of a model on the native kernels, and its encoder."""

from collections.abc import Sequence
from ctypes import POINTER, byref, c_void_p, cast
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import logging

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.base.errors import InputError
from residual_hf.model.embeddings import first_position, position_ids_from_mask, positions_padding
from residual_hf.model.fingerprint import Fingerprint
from residual_hf.model.modeling_residual import ResidualLanguageModel
from residual_hf.model.search import Array

from . import loaded_library, threads_for
from .batch import ListedTokens, Sentences
from .state import DecoderState, address
from .structures import CONSTANTS, Checksums, Source, Stack, Table
from .support import missing_support, unsupported_stack
from .weights import Packer, RoundedRows, last_position, round_up

ROW_PADDING = CONSTANTS["ROW_PADDING"]
BYTES_PER_THREAD = 1 << 20  # of a checksum
logger = logging.get_logger(__name__)
_packing = Lock()  # several threads decode with one model
_packed: "WeakKeyDictionary[ResidualLanguageModel, dict[str, NativeDecoder]]" = WeakKeyDictionary()


def packed_model(model: ResidualLanguageModel, dtype: str | None) -> "NativeDecoder | None":
    """A model on the kernels, packed at first use and after every change; None where PyTorch must decode.

    `dtype`: as for `NativeDecoder`; "float32" and None: PyTorch decodes with models that are not of fp32.
    """
    chosen = dtype or "float32"
    if torch.is_autocast_enabled("cpu") or torch.get_default_device().type != "cpu":
        return None
    if chosen == "float32" and model.dtype != torch.float32:
        return None
    with _packing:
        found = _packed.setdefault(model, {}).get(chosen)
        if found is None or not found.fingerprint.matches(model, found.parts_of(model)):
            try:
                found = _packed[model][chosen] = NativeDecoder(model, chosen)
            except InputError as reason:
                if chosen not in DECODING_DTYPES:
                    raise
                if chosen != "float32":
                    logger.warning_once(f"decoding_dtype: {dtype} is not used: {reason}")
                return None
        return found


def checksum(tensors: Sequence[Tensor]) -> bytes:
    """In place of `model.fingerprint.checksum`, with other values: as fast as memory is read."""
    data = (c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
    sizes, found = np.array([tensor.nbytes for tensor in tensors], np.int64), np.empty(len(tensors), np.uint64)
    threads = threads_for(int(sizes.sum()), BYTES_PER_THREAD)
    loaded_library().checksums(byref(Checksums(len(tensors), threads, data, address(sizes), address(found))))
    return found.tobytes()


class NativeDecoder:
    """Encoder and decoder of a model, or a decoder alone, on the native kernels.

    Args:
        model: a `ResidualForConditionalGeneration` or `ResidualForCausalLM` on the CPU, without a reason of
            `missing_support`.
        dtype: of weights and activations: "float32" gives the logits of the model; "bfloat16"; "int8" has weights of 8
            bits with a scale per output, inputs of linear maps rounded to 8 bits with a scale per row, and other
            activations in bfloat16.

    Raises `InputError` with the reason of `missing_support`.
    """

    def __init__(self, model: ResidualLanguageModel, dtype: str = "float32"):
        reason = missing_support(model, dtype)
        if reason is not None:
            raise InputError(reason)
        self.config = model.config
        stacks = {name: model.model.get_submodule(name) for name in reversed(self.config.stacks)}
        if "encoder" in stacks and unsupported_stack(stacks["encoder"]) is not None:
            del stacks["encoder"]
        self.stacks = tuple(stacks)
        self.fingerprint = Fingerprint(self.parts_of(model), checksum)
        self.dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        self.packer = Packer(dtype)
        self.positions = {stack: last_position(model.model.get_submodule(stack)) for stack in self.config.stacks}
        with torch.no_grad():
            self.decoder = self.packer.stack(stacks["decoder"])
            self.output = model.output_weight, model.lm_head.bias
            self.decoder.logits = self.packer.linear(*self.output, padding_bias=-torch.inf)
            self.encoder = self.packer.stack(stacks["encoder"]) if "encoder" in stacks else None
        self.output_rows: RoundedRows | None = None  # of lists, at their first use

    def parts_of(self, model: ResidualLanguageModel) -> list[nn.Module]:
        """The modules of a model that are packed here."""
        return [*map(model.model.get_submodule, self.stacks), model.lm_head]

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
        """Encoder states (batch, length, d_model) in fp32, zero at padding, from source tokens (batch, length).

        None where the encoder is not packed; use that of the model then.
        """
        stack = self.encoder
        if stack is None:
            return None
        self.check_length(input_ids.shape[1], "encoder")
        sentences = Sentences(input_ids.ne(self.config.pad_token_id) if attention_mask is None else attention_mask)
        padding_idx = positions_padding(self.config)
        if padding_idx is None:
            positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        else:
            positions = position_ids_from_mask(sentences.mask, input_ids.shape[1], padding_idx)
        cache = torch.empty(int(sentences.lengths.sum()), 2 * stack.attention_width, dtype=self.dtype)
        states = self.run(stack, sentences, input_ids, positions, sentences.table(), [cache] * stack.layers)
        return sentences.unpack(states[:, : stack.width].float())

    def run(
        self, stack: Stack, sentences: Sentences, tokens: Tensor, positions: Tensor, table: Table, cache: list[Tensor]
    ) -> Tensor:
        """States (tokens, stride) of all tokens of a batch; keys and values of each layer go to its `cache`.

        `table`: of the tokens, what they attend to.
        """
        tokens, positions = sentences.pack(tokens).long(), sentences.pack(positions)
        rows = len(tokens)
        states = torch.empty(rows + ROW_PADDING, stack.stride, dtype=self.dtype)  # for the tiles of a part at its end
        addresses = torch.tensor([entries.data_ptr() for entries in cache])
        inputs = tokens.data_ptr(), positions.data_ptr(), table, sentences.longest
        source = Source(*inputs, cast(addresses.data_ptr(), POINTER(c_void_p)), states.data_ptr())
        starts = sentences.part_starts()
        arguments = byref(stack), byref(source), len(starts) - 1, starts
        scratch = torch.empty(loaded_library().encode_scratch_size(*arguments), dtype=torch.uint8)
        if not loaded_library().encode(*arguments, scratch.data_ptr()):
            raise IndexError(f"input_ids: a token is outside the vocabulary of {stack.vocabulary}")
        return states[:rows]

    def start(
        self,
        encoder_hidden_states: Tensor,
        encoder_mask: Tensor | None,
        beams: int,
        max_length: int,
        token_lists: Sequence[Array] | None = None,
    ) -> DecoderState:
        """Begin to decode: projects the keys and values of cross-attention, once per sentence.

        Args:
            encoder_hidden_states: (sentences, length, d_model).
            encoder_mask: (sentences, length), nonzero at real tokens; None: there is no padding.
            beams: rows per sentence at most.
            max_length: steps at most.
            token_lists: for each sentence the ids of the only tokens that its rows may have; None: all may.
        """
        shape = encoder_hidden_states.shape[:2]
        encoder_mask = torch.ones(shape) if encoder_mask is None else encoder_mask
        if encoder_mask.shape != shape:
            given = tuple(encoder_mask.shape)
            raise ValueError(f"attention_mask: for {given} states given, encoder_outputs has {tuple(shape)}")
        sentences = Sentences(encoder_mask)
        cross_cache = self.project_sources(sentences.pack(encoder_hidden_states))
        listed = None
        if token_lists is not None:
            tokens = len(self.output[0])
            if len(token_lists) != shape[0]:
                raise ValueError(f"token_lists: {len(token_lists)} given for {shape[0]} sentences")
            if not all(len(own) and own.min() >= 0 and own.max() < tokens for own in map(np.asarray, token_lists)):
                raise ValueError(f"token_lists: each must have one id at least, all of them from 0 to {tokens - 1}")
            token_lists = [np.unique(own) for own in token_lists]
            if self.output_rows is None:
                self.output_rows = self.packer.rounded(*self.output)
            listed = ListedTokens(token_lists, self.output_rows, self.packer.dtype)
        return DecoderState(self, sentences, beams, max_length, cross_cache, listed=listed)

    def read(self, prompt: Tensor, mask: Tensor, beams: int, max_length: int) -> DecoderState:
        """Begin to continue texts with a decoder alone: it reads all but the newest token of each, at once.

        Args:
            prompt: (sentences, length).
            mask: nonzero at its tokens, which padding may precede, (sentences, length).
            beams: rows per sentence at most.
            max_length: tokens of a row at most, with those of the prompt.
        """
        if not 0 <= int(prompt.min()) <= int(prompt.max()) < self.decoder.vocabulary:  # padding too: rules look it up
            raise IndexError(f"input_ids: a token is outside the vocabulary of {self.decoder.vocabulary}")
        sentences = Sentences(mask[:, :-1])
        total = int(sentences.lengths.sum())
        self.check_length(sentences.longest, "decoder")
        cache = [
            torch.empty(total, 2 * self.decoder.attention_width, dtype=self.dtype) for _ in range(self.decoder.layers)
        ]
        if total:
            positions = sentences.mask.cumsum(1) - 1 + first_position(positions_padding(self.config))
            self.run(self.decoder, sentences, prompt[:, :-1], positions, sentences.causal_table(), cache)
        return DecoderState(self, sentences, beams, max_length, read=cache)

    def project_sources(self, states: Tensor) -> Tensor:
        """Keys and values (layers, tokens, 2 * attention_width) of source states (tokens, d_model)."""
        stack, tokens = self.decoder, len(states)
        padded = torch.zeros(round_up(tokens, ROW_PADDING), stack.stride, dtype=self.dtype)
        padded[:tokens, : stack.width] = states
        cache = torch.empty(stack.layers, tokens, 2 * stack.attention_width, dtype=self.dtype)
        scratch = torch.empty(loaded_library().project_scratch_size(byref(stack), tokens), dtype=torch.uint8)
        pointers = padded.data_ptr(), cache.data_ptr(), scratch.data_ptr()
        loaded_library().project_source(byref(stack), tokens, *pointers)
        return cache

    def check_length(self, tokens: int, stack: str) -> None:
        limit = self.positions[stack]
        if limit is not None and tokens > limit:
            raise ValueError(
                f"the {stack} received {tokens} tokens, but max_position_embeddings is {limit}: shorten the text "
                "(truncation=True, max_new_tokens)"
            )
