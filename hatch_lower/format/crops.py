"""Images as crops of one size in a language model: the features of an image from those of its crops.

The first crop is the whole image, and the others are parts of the resized image with borders. Both the build and the
installed package compute these numbers, so that the build's comparison covers them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hatch_lower.frozen import Frozen

Numbers = Any  # an array of NumPy
Sides = tuple[int, int]  # height and width


class Crops(Frozen):
    """The crops of a model."""

    side: int  # of a crop, in pixels
    places: int  # side of a crop, in features
    resolutions: Sequence[Sides]  # of resized images with borders, in pixels
    most: int  # the number of crops whose features an image has at most; 0: each

    def grid(self, size: Sides) -> Sides:
        """Return the rows and columns of the crops of an image, by the image's height and width in pixels."""
        height, width = best_resolution(size, self.resolutions)
        return height // self.side, width // self.side

    def packed(self, features: Numbers, size: Sides) -> Numbers:
        """Return the features of an image, float32 of shape (places, features).

        Args:
            features: float32 of shape (crops, places of a crop and a line's end, features).
            size: height and width of the image in pixels.
        """
        whole, end = features[0, :-1], features[0, -1]
        if len(features) == 1:
            return features[0]
        rows, columns = self.grid(size)
        parts = features[1:, :-1].reshape(rows, columns, self.places, self.places, -1)
        found = parts.swapaxes(1, 2).reshape(rows * self.places, columns * self.places, -1)
        found = without_borders(found, size)
        height, width = found.shape[:2]
        ratio = math.sqrt(height * width / (self.most * self.places**2)) if self.most else 1.0
        if ratio > 1.1:
            found = interpolated(interpolated(found, int(height // ratio), 0), int(width // ratio), 1)
        ends = np.broadcast_to(end, (len(found), 1, len(end)))
        return np.concatenate([whole, np.concatenate([found, ends], 1).reshape(-1, len(end))])


def best_resolution(size: Sides, resolutions: Sequence[Sides]) -> Sides:
    """Return the resolution that keeps most pixels of an image, and of several the one with the least border."""
    height, width = size

    def kept(sides: Sides) -> tuple[int, int]:
        scale = min(sides[1] / width, sides[0] / height)
        pixels = min(int(width * scale) * int(height * scale), width * height)
        return pixels, pixels - sides[0] * sides[1]

    return max(resolutions, key=kept)


def without_borders(features: Numbers, size: Sides) -> Numbers:
    height, width = features.shape[:2]
    if size[1] / size[0] > width / height:
        inner = int(round(size[0] * (width / size[1]), 7))
        border = (height - inner) // 2
        return features[border : height - border]
    inner = int(round(size[1] * (height / size[0]), 7))
    border = (width - inner) // 2
    return features[:, border : width - border]


def interpolated(features: Numbers, count: int, axis: int) -> Numbers:
    """Return linear interpolations along an axis at the centers of `count` equal parts."""
    have = features.shape[axis]
    places = np.maximum((np.arange(count, dtype=np.float32) + 0.5) * np.float32(have / count) - 0.5, 0)
    first = places.astype(np.int64)
    shape = [-1 if each == axis else 1 for each in range(features.ndim)]
    weights = (places - first).astype(np.float32).reshape(shape)
    second = np.minimum(first + 1, have - 1)
    return features.take(first, axis) * (1 - weights) + features.take(second, axis) * weights
