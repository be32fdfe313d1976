"""Change the residual connections of a trained model, without changing its outputs, and continue training.

python change_mode.py --model runs/post_ln/model --ln-mode resi_dual --train train.en train.de
    --valid valid.en valid.de --output-dir runs/resi_dual

The model may also be one of Transformers (MarianMT, NLLB, BART, mBART, FSMT), such as Helsinki-NLP/opus-mt-en-de.
"""

import json

from finetune import build_parser, build_trainer, load, read

from residual_hf import ResidualForConditionalGeneration
from residual_hf.conversion import change_ln_mode, from_transformers


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--ln-mode", required=True, help="see `residual-hf modes`; one that contains the model's")
    parser.add_argument("--ln-mode-options", type=json.loads, default={}, help="as in '{\"dual_scale\": 0.05}'")
    parser.add_argument("--stack", choices=("encoder", "decoder"), help="change one stack only")
    options = parser.parse_args()
    model, tokenizer = load(options)
    if not isinstance(model, ResidualForConditionalGeneration):
        model = from_transformers(model)
    model = change_ln_mode(model, options.ln_mode, options.ln_mode_options, stack=options.stack)
    trainer = build_trainer(model, tokenizer, read(*options.train), read(*options.valid), options)
    print("before training:", trainer.evaluate())
    trainer.train()
    print("after training:", trainer.evaluate())
    trainer.save_model(options.output_dir)


if __name__ == "__main__":
    main()
