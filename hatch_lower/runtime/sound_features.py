"""Feature extractors of transformers: from sounds to the inputs of a model, on NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hatch_lower.frozen import Frozen
from hatch_lower.runtime.processors import integer_from, number_from
from hatch_lower.runtime.spectrograms import (
    FRAME,
    HOP,
    kaldi_features,
    kaldi_filters,
    log_mel,
    slaney_filters,
)

Numbers = Any  # an array of NumPy

HIGHEST = 8000.0  # Hz, of Whisper's filters
RANGE = 8.0  # of Whisper's logarithms
TINY = 1e-7  # added to variances
RATES = (1000, 400_000)  # samples a second
FILTERS = (1, 1024)
FRAMES = (1, 1 << 14)  # of a sound, or samples of a frame
SECONDS = (1, 600)
FULL_SCALE = 1 << 15  # of 16-bit samples


class Extractor(Protocol):
    """A feature extractor with the numbers of its configuration."""

    @property
    def shortest(self) -> int:
        """The least number of samples."""

    @property
    def longest(self) -> int | None:
        """The largest number of samples; `None` without a limit."""

    def features(self, sounds: Sequence[Numbers]) -> dict[str, Numbers]:
        """Return inputs of a model by name, for sounds of float32."""


class Padding(Frozen):
    side: str
    value: float

    def padded(self, array: Numbers, length: int) -> Numbers:
        """Return an array with `length` entries in its first dimension, at least those of the array."""
        missing = max(length - len(array), 0)
        widths = [(0, missing) if self.side == "right" else (missing, 0), *[(0, 0)] * (array.ndim - 1)]
        return np.pad(array, widths, constant_values=self.value)

    def mask(self, length: int, longest: int) -> Numbers:
        """Return 1 at entries of an array, and 0 at padding, int64 of shape (longest,)."""
        return Padding(self.side, 0).padded(np.ones(length, dtype=np.int64), longest)


class Whisper(Frozen):
    """Logarithms of a mel spectrogram of a fixed length."""

    filters: int
    rate: int
    hop: int
    frame: int
    longest: int
    padding: Padding
    shortest: int = 1

    def features(self, sounds: Sequence[Numbers]) -> dict[str, Numbers]:
        filters = slaney_filters(1 + self.frame // 2, self.filters, self.rate, HIGHEST)
        found = []
        for sound in sounds:
            logs = log_mel(self.padding.padded(sound, self.longest), filters, self.frame, self.hop)[:, :-1]
            found.append((np.maximum(logs, logs.max() - RANGE) + 4.0) / 4.0)
        return {"input_features": np.stack(found)}


class Waveforms(Frozen):
    """Samples of Wav2Vec2 and its relatives, padded to the longest sound."""

    padding: Padding
    normalizes: bool
    has_mask: bool
    shortest: int = 1
    longest: int | None = None

    def features(self, sounds: Sequence[Numbers]) -> dict[str, Numbers]:
        longest = max(map(len, sounds))
        rows = [self.padding.padded(sound, longest) for sound in sounds]
        if self.normalizes:
            # without a mask, the mean is that of sound and padding, as transformers computes it
            lengths = [len(sound) if self.has_mask else longest for sound in sounds]
            rows = [self._normalized(row, length) for row, length in zip(rows, lengths, strict=True)]
        found = {"input_values": np.stack(rows)}
        if self.has_mask:
            found["attention_mask"] = np.stack([self.padding.mask(len(sound), longest) for sound in sounds])
        return found

    def _normalized(self, row: Numbers, length: int) -> Numbers:
        part = row[:length]
        found = (row - part.mean()) / np.sqrt(part.var() + TINY)
        found[length:] = self.padding.value
        return found


class Spectra(Frozen):
    """Kaldi's features of a fixed number of frames, for the audio spectrogram transformer; longer sounds are cut."""

    filters: int
    rate: int
    frames: int
    mean: float
    deviation: float
    normalizes: bool
    shortest: int = FRAME
    longest: int | None = None

    def features(self, sounds: Sequence[Numbers]) -> dict[str, Numbers]:
        filters, window = kaldi_filters(self.filters, self.rate), np.hanning(FRAME)
        heard = [sound[: (self.frames - 1) * HOP + FRAME] for sound in sounds]
        zeros = Padding("right", 0.0)
        found = np.stack([zeros.padded(kaldi_features(sound, filters, window), self.frames) for sound in heard])
        return {"input_values": (found - self.mean) / (self.deviation * 2) if self.normalizes else found}


