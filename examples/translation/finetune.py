"""Fine-tune a saved model, or train a new one, with `Seq2SeqTrainer`.

python finetune.py --model runs/my_model/model --train train.en train.de --valid valid.en valid.de --output-dir tuned
"""

import argparse
from typing import Any

from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import residual_hf  # registers the model with the Auto classes
from residual_hf.data.language_names import adds_codes, begins_with_code, set_pair, target_code
from residual_hf.data.text_files import iter_lines
from residual_hf.evaluation.translation_metric import compute_metrics_for
from residual_hf.model.translation_inputs import target_reader


def build_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a saved folder or a name on the Hub")
    parser.add_argument("--train", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--valid", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--source-lang", help="for a model with codes of languages, such as NLLB's")
    parser.add_argument("--target-lang")
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def read(source: str, target: str, tag: str = "") -> dict[str, list[str]]:
    """Two text files as columns; a language tag goes before every source."""
    sources = [f"{tag} {line}" if tag else line for line in iter_lines(source)]
    return {"source": sources, "target": list(iter_lines(target))}


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model, with weights in fp32 also where its file has others, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model, dtype="float32")
    if adds_codes(tokenizer):
        if not (options.source_lang and options.target_lang):
            raise SystemExit("--source-lang, --target-lang: missing, needed by a model with codes of languages")
        set_pair(tokenizer, options.source_lang, options.target_lang, "--source-lang, --target-lang")
        if begins_with_code(tokenizer):
            model.generation_config.forced_bos_token_id = target_code(tokenizer)
        else:  # mBART's decoder starts with it
            model.config.decoder_start_token_id = target_code(tokenizer)
            model.generation_config.decoder_start_token_id = target_code(tokenizer)
    return model, tokenizer


def build_trainer(
    model: Any,
    tokenizer: Any,
    train: dict[str, list[str]],
    valid: dict[str, list[str]],
    options: argparse.Namespace,
) -> Seq2SeqTrainer:
    longest = min(256, model.config.max_position_embeddings)

    def encode(batch: dict) -> dict:
        targets = target_reader(tokenizer)(text_target=batch["target"])
        return {**tokenizer(batch["source"]), "labels": targets["input_ids"]}

    def encoded(pairs: dict[str, list[str]]) -> Dataset:
        rows = Dataset.from_dict(pairs).map(encode, batched=True, remove_columns=["source", "target"])
        kept = rows.filter(lambda row: max(len(row["input_ids"]), len(row["labels"])) <= longest)
        print(f"{len(kept)} of {len(rows)} pairs have at most {longest} tokens and are used")
        return kept

    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=options.batch_size,
            train_sampling_strategy="group_by_length",
            learning_rate=options.lr,
            lr_scheduler_type="inverse_sqrt",
            warmup_steps=options.max_steps // 10,
            adam_beta2=0.98,
            max_grad_norm=1.0,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            load_best_model_at_end=True,
            metric_for_best_model="bleu",
            predict_with_generate=True,
            generation_num_beams=2,
            ddp_find_unused_parameters=False,
            seed=options.seed,
        ),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        train_dataset=encoded(train),
        eval_dataset=encoded(valid),
        processing_class=tokenizer,
        compute_metrics=compute_metrics_for(tokenizer, metrics=("bleu", "chrf")),
        callbacks=[residual_hf.BranchWarmupCallback()],
    )


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--from-scratch", action="store_true", help="keep config and tokenizer, draw new weights")
    options = parser.parse_args()
    model, tokenizer = load(options)
    if options.from_scratch:
        search, model = model.generation_config, residual_hf.ResidualForConditionalGeneration(model.config)
        model.generation_config = search
    trainer = build_trainer(model, tokenizer, read(*options.train), read(*options.valid), options)
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model(options.output_dir)


if __name__ == "__main__":
    main()
