# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Model shapes of the papers, as their official code trains them; names follow fairseq's architectures.

Only what describes the model is here: `examples/` has the recipes. Vocabulary sizes are those of the official
dictionaries where they are known; a recipe replaces them by the size of its tokenizer.
"""

from typing import Any


def _shape(d_model: int, ffn: int, heads: int, layers: int, dropout: tuple[float, float, float]) -> dict[str, Any]:
    """`dropout`: on residuals and embeddings, in attention, after the activation."""
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


def _layers(shape: dict[str, Any], encoder: int, decoder: int, **changes: Any) -> dict[str, Any]:
    return {**shape, "encoder_layers": encoder, "decoder_layers": decoder, **changes}


# microsoft/ResiDual, hydra_config/{iwslt,wmt,opus}.yaml (Xie et al. 2023, Tables 9 to 11)
RESI_DUAL_IWSLT = {**_shape(256, 1024, 4, 6, (0.3, 0.1, 0.1)), "ln_mode": "resi_dual", "vocab_size": 10152}
RESI_DUAL_WMT = {**_shape(512, 2048, 8, 6, (0.3, 0.1, 0.1)), "ln_mode": "resi_dual", "vocab_size": 32768}
RESI_DUAL_OPUS = {
    **_shape(512, 2048, 8, 18, (0.1, 0.1, 0.1)),
    "ln_mode": "resi_dual",
    "ln_mode_options": {"dual_scale": 0.05},
    "share_encoder_decoder_embeddings": False,
    "vocab_size": 64000,
}
# fairseq's baseline: separate dictionaries of 10,000 joint merges (prepare-iwslt14.sh)
TRANSFORMER_IWSLT = {
    **_shape(512, 1024, 4, 6, (0.3, 0.0, 0.0)),
    "ln_mode": "post_ln",
    "share_encoder_decoder_embeddings": False,
    "vocab_size": 8848,
    "decoder_vocab_size": 6632,
}
# takase/b2t_connection, README of May 2023 (Takase et al. 2023): weights rescaled by L^-0.5 at every depth, and more
# than 6+6 layers with dropout 0.5 and word dropout 0.1. The paper: dropout 0.3, rescaling at 100+100 layers only.
B2T_WMT = {**_shape(512, 2048, 8, 6, (0.3, 0.0, 0.0)), "ln_mode": "b2t", "vocab_size": 32768}
B2T_DEEP = {**B2T_WMT, "dropout": 0.5, "encoder_word_dropout": 0.1, "decoder_word_dropout": 0.1}
# LiyuanLucasLiu/Transformer-Clinic, nmt-experiments/*.md (Liu et al. 2020); the trainer profiles a fresh model
ADMIN_WMT = {**_shape(512, 2048, 8, 6, (0.1, 0.1, 0.1)), "ln_mode": "admin", "vocab_size": 32768}
ADMIN_WMT_EN_FR = {**ADMIN_WMT, "vocab_size": 40000}
# wangqiangneu/dlcl, runs/train-wmt-en2de-deep-{postnorm,prenorm}-dlcl.sh (Wang et al. 2019): only the encoder is deep
DLCL_POST = {**_shape(512, 2048, 8, 6, (0.1, 0.0, 0.0)), "ln_mode": "dlcl_post", "vocab_size": 32768}
DLCL_PRE = {**_shape(512, 2048, 8, 6, (0.1, 0.1, 0.1)), "ln_mode": "dlcl_pre", "vocab_size": 32768}
# Liu et al. 2020, Rethinking Skip Connection with Layer Normalization: no official code; the paper names Vaswani et
# al.'s settings, whose base and big models these are. Its vocabularies are not stated.
RSKIP_BASE = {**_shape(512, 2048, 8, 6, (0.1, 0.0, 0.0)), "ln_mode": "rskip_ln", "vocab_size": 32768}
RSKIP_BIG = {**_shape(1024, 4096, 16, 6, (0.3, 0.0, 0.0)), "ln_mode": "rskip_ln", "vocab_size": 32768}

PRESETS: dict[str, dict[str, Any]] = {
    "resi_dual_iwslt_de_en": RESI_DUAL_IWSLT,
    "resi_dual_iwslt_de_en_12l": _layers(RESI_DUAL_IWSLT, 12, 12),
    "resi_dual_wmt_en_de": RESI_DUAL_WMT,
    "resi_dual_wmt_en_de_18l": _layers(RESI_DUAL_WMT, 18, 18),
    "resi_dual_opus100": RESI_DUAL_OPUS,
    "transformer_iwslt_de_en": TRANSFORMER_IWSLT,
    "transformer_wmt_en_de": {**_shape(512, 2048, 8, 6, (0.1, 0.0, 0.0)), "ln_mode": "post_ln", "vocab_size": 32768},
    "b2t_wmt_en_de": B2T_WMT,
    "b2t_wmt_en_de_18l": _layers(B2T_DEEP, 18, 18),
    "b2t_wmt_en_de_100l": _layers(B2T_DEEP, 100, 100),
    "admin_iwslt_de_en": {**_shape(512, 1024, 4, 6, (0.3, 0.1, 0.1)), "ln_mode": "admin", "vocab_size": 10152},
    "admin_wmt_en_de": ADMIN_WMT,
    "admin_wmt_en_de_12l": _layers(ADMIN_WMT, 12, 12),
    "admin_wmt_en_de_18l": _layers(ADMIN_WMT, 18, 18),
    "admin_wmt_en_fr": ADMIN_WMT_EN_FR,
    "admin_wmt_en_fr_60l_12l": _layers(ADMIN_WMT_EN_FR, 60, 12),
    # layer6ai-labs/T-Fixup, Train_IWSLT_TFixup_example.sh (Huang et al. 2020)
    "t_fixup_iwslt_de_en": {**TRANSFORMER_IWSLT, "ln_mode": "t_fixup", "dropout": 0.5},
    "dlcl_post_wmt_en_de_25l": _layers(DLCL_POST, 25, 6),
    "dlcl_pre_wmt_en_de_30l": _layers(DLCL_PRE, 30, 6),
    "rskip_iwslt15_en_vi": {**RSKIP_BASE, "vocab_size": 10000},
    "rskip_wmt_en_de": RSKIP_BASE,
    "rskip_wmt_en_de_big": RSKIP_BIG,
    # deep encoder, shallow decoder (Kasai et al. 2021): students, see docs/monolingual.md
    "student_6l_2l": _layers(RESI_DUAL_WMT, 6, 2, dropout=0.1),
    "student_8l_2l": _layers(RESI_DUAL_WMT, 8, 2, dropout=0.1),
    "student_12l_1l": _layers(RESI_DUAL_WMT, 12, 1, dropout=0.1),
    # about 2.6 M parameters (examples/multi30k)
    "multi30k_tiny": {**_shape(128, 256, 4, 4, (0.3, 0.0, 0.0)), "ln_mode": "resi_dual", "vocab_size": 9800},
}