class Banks(Frozen):
    """Kaldi's features in groups of frames, normalized for each filter, for SeamlessM4T and Wav2Vec2-BERT."""

    filters: int
    rate: int
    stride: int
    padding: Padding
    has_mask: bool
    longest: int | None = None

    @property
    def shortest(self) -> int:
        return FRAME + HOP * max(self.stride - 1, 1)  # the variance of a single frame is no number

    def features(self, sounds: Sequence[Numbers]) -> dict[str, Numbers]:
        filters, window = kaldi_filters(self.filters, self.rate), np.power(np.hanning(FRAME), 0.85)
        rows = [kaldi_features(sound * FULL_SCALE, filters, window) for sound in sounds]
        rows = [(row - row.mean(0)) / np.sqrt(row.var(0, ddof=1) + TINY) for row in rows]
        longest = -(-max(map(len, rows)) // 2) * 2
        used = longest // self.stride * self.stride
        frames = np.stack([self.padding.padded(row, longest) for row in rows])[:, :used]
        found = {"input_features": frames.reshape(len(rows), -1, self.filters * self.stride)}
        if self.has_mask:
            mask = np.stack([self.padding.mask(len(row), longest) for row in rows])[:, :used]
            found["attention_mask"] = mask[:, np.arange(used) % self.stride == 1]
        return found


def padding_of(config: Mapping[str, Any]) -> Padding:
    side = config.get("padding_side", "right")
    if side not in ("left", "right"):
        raise ValueError(f"padding on the side {side!r}")
    return Padding(side, float(number_from(config.get("padding_value", 0.0), -1e6, 1e6)))


def rate_of(config: Mapping[str, Any]) -> int:
    """Return the samples a second of a configuration; by default 16 kHz, as of the known extractors."""
    return integer_from(config.get("sampling_rate", 16_000), *RATES)


def whisper(config: Mapping[str, Any]) -> Extractor:
    rate, frame = rate_of(config), integer_from(config.get("n_fft", 400), *FRAMES)
    hop = integer_from(config.get("hop_length", 160), *FRAMES)
    seconds = integer_from(config.get("chunk_length", 30), *SECONDS)
    number_from(config.get("dither") or 0.0, 0, 0)  # random noise
    if rate * seconds <= max(frame, hop):
        raise ValueError(f"a frame of {frame} samples, and sounds of {rate * seconds}")
    count = integer_from(config.get("feature_size", 80), *FILTERS)
    return Whisper(count, rate, hop, frame, rate * seconds, padding_of(config))


def waveforms(config: Mapping[str, Any]) -> Extractor:
    return Waveforms(
        padding_of(config), config.get("do_normalize", True) is True, config.get("return_attention_mask") is True
    )


def spectra(config: Mapping[str, Any]) -> Extractor:
    return Spectra(
        integer_from(config.get("num_mel_bins", 128), *FILTERS),
        rate_of(config),
        integer_from(config.get("max_length", 1024), *FRAMES),
        number_from(config.get("mean", -4.2677393), -1e6, 1e6),
        number_from(config.get("std", 4.5689974), 1e-6, 1e6),
        config.get("do_normalize", True) is True,
    )


def banks(config: Mapping[str, Any]) -> Extractor:
    count = integer_from(config.get("num_mel_bins", 80), *FILTERS)
    stride = integer_from(config.get("stride", 2), 2, 64)
    return Banks(count, rate_of(config), stride, padding_of(config), bool(config.get("return_attention_mask", True)))


EXTRACTORS: Mapping[str, Callable[[Mapping[str, Any]], Extractor]] = {
    "ASTFeatureExtractor": spectra,
    "SeamlessM4TFeatureExtractor": banks,
    "Wav2Vec2FeatureExtractor": waveforms,
    "WhisperFeatureExtractor": whisper,
}
