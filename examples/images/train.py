# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Train a pre-activation ResNet on CIFAR with the stock `Trainer`, as He et al. (2016) did.

    python examples/images/train.py --data cifar10 --output runs/2rskip --depth 20 --ln-mode rskip_ln

`--data` is what `datasets.load_dataset` reads: a folder with train/CLASS/*.png and test/CLASS/*.png, a folder with
parquet files, or a name on the Hub. Images of different sizes need `--image-size`. A run that was interrupted goes on
when it is started again. It leaves a model for `pipeline("image-classification")` and `result.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Image, load_dataset
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import Trainer, TrainingArguments, ViTImageProcessor, set_seed
from transformers.trainer_utils import get_last_checkpoint

from residual_hf import ResidualForImageClassification, ResidualImageConfig
from residual_hf.base.errors import InputError, requires

CONNECTIONS = ("depth", "ln_mode", "ln_mode_options", "norm_type")


class Images(torch.utils.data.Dataset):
    """Images (images, 3, height, width) as bytes, normalized, and for training cropped and flipped."""

    def __init__(self, images: Tensor, labels: Tensor, mean: Tensor, std: Tensor, augment: bool):
        self.images, self.labels, self.mean, self.std, self.augment = images, labels, mean, std, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        images = (self.images[indices].float() / 255 - self.mean[:, None, None]) / self.std[:, None, None]
        if self.augment:
            images = cropped_and_flipped(images)
        return {"pixel_values": images, "labels": self.labels[indices]}


def cropped_and_flipped(images: Tensor, padding: int = 4) -> Tensor:
    """Random crops of the padded images (batch, 3, height, width), every second one flipped, of the same size."""
    count, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, [padding] * 4)
    top, left = torch.randint(2 * padding + 1, (2, count, 1))
    columns = torch.arange(width).repeat(count, 1)
    columns = left + torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    rows = top + torch.arange(height)
    image, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def read(data: str, size: int | None = None) -> tuple[dict[str, tuple[Tensor, Tensor]], list[str]]:
    """The images as bytes and labels of the splits "train" and "test", and the names of the classes.

    Raises `InputError` for data that cannot be used, before any training.
    """
    folder = Path(data).resolve()
    try:  # as a path, since "parquet" and "csv" are names of loaders too
        splits = load_dataset(str(folder) if folder.is_dir() else data)
    except (OSError, ValueError, DatasetsError) as error:
        raise InputError(f"--data {data}: no folder of images, and no dataset on the Hub: {error}") from error
    if not {"train", "test"} <= {*splits}:
        raise InputError(f"--data {data}: needs the splits train and test, has {', '.join(splits)}")
    features = splits["train"].features
    image = next((name for name, feature in features.items() if isinstance(feature, Image)), None)
    classes = {name: feature.names for name, feature in features.items() if isinstance(feature, ClassLabel)}
    if image is None or not classes:  # of a folder with one class there are no labels
        raise InputError(f"--data {data}: needs images of two classes or more, has the columns {', '.join(features)}")
    label = max(classes, key=lambda name: len(classes[name]))  # CIFAR-100 has coarse labels too
    names = classes[label]
    folders = {path.name for path in folder.glob("train/[!.]*") if path.is_dir()}
    if empty := {*names, *folders} - {names[number] for number in splits["train"].unique(label)}:
        raise InputError(f"--data {data}: no images in train of {', '.join(sorted(empty))}")
    images = pixels([splits["train"], splits["test"]], image, size)
    return {name: (images.pop(0), torch.tensor(splits[name][label])) for name in ("train", "test")}, names


def pixels(splits: list[Dataset], column: str, size: int | None) -> list[Tensor]:
    """The images of each split as bytes (images, 3, height, width), scaled to `size` x `size` if it is given."""
    found: list[list[np.ndarray]] = [[] for _ in splits]
    for split, arrays in zip(splits, found, strict=True):
        for number, stored in enumerate(split.cast_column(column, Image(decode=False))[column]):
            name = stored["path"] or f"image {number} of {split.split}"
            try:
                picture = Image().decode_example(stored).convert("RGB")
            except (OSError, SyntaxError, ValueError) as error:  # of Pillow
                raise InputError(f"{name}: not an image, or damaged: {error}") from error
            arrays.append(np.asarray(picture if size is None else picture.resize((size, size), resample=2)))
            (height, width, _), (first, second, _) = arrays[-1].shape, found[0][0].shape
            if (height, width) != (first, second):
                raise InputError(f"{name}: {height} x {width}, but the first is {first} x {second}: set --image-size")
    return [torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous() for arrays in found]


def build_config(options: argparse.Namespace, names: list[str]) -> ResidualImageConfig:
    fields = {name: getattr(options, name) for name in CONNECTIONS}
    label2id = {name: i for i, name in enumerate(names)}
    try:
        return ResidualImageConfig(**fields, id2label=dict(enumerate(names)), label2id=label2id)
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise InputError(str(error.__cause__ or error)) from error


def rate(update: int, updates: int, warm_up: int) -> float:
    """A tenth from the half, a hundredth from three quarters of the training, and a tenth in the first updates."""
    return 0.1 ** (int(update < warm_up) + int(update >= updates / 2) + int(update >= updates * 3 / 4))


def train(options: argparse.Namespace) -> None:
    for name, value in {"--epochs": options.epochs, "--image-size": options.image_size}.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    with requires("images"):
        import PIL.Image  # noqa: F401  # without which `datasets` reads no image
    build_config(options, [])  # its errors before the data
    set_seed(options.seed)
    splits, names = read(options.data, options.image_size)
    config = build_config(options, names)
    last = get_last_checkpoint(options.output) if options.output.exists() else None
    before = config if last is None else ResidualImageConfig.from_pretrained(last)
    if any(getattr(before, name) != getattr(config, name) for name in (*CONNECTIONS, "id2label")):
        raise InputError(f"--output {options.output}: has a run with another network or other classes")
    pixels = splits["train"][0].float() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    train, test = (Images(*splits[name], mean, std, augment=name == "train") for name in ("train", "test"))
    model = ResidualForImageClassification(config)

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
    updates = options.epochs * -(-len(train) // arguments.train_batch_size)
    warm_up = min(400, updates // 100) if options.depth >= 110 else 0
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
    )
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model()

    history = trainer.state.log_history
    result = {
        "error": next(row["eval_error"] for row in reversed(history) if "eval_error" in row),
        "errors": [row["eval_error"] for row in history if "eval_error" in row],
        "losses": [[row["step"], row["loss"]] for row in history if "loss" in row],
        "parameters": model.num_parameters(),
        **{name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
    }
    (options.output / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"test error {result['error']:.2f} % after {options.epochs} epochs: {options.output / 'result.json'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--image-size", type=int, help="scale images to this height and width")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=110)
    parser.add_argument("--ln-mode", default="xskip", help="the default is the plain network, x + F(x)")
    parser.add_argument("--ln-mode-options", type=json.loads, default={}, help='as JSON: {"skip_order": 3}')
    parser.add_argument("--norm-type", help="of the connections; the blocks have batch norm")
    parser.add_argument("--epochs", type=int, default=164)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="convolutions in bfloat16")
    try:
        train(parser.parse_args())
    except InputError as error:
        sys.exit(f"train.py: {error}")


if __name__ == "__main__":
    main()
