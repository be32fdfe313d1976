"""Fine-tune with LoRA (PEFT): a few per cent of the weights are trained, and merged into the model at the end.

python lora.py --model runs/my_model/model --train train.en train.de --valid valid.en valid.de --output-dir adapted

Leaves the adapter in OUTPUT_DIR/adapter and the merged model, which needs no PEFT, in OUTPUT_DIR/model.
"""

from pathlib import Path

from finetune import build_parser, build_trainer, load, read
from peft import LoraConfig, get_peft_model

from residual_hf.checkpoint import save_checkpoint

TARGETS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rank", type=int, default=8)
    options = parser.parse_args()
    folder = Path(options.output_dir)
    model, tokenizer = load(options)
    config = LoraConfig(task_type="SEQ_2_SEQ_LM", r=options.rank, lora_alpha=2 * options.rank, target_modules=TARGETS)
    model = get_peft_model(model, config)
    model.print_trainable_parameters()
    trainer = build_trainer(model, tokenizer, read(*options.train), read(*options.valid), options)
    trainer.train()
    print(trainer.evaluate())
    model.save_pretrained(folder / "adapter")
    save_checkpoint(model.merge_and_unload(), tokenizer, folder / "model", overwrite=True)


if __name__ == "__main__":
    main()
