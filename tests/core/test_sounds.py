"""Sounds as inputs of packaged models: as the feature extractors of transformers read them, or a clear error."""

from __future__ import annotations

import json
import wave
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.numpy_arrays import NumpyArrays
from hatch_lower.runtime.sounds import SoundReader, read_wave, sound_reader

RATE = 16_000
WAVES = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": True, "sampling_rate": RATE}
WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 8, "chunk_length": 1}


def sounds(*lengths: int) -> list[Any]:
    """Return sounds of noise that becomes louder."""
    values = numpy.random.default_rng(0)
    made = [values.normal(0, 0.1, length) * numpy.linspace(0.1, 1, length) for length in lengths]
    return [each.astype(numpy.float32) for each in made]


def reader(folder: Path, config: Mapping[str, Any]) -> SoundReader:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(config))
    return sound_reader("net", {path.name: path})


def saved(extractor: Any, folder: Path) -> SoundReader:
    """Return the reader of an extractor of transformers."""
    extractor.save_pretrained(folder)
    return sound_reader("net", {path.name: path for path in folder.iterdir()})


def write_wave(path: Path, integers: Any, width: int = 2, rate: int = RATE, channels: int = 1) -> Path:
    raw = numpy.asarray(integers, dtype="<i4").view(numpy.uint8).reshape(-1, 4)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(raw)
    return path


# The numbers


