"""The images of CIFAR, or of your own, in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Image, load_dataset
from datasets.exceptions import DatasetsError
from torch import Tensor

from residual_hf.base.errors import InputError, for_all


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
    shapes = []

    def pixels_of(place: tuple[Dataset, int, dict[str, Any]]) -> np.ndarray:
        split, number, stored = place
        name = stored["path"] or f"image {number} of {split.split}"
        try:
            picture = Image().decode_example(stored)
            if picture.mode[0] in "IF":  # Pillow would make all above 255 white
                raise InputError(f"{name}: has more than 8 bits a channel; convert it")
            picture = picture.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:  # of Pillow
            raise InputError(f"{name}: not an image, or damaged: {error}") from error
        array = np.asarray(picture if size is None else picture.resize((size, size), resample=2))
        shapes.append("{} x {}".format(*array.shape))
        if shapes[-1] != shapes[0]:
            raise InputError(f"{name}: {shapes[-1]}, but the first is {shapes[0]}: set --image-size")
        return array

    rows = [
        (split, *row) for split in splits for row in enumerate(split.cast_column(column, Image(decode=False))[column])
    ]
    found = np.stack(for_all(pixels_of, rows))
    return list(torch.from_numpy(found).permute(0, 3, 1, 2).contiguous().split([len(split) for split in splits]))
