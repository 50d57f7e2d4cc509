"""Spectrograms on NumPy: the operations of `audio_utils` of transformers in the same order, for all frames at once.

Spectra are rounded to complex64 before their powers, as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = Any  # an array of NumPy

FRAME, HOP, TRANSFORM = 400, 160, 512  # samples at 16 kHz, of Kaldi's features
EMPHASIS = 0.97
FLOOR = 1.192092955078125e-07  # of Kaldi's powers
LOWEST = 20.0  # Hz
# of Slaney's scale: linear below a frequency, logarithmic above
EDGE_HERTZ, EDGE_MEL, MEL_PER_HERTZ = 1000.0, 15.0, 3.0 / 200.0
LOG_STEP = 27.0 / np.log(6.4)


def frames_of(samples: Numbers, length: int, hop: int) -> Numbers:
    """Return overlapping parts of a sound, float64 of shape (frames, length)."""
    return np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), length)[::hop]


def powers(frames: Numbers, transform: int) -> Numbers:
    """Return the power of each frequency, float64 of shape (frequencies, frames)."""
    spectra = np.fft.rfft(frames, transform).astype(np.complex64)
    return (np.abs(spectra, dtype=np.float64) ** 2.0).T


def log_mel(samples: Numbers, filters: Numbers, length: int, hop: int) -> Numbers:
    """Return the logarithms to base 10 of a sound's powers, float32 of shape (filters, frames), with centred frames."""
    around = np.pad(samples, length // 2, mode="reflect")
    window = np.hanning(length + 1)[:-1]
    found = np.maximum(1e-10, np.dot(filters.T, powers(frames_of(around, length, hop) * window, length)))
    return np.log10(found).astype(np.float32)


def kaldi_features(samples: Numbers, filters: Numbers, window: Numbers) -> Numbers:
    """Return the logarithms of powers as Kaldi computes them, float32 of shape (frames, filters)."""
    frames = frames_of(samples, FRAME, HOP)
    frames = frames - frames.mean(1, keepdims=True)
    frames[:, 1:] -= EMPHASIS * frames[:, :-1]
    frames[:, 0] *= 1 - EMPHASIS
    found = np.maximum(FLOOR, np.dot(filters.T, powers(frames * window, TRANSFORM)))
    return np.log(found).astype(np.float32).T


def slaney_filters(frequencies: int, count: int, rate: int, highest: float) -> Numbers:
    """Return filters of equal area on Slaney's scale, of shape (frequencies, count)."""
    top = EDGE_MEL + np.log(highest / EDGE_HERTZ) * LOG_STEP
    mels = np.linspace(0.0, top, count + 2)
    edges = 200.0 * mels / 3.0
    above = mels >= EDGE_MEL
    edges[above] = EDGE_HERTZ * np.exp(np.log(6.4) / 27.0 * (mels[above] - EDGE_MEL))
    filters = triangles(np.linspace(0, rate // 2, frequencies), edges)
    return filters * (2.0 / (edges[2:] - edges[:-2]))


def kaldi_filters(count: int, rate: int) -> Numbers:
    """Return Kaldi's filters, triangles on the mel scale, of shape (frequencies, count)."""
    frequencies = TRANSFORM // 2 + 1
    edges = np.linspace(kaldi_mel(LOWEST), kaldi_mel(rate // 2), count + 2)
    return triangles(kaldi_mel(rate / ((frequencies - 1) * 2) * np.arange(frequencies)), edges)


def kaldi_mel(hertz: Any) -> Any:
    return 1127.0 * np.log(1.0 + (hertz / 700.0))


def triangles(places: Numbers, edges: Numbers) -> Numbers:
    widths = np.diff(edges)
    slopes = edges[None] - places[:, None]
    return np.maximum(0.0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))