@pytest.mark.parametrize("options", [{}, {"feature_size": 128, "chunk_length": 3, "hop_length": 100, "n_fft": 512}])
def test_whisper_s_spectrogram_is_that_of_transformers(options: Mapping[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.WhisperFeatureExtractor(**options)
    own = saved(theirs, tmp_path)
    given = sounds(1, 300, 7999, 2 * RATE, 3 * RATE)
    found = own.read(given, RATE)["input_features"]
    assert found.dtype == numpy.float32
    padded = theirs.pad(
        {"input_features": [each[:, None] for each in given]}, padding="max_length", max_length=theirs.n_samples
    )
    exact = theirs._np_extract_fbank_features([each[:, 0] for each in padded["input_features"]], "cpu")
    numpy.testing.assert_array_equal(found, exact)
    with_torch = theirs(given, sampling_rate=RATE, return_tensors="np")["input_features"]
    numpy.testing.assert_allclose(found, with_torch, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_samples_are_normalized_and_padded_as_transformers_does(
    side: str, normalizes: bool, mask: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Wav2Vec2FeatureExtractor(
        do_normalize=normalizes, return_attention_mask=mask, padding_side=side, padding_value=0.5
    )
    own = saved(theirs, tmp_path)
    for given in (sounds(5000), sounds(1200, 5000, 1)):
        wanted = theirs(given, sampling_rate=RATE, padding=True, return_tensors="np")
        found = own.read(given, RATE)
        assert set(found) == set(wanted)
        for name, array in found.items():
            numpy.testing.assert_array_equal(array, wanted[name], name)


@pytest.mark.filterwarnings("ignore:At least one mel filter")
@pytest.mark.parametrize("options", [{}, {"num_mel_bins": 40, "max_length": 60, "do_normalize": False}])
def test_kaldi_s_spectrogram_is_that_of_transformers(options: Mapping[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if transformers.utils.is_speech_available():
        pytest.skip("transformers computes with torchaudio")
    theirs = transformers.ASTFeatureExtractor(**options)
    own = saved(theirs, tmp_path)
    given = sounds(400, 5000, RATE, 12 * RATE)
    wanted = theirs(given, sampling_rate=RATE, return_tensors="np")["input_values"]
    found = own.read(given, RATE)["input_values"]
    numpy.testing.assert_array_equal(found[:3], wanted[:3])
    # frames behind the last are not computed here, and sums of a product of matrices may depend on their number
    numpy.testing.assert_allclose(found[3], wanted[3], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_mel_bins": 40, "feature_size": 40, "stride": 3, "padding_side": "left"},
        {"return_attention_mask": False},
    ],
)
def test_groups_of_frames_are_those_of_transformers(options: Mapping[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.SeamlessM4TFeatureExtractor(**options)
    own = saved(theirs, tmp_path)
    for given in (sounds(5000), sounds(3000, RATE, 720)):
        wanted = theirs(given, sampling_rate=RATE, return_tensors="np")
        found = own.read(given, RATE)
        assert set(found) == set(wanted)
        for name, array in found.items():
            numpy.testing.assert_array_equal(array, wanted[name], name)


# Files and arrays


@pytest.mark.parametrize("width", [2, 3, 4])
def test_a_file_of_integers_is_read_whole(width: int, tmp_path: Path) -> None:
    full = 1 << (8 * width - 1)
    integers = [0, 1, -1, full - 1, -full, full // 3]
    samples, rate = read_wave(write_wave(tmp_path / "a.wav", integers, width, rate=8000))
    assert rate == 8000
    assert samples.dtype == numpy.float32
    assert samples.tolist() == [float(numpy.float32(each / full)) for each in integers]


def test_two_channels_are_averaged(tmp_path: Path) -> None:
    path = write_wave(tmp_path / "a.wav", [100, 300, -200, 0], channels=2)
    assert read_wave(path)[0].tolist() == [200 / 32768, -100 / 32768]


def test_a_sound_is_a_file_or_an_array_or_a_tensor(tmp_path: Path) -> None:
    integers = numpy.arange(-2000, 2000, dtype=numpy.int32)
    path = write_wave(tmp_path / "a.wav", integers)
    samples = (integers / 32768).astype(numpy.float32)
    given: list[Any] = [path, str(path), samples, samples.astype(numpy.float64), samples.tolist()]
    torch = pytest.importorskip("torch")
    found = reader(tmp_path, WAVES).read([*given, torch.from_numpy(samples)], RATE)["input_values"]
    assert found.shape == (6, 4000)
    assert (found == found[:1]).all()


@pytest.mark.parametrize(
    ("sound", "what"),
    [
        (numpy.zeros(9, numpy.int16), "an array of floats"),
        (numpy.zeros((2, 9)), "an array of floats"),
        (0.5, "an array of floats"),
        ([[0.1], [0.1, 0.2]], "an array of floats"),
        (numpy.array([0.5, 3000.0]), "samples must be numbers from -1 to 1"),
        (numpy.array([0.5, numpy.nan]), "samples must be numbers from -1 to 1"),
        (numpy.zeros(0), "a sound must have at least 1 samples"),
    ],
)
def test_other_values_than_sounds_are_refused(sound: Any, what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=what) as error:
        reader(tmp_path, WAVES).read([sound], RATE)
    assert error.value.hint


def test_a_damaged_or_other_file_is_refused(tmp_path: Path) -> None:
    own, path = reader(tmp_path, WAVES), tmp_path / "a.wav"
    write_wave(path, range(1000))
    whole = path.read_bytes()
    for contents in (b"", b"RIFF", whole[:30], whole[:-1], whole[:900], b"ID3" + whole):
        path.write_bytes(contents)
        with pytest.raises(InputError, match="a file cannot be read as a sound") as error:
            own.read([path], None)
        assert error.value.where == str(path)
    for options in ({"width": 1}, {"channels": 4}):
        write_wave(path, range(1000), **options)
        with pytest.raises(InputError, match="a file cannot be read as a sound"):
            own.read([path], None)
    with pytest.raises(InputError, match="a file cannot be read as a sound"):
        own.read([tmp_path / "none.wav"], None)


def test_another_sampling_rate_is_refused_with_both_rates(tmp_path: Path) -> None:
    own = reader(tmp_path, WAVES)
    path = write_wave(tmp_path / "a.wav", range(1000), rate=44_100)
    wrong: list[tuple[Any, Any]] = [(path, None), (sounds(1000)[0], 44_100), (sounds(1000)[0], "16000")]
    for given, rate in wrong:
        with pytest.raises(InputError, match="model `net` takes sounds of 16000 samples a second") as error:
            own.read([given], rate)
        assert str(rate or 44_100) in error.value.found
    with pytest.raises(InputError, match="an array of samples needs its sampling rate") as missing:
        own.read(sounds(1000), None)
    assert "`sampling_rate=16000`" in missing.value.hint


def test_a_sound_of_another_length_than_the_model_hears_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 1 and at most 16000 samples") as error:
        reader(tmp_path, WHISPER).read(sounds(RATE, RATE + 1), RATE)
    assert error.value.found == "16001 samples, 1.00 seconds"
    with pytest.raises(InputError, match="at least 400 samples"):
        reader(tmp_path, {"feature_extractor_type": "ASTFeatureExtractor"}).read(sounds(399), RATE)
    with pytest.raises(InputError, match="at least 560 samples"):
        reader(tmp_path, {"feature_extractor_type": "SeamlessM4TFeatureExtractor"}).read(sounds(559), RATE)
    with pytest.raises(InputError, match="there is no sound"):
        reader(tmp_path, WAVES).read([], RATE)


# The configuration


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"feature_extractor_type": "ClapFeatureExtractor"}, "has steps that need transformers"),
        ({"feature_extractor_type": None}, "has steps that need transformers"),
        ({"sampling_rate": 0}, "a packaged configuration cannot be used"),
        ({"sampling_rate": 16000.5}, "a packaged configuration cannot be used"),
        ({"padding_side": "top"}, "a packaged configuration cannot be used"),
        ({"padding_value": None}, "a packaged configuration cannot be used"),
        ({**WHISPER, "hop_length": 0}, "a packaged configuration cannot be used"),
        ({**WHISPER, "n_fft": 1 << 15}, "a packaged configuration cannot be used"),
        ({**WHISPER, "dither": 0.1}, "a packaged configuration cannot be used"),
        ({"feature_extractor_type": "ASTFeatureExtractor", "std": 0}, "a packaged configuration cannot be used"),
        ({"feature_extractor_type": "SeamlessM4TFeatureExtractor", "stride": 1}, "a packaged configuration cannot"),
    ],
)
def test_an_unknown_configuration_is_refused(config: Mapping[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=what) as error:
        reader(tmp_path, {**WAVES, **config})
    assert error.value.hint


def test_a_processor_of_texts_and_sounds_has_the_configuration_in_its_own(tmp_path: Path) -> None:
    path = tmp_path / "processor_config.json"
    path.write_text(json.dumps({"feature_extractor": WAVES, "processor_class": "Wav2Vec2Processor"}))
    assert sound_reader("net", {path.name: path}).read(sounds(9), RATE)["input_values"].shape == (1, 9)


# The arguments of a method


def loaded(folder: Path, method: Any, **config: Any) -> LoadedModel:
    reader(folder, {**WAVES, **config})
    path = folder / "preprocessor_config.json"
    runnable: Any = SimpleNamespace(methods={"forward": method}, arrays=NumpyArrays())
    return LoadedModel(runnable, SimpleNamespace(name="net", assets={path.name: path}))  # type: ignore[arg-type]


def test_sounds_make_the_arguments_of_a_method(tmp_path: Path) -> None:
    model = loaded(tmp_path, lambda input_values: input_values, return_attention_mask=True)
    assert model(**model.preprocess(sounds=sounds(9)[0], sampling_rate=RATE)).shape == (1, 9)
    assert model(**model.preprocess(sounds=sounds(9, 9), sampling_rate=RATE)).shape == (2, 9)
    path = write_wave(tmp_path / "a.wav", range(9))
    assert model(**model.preprocess(sounds=path)).shape == (1, 9)


def test_padding_that_a_method_cannot_tell_from_sound_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, lambda input_values: input_values, return_attention_mask=True)
    with pytest.raises(InputError, match="need a method with `attention_mask`"):
        model.preprocess(sounds=sounds(9, 5), sampling_rate=RATE)
    masked = loaded(tmp_path, lambda input_values, attention_mask: attention_mask, return_attention_mask=True)
    found = masked(**masked.preprocess(sounds=sounds(9, 5), sampling_rate=RATE))
    assert found.sum(1).tolist() == [9, 5]
    assert loaded(tmp_path, lambda input_values: input_values).preprocess(sounds=sounds(9, 5), sampling_rate=RATE)
