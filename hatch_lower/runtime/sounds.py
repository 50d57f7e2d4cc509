"""Inputs of a packaged model of transformers from sounds, by the packaged configuration of its feature extractor."""

from __future__ import annotations

import wave
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.processors import SOUNDS, checked_numbers, read_processor
from hatch_lower.runtime.sound_features import EXTRACTORS, Extractor, rate_of

LOUDEST = 2.0  # resampling overshoots 1; integers as floats are far above
WIDTHS = (2, 3, 4)  # bytes of a sample
CHANNELS = 2

Numbers = Any  # an array of NumPy


class SoundReader(Frozen):
    """A feature extractor, and the sampling rate that it needs."""

    model: str
    rate: int
    extractor: Extractor

    def read(self, sounds: Sequence[Any], sampling_rate: int | None) -> dict[str, Numbers]:
        """Return the inputs of a model by name.

        Args:
            sounds: files, or arrays of floats of shape (samples,).
            sampling_rate: samples a second of the arrays.
        """
        if not sounds:
            raise InputError("there is no sound", where=f"model `{self.model}`", found="an empty list")
        if sampling_rate is not None:
            self._check_rate(sampling_rate, "`sampling_rate`")
        return self.extractor.features([self._samples(each, has_rate=sampling_rate is not None) for each in sounds])

    def _samples(self, given: Any, *, has_rate: bool) -> Numbers:
        if isinstance(given, (str, Path)):
            samples, rate = read_wave(given)
            self._check_rate(rate, str(given))
        else:
            samples = checked_samples(given)
            if not has_rate:
                raise InputError(
                    "an array of samples needs its sampling rate",
                    where=f"model `{self.model}`",
                    found="no `sampling_rate`",
                    hint=f"name the rate of the recording; the model takes `sampling_rate={self.rate}`",
                )
        self._check_length(len(samples))
        return samples

    def _check_rate(self, rate: int, where: str) -> None:
        if rate != self.rate:
            raise InputError(
                f"model `{self.model}` takes sounds of {self.rate} samples a second",
                where=where,
                found=f"{rate!r:.80} samples a second",
                hint=f"resample the sound: `ffmpeg -i sound.wav -ar {self.rate} -ac 1 resampled.wav`",
            )

    def _check_length(self, count: int) -> None:
        shortest, longest = self.extractor.shortest, self.extractor.longest
        if count < shortest or (longest is not None and count > longest):
            limits = f"at least {shortest}" + ("" if longest is None else f" and at most {longest}")
            raise InputError(
                f"a sound must have {limits} samples",
                where=f"model `{self.model}`",
                found=f"{count} samples, {count / self.rate:.2f} seconds",
                hint="cut the sound into parts, and give each part" if count > shortest else "give a longer sound",
            )


def sound_reader(model: str, assets: Mapping[str, Path]) -> SoundReader:
    """Return the reader of sounds for the packaged configuration.

    Raises:
        ProgramError: if the assets have none, or a feature extractor with other steps or impossible numbers.
    """
    found = read_processor(model, assets, SOUNDS)
    if found.kind not in EXTRACTORS:
        raise ProgramError(
            f"the feature extractor of model `{model}` has steps that need transformers",
            where=found.where,
            found=f"`{found.kind}`",
            hint=f"call the model with the inputs of transformers' own extractor; known: {', '.join(EXTRACTORS)}",
        )
    with checked_numbers(found.where):
        return SoundReader(model, rate_of(found.config), EXTRACTORS[found.kind](found.config))


def refuse_hidden_padding(model: str, inputs: Mapping[str, Numbers], parameters: Collection[str]) -> None:
    """Refuse sounds whose padding a method cannot tell from sound."""
    mask = inputs.get("attention_mask")
    if mask is not None and "attention_mask" not in parameters and not mask.all():
        raise InputError(
            "sounds of different lengths need a method with `attention_mask`",
            where=f"model `{model}`",
            found=f"the method takes {', '.join(f'`{name}`' for name in parameters)}",
            hint="give each sound in a call of its own",
        )


def checked_samples(value: Any) -> Numbers:
    """Return an array of floats as an array of float32, if its values are samples."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch's, of a tensor on a GPU or with gradients
        raise InputError(
            "a sound must be a file, or an array of floats of shape (samples,)",
            found=f"{type(value).__name__}: {error}",
            hint="convert the sound with `numpy.asarray`",
        ) from error
    if array.ndim != 1 or array.dtype.kind != "f":
        raise InputError(
            "a sound must be a file, or an array of floats of shape (samples,)",
            found=f"{array.dtype} of shape {array.shape}",
            hint="average the channels, divide 16-bit samples by 32768, and give several sounds as a list",
        )
    loudest = np.abs(array).max(initial=0.0)
    if not loudest <= LOUDEST:
        raise InputError(
            "samples must be numbers from -1 to 1",
            found=f"a sample of size {loudest}",
            hint="divide the samples by the largest that their format has: 16-bit samples by 32768",
        )
    return array.astype(np.float32)


def read_wave(path: str | Path) -> tuple[Numbers, int]:
    """Return the samples of a file, float32 of shape (samples,), and the samples a second.

    Two channels are averaged.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, count, *_ = file.getparams()
            content = file.readframes(count)
    except (OSError, EOFError, wave.Error) as error:
        raise not_read(path, f"{type(error).__name__}: {error}") from error
    if width not in WIDTHS or not 1 <= channels <= CHANNELS:
        raise not_read(path, f"{channels} channels of {8 * width} bits")
    if len(content) != count * channels * width:
        raise not_read(path, f"{len(content)} bytes of {count * channels * width}: the file is not whole")
    if width == 3:
        raw = np.zeros((count * channels, 4), dtype=np.uint8)
        raw[:, 1:] = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3)
        integers, scale = raw.view("<i4").ravel(), 1 << 31
    else:
        integers, scale = np.frombuffer(content, dtype=f"<i{width}"), 1 << (8 * width - 1)
    samples = (integers / scale).astype(np.float32)  # through float64
    return samples.reshape(-1, channels).mean(1), rate


def not_read(path: str | Path, found: str) -> InputError:
    return InputError(
        "a file cannot be read as a sound",
        where=str(path),
        found=found,
        hint="files must be WAV with one or two channels of 16, 24 or 32-bit integers:"
        " `ffmpeg -i sound -c:a pcm_s16le sound.wav`; or give an array of samples",
    )
