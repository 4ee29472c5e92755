"""Use your own images, arrays or torch data sets.

Draws circles, squares and triangles into a folder with one subfolder per class, loads the folder, and compares
independent with collaborative learning. Then loads the same samples from arrays and from a torch data set.

    python examples/bring_your_own_data.py

For your own folder, run `consilience compare --data FOLDER --methods independent,consilience`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.utils.data import TensorDataset

from consilience import Dataset, load, simulate

SHAPES = ("circle", "square", "triangle")
SIDE = 16  # pixels


def draw_image(shape: str, generator: np.random.Generator) -> Image.Image:
    """One gray image: the shape at a random position, with random size and brightness, on a noisy background."""
    background = generator.integers(0, 90, (SIDE, SIDE), dtype=np.uint8)  # (height, width)
    image = Image.fromarray(background)
    size = int(generator.integers(6, 11))
    left, top = (int(n) for n in generator.integers(0, SIDE - size, 2))
    right, bottom, brightness = left + size, top + size, int(generator.integers(110, 200))
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=brightness)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), fill=brightness)
    else:
        draw.polygon([(left + size // 2, top), (left, bottom), (right, bottom)], fill=brightness)
    return image


def draw_folder(folder: Path, images_per_class: int) -> None:
    """Write FOLDER/circle/000.png and so on; the subfolder is the class."""
    generator = np.random.default_rng(0)
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for number in range(images_per_class):
            draw_image(shape, generator).save(folder / shape / f"{number:03}.png")


def main() -> None:
    """Compare two methods on the folder; then load the same samples from arrays and from torch."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "shapes"
        draw_folder(folder, images_per_class=100)
        data = load(str(folder), test_share=0.4)
    print(
        f"{data.name}: {data.inputs.shape} for training, {data.test_inputs.shape} for tests, {', '.join(data.labels)}"
    )
    for method in ("independent", "consilience"):
        result = simulate(
            data=data, method=method, model="lenet5", learners=3, epochs=4, rounds=20, eval_every=20, workers=0
        )
        print(f"{method:12} {result.accuracy.mean():5.1f} %")

    # Arrays: (n, height, width), (n, height, width, channels) or (n, channels, height, width); or tables (n, features).
    pixels = data.scaling.undo(np.concatenate([data.inputs, data.test_inputs]))[:, 0]  # (n, height, width) in 0..1
    labels = np.concatenate([data.targets, data.test_targets])  # (n,)
    arrays = Dataset.from_arrays("arrays", pixels, labels, labels=SHAPES)
    print(f"{arrays.name}: {arrays.inputs.shape}, {len(arrays.test_targets)} for tests, {arrays.scaling.describe()}")

    # Any torch data set with a length that returns (input, label) pairs.
    pairs = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels))
    from_torch = Dataset.from_torch(pairs, name="torch", labels=SHAPES)
    same = np.array_equal(from_torch.inputs, arrays.inputs)
    print(f"{from_torch.name}: {from_torch.inputs.shape}, the same samples as from arrays: {same}")


if __name__ == "__main__":
    main()
