"""Train a pre-activation ResNet or a ViT on CIFAR with the stock `Trainer`, as He et al. (2016) trained ResNets.

    python examples/images/train.py --data cifar10 --output runs/2rskip --depth 20 --ln-mode rskip_ln
    python examples/images/train.py --data cifar10 --output runs/vit --ln-mode b2t --config '{"architecture": "vit"}'

`--data` is what `datasets.load_dataset` reads: a folder with train/CLASS/*.png and test/CLASS/*.png, a folder with
parquet files, or a name on the Hub. Images of different sizes need `--image-size`. A run that was interrupted goes on
when it is started again. It leaves a model for `pipeline("image-classification")` and `result.json`.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from pictures import Images, read
from transformers import Trainer, TrainingArguments, ViTImageProcessor, set_seed

from residual_hf import ResidualForImageClassification, ResidualImageConfig
from residual_hf.base.errors import InputError, requires
from residual_hf.model.profiling import wants_profile
from residual_hf.training.callbacks import BranchWarmupCallback
from residual_hf.training.checkpoints import complete_checkpoints
from residual_hf.training.launch import use_one_gpu

CONNECTIONS = ("ln_mode", "ln_mode_options", "norm_type")


def build_config(options: argparse.Namespace) -> ResidualImageConfig:
    """The network that the options describe, without its classes."""
    fields = {name: getattr(options, name) for name in ("depth", *CONNECTIONS)}
    if options.depth is None and "architecture" not in options.config:
        fields["depth"] = 110
    if options.image_size is not None:
        fields["image_size"] = options.image_size
    try:
        return ResidualImageConfig(**fields, **options.config)
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise InputError(str(error.__cause__ or error)) from error


def rate(update: int, updates: int, warm_up: int) -> float:
    """A tenth from the half, a hundredth from three quarters of the training, and a tenth in the first updates."""
    return 0.1 ** (int(update < warm_up) + int(update >= updates / 2) + int(update >= updates * 3 / 4))


def last_checkpoint(options: argparse.Namespace, config: ResidualImageConfig, size: int | None) -> Path | None:
    """That of an interrupted run in the output folder, which gets a record of the options.

    Raises `InputError` if a run there has another network, or other options.
    """
    last = next(reversed(complete_checkpoints(options.output)), None)
    before = config if last is None else ResidualImageConfig.from_pretrained(last)
    fields = ("depth", *CONNECTIONS, "id2label", *options.config)
    if any(getattr(before, name) != getattr(config, name) for name in fields):
        raise InputError(f"--output {options.output}: has a run with another network or other classes")
    given = {"--data": str(options.data), "--epochs": options.epochs, "--seed": options.seed}
    given |= {"--bf16": options.bf16, "--image-size": size}
    record = options.output / "options.json"
    known = json.loads(record.read_text()) if record.exists() else given
    if other := [name for name, value in given.items() if known.get(name, value) != value]:  # older ones lack epochs
        raise InputError(f"--output {options.output}: has a run with {other[0]} {known[other[0]]}")
    options.output.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(given) + "\n")
    return last


def train(options: argparse.Namespace) -> None:
    for name, value in {"--epochs": options.epochs, "--image-size": options.image_size}.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    with requires("images"):
        import PIL.Image  # noqa: F401  # without which `datasets` reads no image
    config = build_config(options)
    set_seed(options.seed)
    size = options.image_size if config.is_resnet else config.image_size
    splits, names = read(options.data, size)
    config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    last = last_checkpoint(options, config, size)
    pixels = splits["train"][0].float() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    train, test = (Images(*splits[name], mean, std, augment=name == "train") for name in ("train", "test"))
    model = ResidualForImageClassification(config)
    if last is None and wants_profile(model):
        model.profile_admin(train.__getitems__([*range(min(128, len(train)))]))

    arguments = TrainingArguments(
        output_dir=str(options.output),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=128,
        per_device_eval_batch_size=500,
        max_grad_norm=0.0,  # no clipping
        bf16=options.bf16,
        use_cpu=not torch.cuda.is_available(),
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        remove_unused_columns=False,  # the dataset makes whole batches
        logging_steps=50,
        report_to="none",
        seed=options.seed,
    )
    use_one_gpu(arguments)  # several would train on as many batches of 128 at once
    updates = options.epochs * -(-len(train) // arguments.train_batch_size)
    warm_up = min(400, updates // 100) if (config.depth or 0) >= 110 else 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, updates, warm_up))
    trainer = Trainer(
        model,
        arguments,
        train_dataset=train,
        eval_dataset=test,
        data_collator=lambda batch: batch,
        processing_class=ViTImageProcessor(
            size={"height": pixels.shape[2], "width": pixels.shape[3]},
            image_mean=mean.tolist(),
            image_std=std.tolist(),
        ),
        compute_metrics=lambda p: {"error": 100 * float((p.predictions.argmax(-1) != p.label_ids).mean())},
        optimizers=(optimizer, schedule),
        callbacks=[BranchWarmupCallback()],
    )
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model()

    history = trainer.state.log_history
    errors = [row["eval_error"] for row in history if "eval_error" in row]
    result = {
        "error": errors[-1],
        "errors": errors,
        "losses": [[row["step"], row["loss"]] for row in history if "loss" in row],
        "parameters": model.num_parameters(),
        **{name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
        **{"depth": config.depth, "image_size": size},
    }
    (options.output / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"test error {result['error']:.2f} % after {options.epochs} epochs: {options.output / 'result.json'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--image-size", type=int, help="scale images to this height and width")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--depth", type=int, help="of a ResNet; 110 by default")
    parser.add_argument("--ln-mode", default="xskip", help="the default is the plain network, x + F(x)")
    parser.add_argument("--ln-mode-options", type=json.loads, default={}, help='as JSON: {"skip_order": 3}')
    parser.add_argument("--norm-type", help="of the connections; the blocks have batch norm")
    parser.add_argument("--config", type=json.loads, default={}, help='other fields: {"architecture": "vit"}')
    parser.add_argument("--epochs", type=int, default=164)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="convolutions in bfloat16")
    try:
        train(parser.parse_args())
    except InputError as error:
        sys.exit(f"train.py: {error}")


if __name__ == "__main__":
    main()
