# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The structures and functions of `native.h`, for ctypes."""

from __future__ import annotations

import zlib
from ctypes import CDLL, POINTER, Structure, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path


class Linear(Structure):
    _fields_ = [
        ("type", c_int32),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
    ]


class Norm(Structure):
    _fields_ = [("gain", c_void_p), ("bias", c_void_p), ("epsilon", c_float), ("centered", c_int32)]


class Table(Structure):
    _fields_ = [("entries", c_void_p), ("stride", c_int64), ("line", c_void_p), ("lengths", c_void_p)]


class Term(Structure):
    _fields_ = [("source", c_int32), ("number", c_int32), ("weight", c_float), ("weights", c_void_p)]


class Operation(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("function", "terms")),
        ("term", POINTER(Term)),
        ("norm", Norm),
        *((name, c_int32) for name in ("sum", "output", "hidden")),
    ]


class Program(Structure):
    _fields_ = [("operations", c_int32), ("operation", POINTER(Operation))]


class Layer(Structure):
    _fields_ = [
        ("query", Linear),
        ("key_value", Linear),
        ("attention_output", Linear),
        ("cross_query", Linear),
        ("cross_key_value", Linear),
        ("cross_output", Linear),
        ("ffn_in", Linear),
        ("ffn_out", Linear),
        ("after_attention", Program),
        ("after_cross", Program),
        ("after_ffn", Program),
    ]


class Stack(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("type", "layers", "vocabulary", "width", "stride", "heads", "head_size")),
        *((name, c_int32) for name in ("attention_width", "ffn_width", "activation", "vectors", "registers")),
        *((name, c_float) for name in ("embedding_scale", "attention_scale")),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("start", Program),
        ("layer", POINTER(Layer)),
        ("logits", Linear),
    ]


class Memory(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("slots", "max_length", "longest_source", "source_entries")),
        ("self_cache", POINTER(c_void_p)),
        *((name, c_void_p) for name in ("cross_cache", "ancestors", "sources")),
        *((name, c_void_p) for name in ("source_table", "source_lengths")),
    ]


class Source(Structure):
    _fields_ = [
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("table", Table),
        ("longest", c_int32),
        ("cache", c_void_p),
        ("output", c_void_p),
    ]


class Step(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("rows", "index", "candidates")),
        ("position", c_int64),
        *((name, c_void_p) for name in ("tokens", "logits", "log_probs", "ids")),
    ]


class Tally(Structure):
    _fields_ = [("largest", c_float), ("total", c_float), ("found", c_int32)]


class DropoutNorm(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("seed", c_uint64),
        *((name, c_int32) for name in ("width", "threads", "centered")),
        *((name, c_float) for name in ("rate", "epsilon", "dual_scale")),
        *((name, c_void_p) for name in ("gain", "bias", "branch", "stream", "dual")),
        *((name, c_void_p) for name in ("sum", "output", "dual_output", "statistics")),
        *((name, c_void_p) for name in ("grad_output", "grad_dual", "grad_branch", "grad_stream")),
        *((name, c_void_p) for name in ("grad_gain", "grad_bias")),
    ]


class WeightedSums(Structure):
    _fields_ = [
        ("rows", c_int64),
        *((name, c_int32) for name in ("width", "members", "outputs", "threads")),
        ("weights", c_void_p),
        *((name, POINTER(c_void_p)) for name in ("member", "output", "grad_output", "grad_member")),
        ("grad_weights", c_void_p),
    ]


class DepthAttention(Structure):
    _fields_ = [
        ("rows", c_int64),
        *((name, c_int32) for name in ("width", "members", "threads")),
        ("epsilon", c_float),
        ("query", c_void_p),
        ("member", POINTER(c_void_p)),
        *((name, c_void_p) for name in ("output", "reads", "grad_output")),
        ("grad_member", POINTER(c_void_p)),
        *((name, c_void_p) for name in ("grad_query", "products")),
    ]


class DotAttention(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("sentences", "heads", "queries", "keys", "size", "threads", "causal")),
        *((name, c_float) for name in ("scale", "rate")),
        ("seed", c_uint64),
        ("mask", c_void_p),
        ("mask_strides", c_int64 * 2),
        *((name, c_void_p) for name in ("query", "key", "value")),
        *((name, c_int64 * 3) for name in ("query_strides", "key_strides", "value_strides")),
        *((name, c_void_p) for name in ("output", "log_sums", "grad_output")),
        *((name, c_void_p) for name in ("grad_query", "grad_key", "grad_value", "scratch")),
    ]


class Product(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("rows", "columns", "inner")),
        *((name, c_int32) for name in ("threads", "accumulate")),
        *((name, c_void_p) for name in ("left", "right")),
        *((name, c_int64 * 2) for name in ("left_strides", "right_strides")),
        *((name, c_void_p) for name in ("bias", "output", "scratch")),
    ]


class Checksums(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("tensors", "threads")),
        *((name, c_void_p) for name in ("data", "bytes", "checksum")),
    ]


ARGUMENTS = {
    "checksums": [c_void_p],
    "enable_instruction_set": [c_int],
    "join_team": [c_void_p],
    "linear": [c_void_p, c_int, c_void_p, c_int, c_void_p, c_int, c_void_p],
    "linear_scratch_size": [c_int, c_int, c_int],
    "attention": [c_int] * 5 + [c_void_p] * 3 + [c_float] + [c_void_p] * 2,
    "start_candidates": [c_int, c_int, c_void_p, c_void_p, c_void_p],
    "add_candidates": [c_int, c_int, c_int64, c_void_p, c_int, c_void_p, c_void_p, c_void_p],
    "finish_candidates": [c_int, c_int, c_void_p, c_void_p],
    "encode_scratch_size": [c_void_p, c_void_p, c_int, c_void_p],
    "encode": [c_void_p, c_void_p, c_int, c_void_p, c_void_p],
    "decode_scratch_size": [c_void_p, c_void_p, c_int, c_int],
    "decode": [c_void_p, c_void_p, c_void_p, c_int, c_void_p],
    "dropout": [c_int64, c_int, c_void_p, c_uint64, c_float, c_void_p],
    "dropout_norm_forward": [c_void_p],
    "dropout_norm_backward": [c_void_p],
    "weighted_sums_forward": [c_void_p],
    "weighted_sums_backward": [c_void_p],
    "depth_attention_forward": [c_void_p],
    "depth_attention_backward": [c_void_p],
    "dot_attention_scratch_size": [c_void_p],
    "dot_attention_forward": [c_void_p],
    "dot_attention_backward": [c_void_p],
    "product_scratch_size": [c_void_p],
    "product": [c_void_p],
    "label_softmax": [c_int64, c_int64, c_int, c_void_p, c_void_p, c_void_p, c_void_p],
}
RESULTS = {"enable_instruction_set": c_int, "encode": c_int, "decode": c_int}


def interface_version() -> int:
    """What a library built with this file returns as its `interface_version`: the checksum of this file."""
    return zlib.crc32(Path(__file__).read_bytes())


def declare_functions(library: CDLL) -> None:
    for name, arguments in ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_size_t if name.endswith("_size") else RESULTS.get(name)
