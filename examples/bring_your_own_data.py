"""Your own images, arrays or torch data sets: three ways in, one comparison.

Draws circles, squares and triangles into a folder with a folder for each class, as yours may be; loads it, and compares
learning alone with learning together. The same samples then come in as arrays and as a torch data set.

    python examples/bring_your_own_data.py

With a folder of your own the command is `consilience compare --data FOLDER --methods independent,consilience`.
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


def drawn(shape: str, generator: np.random.Generator) -> Image.Image:
    """A shape somewhere in a gray picture, of some size, on some noise."""
    ground = generator.integers(0, 90, (SIDE, SIDE), dtype=np.uint8)  # (height, width)
    picture = Image.fromarray(ground)
    size = int(generator.integers(6, 11))
    left, top = (int(n) for n in generator.integers(0, SIDE - size, 2))
    right, bottom, light = left + size, top + size, int(generator.integers(110, 200))
    draw = ImageDraw.Draw(picture)
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=light)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), fill=light)
    else:
        draw.polygon([(left + size // 2, top), (left, bottom), (right, bottom)], fill=light)
    return picture


def draw_folder(folder: Path, each: int) -> None:
    """FOLDER/circle/000.png and so on: where an image lies says what it is."""
    generator = np.random.default_rng(0)
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for number in range(each):
            drawn(shape, generator).save(folder / shape / f"{number:03}.png")


def main() -> None:
    """From a folder to a comparison; then from arrays and from torch."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "shapes"
        draw_folder(folder, each=100)
        data = load(str(folder), test_share=0.4)
    print(f"{data.name}: {data.inputs.shape} to train on, {data.test_inputs.shape} for tests, {', '.join(data.labels)}")
    for method in ("independent", "consilience"):
        result = simulate(
            data=data, method=method, model="lenet5", learners=3, epochs=4, rounds=20, eval_every=20, workers=0
        )
        print(f"{method:12} {result.accuracy.mean():5.1f} %")

    # Arrays: (n, height, width), (n, height, width, channels) or (n, channels, height, width); or tables (n, features).
    pixels = np.concatenate([data.inputs, data.test_inputs])[:, 0] * data.std + data.mean  # (n, height, width) in 0..1
    answers = np.concatenate([data.targets, data.test_targets])  # (n,)
    arrays = Dataset.from_arrays("arrays", pixels, answers, labels=SHAPES)
    print(f"{arrays.name}: {arrays.inputs.shape}, mean {arrays.mean:.2f}, {len(arrays.test_targets)} kept for tests")

    # Whatever torch can number: anything with a length that gives (input, label) pairs.
    pairs = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(answers))
    from_torch = Dataset.from_torch(pairs, name="torch", labels=SHAPES)
    agree = np.array_equal(from_torch.inputs, arrays.inputs)
    print(f"{from_torch.name}: {from_torch.inputs.shape}, the same samples as from arrays: {agree}")


if __name__ == "__main__":
    main()
