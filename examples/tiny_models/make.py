"""Write tiny random models of every ln_mode with their expected outputs, for the tests of other libraries.

python examples/tiny_models/make.py tiny_models [--modes resi_dual pre_ln]
"""

import argparse
from pathlib import Path

import torch

from residual_hf import ResidualConfig, ResidualForCausalLM, ResidualForConditionalGeneration
from residual_hf.base.files import write_json
from residual_hf.checkpoint import save_checkpoint
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.synthetic import generate_corpus
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.model.connections import LN_MODES

MODES = sorted(LN_MODES)
NEW_TOKENS = 8
COMMON = {"d_model": 16, "max_position_embeddings": 64, "dropout": 0.0}
DECODER = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
ENCODER = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}


def make_models(folder: Path, translators: list[str], language_models: list[str]) -> None:
    """Write model folders `folder/MODE` for modes of encoder-decoders and `folder/causal_lm/MODE` for decoders alone.

    `expected.json` in each holds inputs, logits and greedy tokens.
    """
    pairs = generate_corpus({"train": 200})["train"]
    texts = [text for pair in pairs for text in pair]
    tokenizer = train_tokenizer(texts, TokenizerSettings(kind="byte_bpe", vocab_size=400), model_max_length=64)
    batch = tokenizer([source for source, _ in pairs[:3]], padding=True, return_tensors="pt")
    target = tokenizer([target for _, target in pairs[:3]], padding=True, return_tensors="pt").input_ids[:, :6]
    texts_in = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    prompts = {"input_ids": target, "attention_mask": torch.ones_like(target)}
    translator = {**ENCODER, "source_lang": "en", "target_lang": "de"}
    for modes, home, fields, inputs, more in (
        (translators, folder, translator, texts_in, {"decoder_input_ids": target}),
        (language_models, folder / "causal_lm", {"is_decoder_only": True}, prompts, {}),
    ):
        for mode in modes:
            config = ResidualConfig(ln_mode=mode, vocab_size=len(tokenizer), **COMMON, **DECODER, **fields)
            model = random_model(config)
            save_checkpoint(model, tokenizer, home / mode)
            with torch.no_grad():
                expected = {"logits": model(**inputs, **more).logits}
            expected["generated"] = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
            write_json(home / mode / "expected.json", {k: v.tolist() for k, v in (inputs | more | expected).items()})


def random_model(config: ResidualConfig) -> ResidualForConditionalGeneration | ResidualForCausalLM:
    """A model whose scales, gates and norms are away from their initial 0 or 1, so that its outputs depend on them."""
    torch.manual_seed(0)
    model = (ResidualForConditionalGeneration if config.is_encoder_decoder else ResidualForCausalLM)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, metavar="MODE")
    options = parser.parse_args()
    make_models(options.output_dir, options.modes, options.modes)
    print(f"{2 * len(options.modes)} models in {options.output_dir}")
