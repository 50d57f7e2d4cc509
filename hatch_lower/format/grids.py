"""Images of different sizes in a language model: the numbers that its methods take for the grid of an image's places.

A place is a square of patches, whose features are those of one token. Both the build and the installed package compute
these numbers, so that the build's comparison covers them. Positions are floats: not every engine converts int64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hatch_lower.errors import InputError

Numbers = Any  # an array of NumPy
Sides = tuple[int, int]  # height and width in places


def image_patches(pixels: Numbers, patch: int, merge: int) -> Numbers:
    """Return the patches of an image, of shape (places, patches of a place, pixels of a patch).

    Args:
        pixels: of shape (channels, height, width), of whole places.
        patch: the side of a patch in pixels.
        merge: the side of a place, in patches.
    """
    channels, *sides = pixels.shape
    height, width = (side // (patch * merge) for side in sides)
    parts = pixels.reshape(channels, height, merge, patch, width, merge, patch).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.ascontiguousarray(parts).reshape(height * width, merge**2, -1)


def patch_positions(sides: Sides, merge: int) -> Numbers:
    """Return the row and the column of each patch, float32 of shape (places, patches of a place, 2).

    Args:
        sides: of the image.
        merge: the side of a place, in patches.
    """
    height, width = sides
    found = np.moveaxis(np.indices((height * merge, width * merge), dtype=np.float32), 0, -1)
    return found.reshape(height, merge, width, merge, 2).swapaxes(1, 2).reshape(height * width, merge * merge, 2)


def table_weights(sides: Sides, merge: int, table: int) -> Numbers:
    """Return weights of the rows and columns of a square table, whose corners are those of the image.

    Args:
        sides: of the image.
        merge: the side of a place, in patches.
        table: the side of the table.

    Returns:
        float32 of shape (places, patches of a place, 2, side of the table).
    """
    last = np.maximum(np.array(sides) * merge - 1, 1).astype(np.float32)
    points = patch_positions(sides, merge) * np.float32(table - 1) / last
    return np.maximum(1 - np.abs(points[..., None] - np.arange(table, dtype=np.float32)), 0)


def same_window(sides: Sides, window: int) -> Numbers:
    """Return whether places are in the same window, bool of shape (places, places); `window` is a side in places."""
    rows, columns = np.indices(sides).reshape(2, -1) // window
    return (rows[:, None] == rows) & (columns[:, None] == columns)


def token_positions(ids: Numbers, visible: Numbers, token: int, images: Iterable[Sides]) -> Numbers:
    """Return three positions of each token, float32 of shape (3, rows, tokens): of time, of rows, of columns.

    The positions of a text are equal. An image begins at the next position, and takes as many as its longer side.

    Args:
        ids: prompts of shape (rows, tokens).
        visible: bool of the same shape: false for padding, which has the position 0.
        token: of images.
        images: the sides of each image, in the order of the prompts.

    Raises:
        InputError: if the tokens of an image are not side by side.
    """
    found = np.zeros((3, *ids.shape), dtype=np.float32)
    remaining = iter(images)
    for row, places in enumerate(map(np.flatnonzero, visible)):
        index = position = 0
        while index < len(places):
            if ids[row, places[index]] != token:
                found[:, row, places[index]] = position
                index, position = index + 1, position + 1
                continue
            height, width = next(remaining, (0, 0))
            own = places[index : index + height * width]
            if not own.size or len(own) != height * width or (ids[row, own] != token).any():
                raise InputError(
                    "the tokens of an image must be side by side",
                    where="`input_ids`",
                    found=f"an image of {height} x {width} tokens at token {places[index]} of row {row}",
                    hint="give the prompts and the images of one call of the processor",
                )
            found[:, row, own] = position
            found[1:, row, own] += np.indices((height, width)).reshape(2, -1)
            index, position = index + len(own), position + max(height, width)
    return found
