"""`python -m digits SPLIT`: classify a file of digits with the installed, lowered model."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

import hatch_lower
from digits.data import read_split

SHADES = " .:-=+*#%@"
DIGITS_IN_A_ROW = 6


def main() -> None:
    """Print predictions, and fail if too few of them are right."""
    parser = argparse.ArgumentParser(prog="python -m digits", description="Classify a file of 8x8 digits.")
    parser.add_argument("split", type=Path, help="a safetensors file with `images` and `labels`")
    parser.add_argument("--recipe", help="the lowered variant to run (default: the first that can run here)")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="FRACTION", help="the accuracy to insist on")
    arguments = parser.parse_args()

    images, labels = read_split(arguments.split)
    model = hatch_lower.load("digits", recipe=arguments.recipe)
    scores = model(images)
    embeddings = model.embed(images)
    predicted = scores.argmax(1)
    accuracy = (predicted == labels).double().mean().item()
    wrong = (predicted != labels).nonzero().flatten().tolist()

    print(f"model `digits`, recipe `{model.recipe}`, methods: {', '.join(model.methods)}")
    print(f"{len(images)} images that the training never saw; a batch of {len(images)} in one call\n")
    print("The first of them:\n")
    print(drawing(images[:DIGITS_IN_A_ROW], predicted, labels))
    if wrong:
        shown = wrong[:DIGITS_IN_A_ROW]
        print("Some that it got wrong:\n")
        print(drawing(images[shown], predicted[shown], labels[shown]))
    print(confusion(predicted, labels))
    same = neighbours(embeddings, labels)
    print(f"embed: {tuple(embeddings.shape)}; the nearest other embedding is of the same digit for {same:.2%}")
    print(f"accuracy: {accuracy:.2%} ({len(images) - len(wrong)} of {len(images)})")
    if accuracy < arguments.at_least:
        raise SystemExit(f"the accuracy is below {arguments.at_least:.2%}")


def drawing(images: Tensor, predicted: Tensor, labels: Tensor) -> str:
    """Return the images side by side, two characters a pixel, over what they are and what the model says."""
    rows = ["   ".join(shaded(image[0, y].tolist()) for image in images) for y in range(images.shape[2])]
    pairs = list(zip(labels.tolist(), predicted.tolist(), strict=True))[: len(images)]
    rows.append("   ".join(f"{f'is {label}, said {guess}':<16}" for label, guess in pairs))
    return "\n".join(f"  {row.rstrip()}" for row in rows) + "\n"


def shaded(pixels: list[float]) -> str:
    """Return a row of pixels, 0..1, as text."""
    return "".join(SHADES[round(pixel * (len(SHADES) - 1))] * 2 for pixel in pixels)


def confusion(predicted: Tensor, labels: Tensor) -> str:
    """Return the table of labels (rows) against predictions (columns)."""
    counts = torch.bincount(labels * 10 + predicted, minlength=100).reshape(10, 10).tolist()
    lines = ["  is\\said" + "".join(f"{digit:>5}" for digit in range(10))]
    for digit, row in enumerate(counts):
        lines.append(f"  {digit:>7}" + "".join(f"{count or '.':>5}" for count in row))
    return "\n".join(lines) + "\n"


def neighbours(embeddings: Tensor, labels: Tensor) -> float:
    """Return for which fraction of the images the closest other one, by embedding, shows the same digit."""
    distances = torch.cdist(embeddings, embeddings)
    distances.fill_diagonal_(float("inf"))
    return (labels[distances.argmin(1)] == labels).double().mean().item()


if __name__ == "__main__":
    main()
