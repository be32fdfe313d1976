# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Model shapes of the papers, as their official code trains them; names follow fairseq's architectures."""

from __future__ import annotations

from typing import Any


def _shape(d_model: int, ffn: int, heads: int, layers: int, dropout: tuple[float, float, float]) -> dict[str, Any]:
    rates = dict(zip(("dropout", "attention_dropout", "activation_dropout"), dropout, strict=True))
    return {
        "d_model": d_model,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_ffn_dim": ffn,
        "decoder_ffn_dim": ffn,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        **rates,
    }


# ResiDual (Xie et al. 2023): Tables 9, 10 and 11 with the dropouts of the official configs
RESI_DUAL_IWSLT = {**_shape(256, 1024, 4, 6, (0.3, 0.1, 0.1)), "ln_mode": "resi_dual", "vocab_size": 10152}
RESI_DUAL_WMT = {**_shape(512, 2048, 8, 6, (0.3, 0.1, 0.1)), "ln_mode": "resi_dual", "vocab_size": 32768}
RESI_DUAL_OPUS = {
    **_shape(512, 2048, 8, 18, (0.1, 0.1, 0.1)),
    "ln_mode": "resi_dual",
    "ln_mode_options": {"dual_scale": 0.05},
    "share_encoder_decoder_embeddings": False,
    "vocab_size": 64000,
}

B2T_WMT = {**_shape(512, 2048, 8, 6, (0.3, 0.0, 0.0)), "ln_mode": "b2t", "vocab_size": 32768}
ADMIN_WMT = {**_shape(512, 2048, 8, 6, (0.1, 0.1, 0.1)), "ln_mode": "admin", "vocab_size": 32768}

PRESETS: dict[str, dict[str, Any]] = {
    "resi_dual_iwslt_de_en": RESI_DUAL_IWSLT,
    "resi_dual_iwslt_de_en_12l": {**RESI_DUAL_IWSLT, "encoder_layers": 12, "decoder_layers": 12},
    "resi_dual_wmt_en_de": RESI_DUAL_WMT,
    "resi_dual_wmt_en_de_18l": {**RESI_DUAL_WMT, "encoder_layers": 18, "decoder_layers": 18},
    "resi_dual_opus100": RESI_DUAL_OPUS,
    # fairseq's baselines (Post-LN)
    "transformer_iwslt_de_en": {
        **_shape(512, 1024, 4, 6, (0.3, 0.0, 0.0)),
        "ln_mode": "post_ln",
        "share_encoder_decoder_embeddings": False,
        "vocab_size": 8848,
        "decoder_vocab_size": 6632,
    },
    "transformer_wmt_en_de": {**_shape(512, 2048, 8, 6, (0.1, 0.0, 0.0)), "ln_mode": "post_ln", "vocab_size": 32768},
    # B2T connection (Takase et al. 2023), WMT en-de; weights are rescaled as the code does since May 2023
    "b2t_wmt_en_de": B2T_WMT,
    "b2t_wmt_en_de_18l": {**B2T_WMT, "encoder_layers": 18, "decoder_layers": 18},
    "b2t_wmt_en_de_100l": {**B2T_WMT, "encoder_layers": 100, "decoder_layers": 100, "dropout": 0.5},
    # Admin (Liu et al. 2020): the trainer profiles a fresh model by itself
    "admin_iwslt_de_en": {**_shape(512, 1024, 4, 6, (0.3, 0.1, 0.1)), "ln_mode": "admin", "vocab_size": 10152},
    "admin_wmt_en_de": ADMIN_WMT,
    "admin_wmt_en_de_18l": {**ADMIN_WMT, "encoder_layers": 18, "decoder_layers": 18},
    "admin_wmt_en_fr_60l_12l": {**ADMIN_WMT, "encoder_layers": 60, "decoder_layers": 12, "vocab_size": 40000},
    # rSkip (Liu et al. 2020), IWSLT'15 en-vi: no official code; Vaswani et al.'s base model, as the paper says
    "rskip_iwslt15_en_vi": {**_shape(512, 2048, 8, 6, (0.1, 0.0, 0.0)), "ln_mode": "rskip_ln", "vocab_size": 10000},
    # Multi30k "tiny" of about 2.6 M parameters (examples/multi30k)
    "multi30k_tiny": {**_shape(128, 256, 4, 4, (0.3, 0.0, 0.0)), "ln_mode": "resi_dual", "vocab_size": 9800},
}
