"""Run half of the `onnxruntime` backend: loads a model over the constants file, and calls it. Imports no `onnx`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from hatch_lower.backends.call_map import CallMap, facts_read, read_call_map, require
from hatch_lower.backends.onnxruntime.library import CPU, DISTRIBUTIONS, import_onnxruntime
from hatch_lower.backends.onnxruntime.model_file import fits_offset_mark, path_of, refuse_files, relocate
from hatch_lower.backends.onnxruntime.providers import Provider, on_cuda, read_provider, session_providers
from hatch_lower.errors import LowerError, ProgramError, UnavailableError, reading_hint
from hatch_lower.runtime.delegates import Delegate, DelegateBlob, Place, description_error
from hatch_lower.runtime.numpy_arrays import is_bfloat16
from hatch_lower.runtime.selection import multiplies_bytes, thread_count

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

    from hatch_lower.backends.onnxruntime.device import DeviceCalls

Array = np.ndarray[Any, Any]
FOLDER = "session.model_external_initializers_file_folder_path"
FATAL = 4  # ONNX Runtime's number of the severity
BFLOAT16 = 16  # ONNX's number of the dtype
SPIN_DURATION = "session.intra_op.spin_duration_us"
EXACT_BYTES = "session.x64quantprecision"
DISABLED = (
    # keep float weights as floats: ONNX Runtime would round them to 8 bits between quantized values
    "WeightBiasQuantization",
    # ONNX Runtime replaces equal literals by constants, whose contents are in a file, where a shape may be read. The
    # compile half already shares literals.
    "ConstantSharing",
    # ONNX Runtime refuses the whole model where limits of float64 or integers follow a `Relu`.
    "FuseReluClip",
)
# Equal constants of products may be shared. Without VNNI, ONNX Runtime then refuses a model that multiplies integers.
JOINING = "CommonSubexpressionElimination"
OF_INTEGERS = (b"DequantizeLinear", b"MatMulInteger")
AVAILABLE, STARTED = "ONNX Runtime as installed has {}", "ONNX Runtime has started {} only"
# a model of an operation `Identity` on a number, with which a provider shows whether it starts
SMALLEST = (
    b'\x08\n:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01g'
    b"Z\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01"
    b"B\x04\n\x00\x10\x14"
)


class OnnxruntimeDelegate(Delegate):
    """A partition as a session of ONNX Runtime. Calls from several threads may run side by side."""

    arrays: ClassVar[str] = "numpy"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    constants_on: ClassVar[str] = "host"
    without_elements: ClassVar[str] = "skip"
    timed: ClassVar[str] = "hatch_lower.backends.onnxruntime.timed:load_timed"

    _calls: DeviceCalls | None = None  # of a program with tensors on a GPU

    def __init__(self, session: InferenceSession, call: CallMap, values: Sequence[object]) -> None:
        self._session = session
        self._values = values
        self._run = session.run
        self._options = import_onnxruntime().RunOptions()
        self._options.log_severity_level = FATAL  # an error is an exception, whose words stderr would repeat
        self._map = call
        self._feed = [(f"x{position}", position) for position in call.passed]
        self._names = [f"y{index}" for index in range(call.results)]

    @classmethod
    def load(
        cls, blob: DelegateBlob, constants: Sequence[Array], adjust: Callable[[SessionOptions], None] | None = None
    ) -> Self:
        try:
            onnxruntime = import_onnxruntime()
        except ImportError as error:
            raise ProgramError(
                "the program needs ONNX Runtime, which cannot be imported",
                where=str(blob.path),
                found=f"{type(error).__name__}: {error}",
                hint='install it: pip install "hatch-lower[onnxruntime]"',
            ) from error
        info = read_info(blob, len(constants))
        on_gpu = blob.device != "cpu"
        if on_gpu:
            refuse_providers_elsewhere(blob, info.providers)
        refuse_other_gpu(blob, info.providers)
        names = [provider.name for provider in info.providers]
        refuse_missing(blob, names, onnxruntime.get_available_providers(), AVAILABLE)
        options = make_options(onnxruntime, info.threads)
        if adjust is not None:
            adjust(options)
        try:
            session, values = start(onnxruntime, options, blob, constants, info)
        except LowerError:
            raise
        except Exception as error:
            raise ProgramError(
                "ONNX Runtime refuses a model",
                where=str(blob.path),
                found=f"{type(error).__name__}: {error}",
                hint=reading_hint(
                    str(error), "install the version of ONNX Runtime that the wheel requires, or build the wheel again"
                ),
            ) from error
        refuse_missing(blob, names, session.get_providers(), STARTED)
        delegate = cls(session, info.call, values)
        if on_gpu:
            from hatch_lower.backends.onnxruntime.device import DeviceCalls

            delegate._calls = DeviceCalls(session, blob.device, str(blob.path))
        places = [value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]
        if places != ([name for name, _ in delegate._feed], delegate._names):
            raise description_error(
                blob, "onnxruntime", f"a model with the inputs {places[0]} and the outputs {places[1]}"
            )
        return delegate

    def run(self, inputs: list[Any]) -> Sequence[object]:
        if self._calls is not None:
            return self._map.arrange(inputs, self._calls.run(self._map.select(inputs)))
        feed = {name: to_array(inputs[position]) for name, position in self._feed}
        return self._map.arrange(inputs, self._run(self._names, feed, self._options))


def refuse_missing(blob: DelegateBlob, providers: Sequence[str], present: Sequence[str], found: str) -> None:
    if missing := [name for name in providers if name not in present]:
        raise provider_error(blob, missing[0], found.format(", ".join(present)))


def refuse_providers_elsewhere(blob: DelegateBlob, providers: Sequence[Provider]) -> None:
    if not on_cuda(providers):
        raise UnavailableError(
            f"the recipe's execution providers do not compute on {blob.device}",
            where=str(blob.path),
            found=", ".join(provider.name for provider in providers),
            hint='take a recipe with `CUDAExecutionProvider`, or load the model with `device="cpu"`',
        )


def refuse_other_gpu(blob: DelegateBlob, providers: Sequence[Provider]) -> None:
    _, _, number = blob.computes_on.partition(":")
    for provider in providers:
        chosen = provider.options.get("device-id")
        if chosen is not None and number not in ("", str(chosen)):
            raise UnavailableError(
                f"the recipe computes on the GPU {chosen} only",
                where=str(blob.path),
                found=f"`device-id` of `{provider.name}` is {chosen}, and the model is loaded on {blob.computes_on}",
                hint=f'load the model with `device="cuda:{chosen}"`',
            )


def start(
    onnxruntime: Any, options: SessionOptions, blob: DelegateBlob, constants: Sequence[Array], info: OnnxFacts
) -> tuple[InferenceSession, list[object]]:
    """Return a session with the recipe's providers, and the constants in memory, which the caller must keep alive."""
    model, values = bind_model_constants(options, blob, constants, info.bound)
    joins = multiplies_bytes() or not any(name in model for name in OF_INTEGERS)
    disabled = [*DISABLED, *(() if joins else (JOINING,))]

    def make(providers: Sequence[object]) -> InferenceSession:
        # without ONNX Runtime's own fallback, which computes on the CPU where a provider fails
        return onnxruntime.InferenceSession(
            model, options, providers=providers, disabled_optimizers=disabled, enable_fallback=0
        )

    def cache() -> str:
        return engine_folder(onnxruntime.__version__, model, [constants[position] for position in info.bound])

    providers = session_providers(info.providers, blob.computes_on, cache)
    if providers != [CPU]:
        try_providers(onnxruntime, blob, [provider.name for provider in info.providers], providers)
    try:
        return make(providers), values
    except Exception as error:
        others = [provider.name for provider in info.providers if provider.name != CPU]
        if not others:
            raise
        make([CPU])  # the model is right, and another provider fails
        raise provider_error(blob, others[0], f"{type(error).__name__}: {error}") from error


def try_providers(onnxruntime: Any, blob: DelegateBlob, names: Sequence[str], providers: Sequence[object]) -> None:
    """Refuse providers that do not start, before ONNX Runtime optimizes the model for the CPU instead."""
    try:
        session = onnxruntime.InferenceSession(SMALLEST, providers=providers, enable_fallback=0)
    except Exception as error:
        other = next(name for name in names if name != CPU)
        raise provider_error(blob, other, f"{type(error).__name__}: {error}") from error
    refuse_missing(blob, names, session.get_providers(), STARTED)


def engine_folder(version: str, model: bytes, constants: Sequence[Array]) -> str:
    """Return the folder for TensorRT's engines of a model, below the user's folder of caches."""
    from hatch_lower.runtime.sources import cache_home

    # ONNX Runtime finds an engine by the names in the model, and an engine has the weights: so the weights choose the
    # folder
    digest = sha256(f"{version} {len(model)} ".encode() + model)
    for constant in constants:
        digest.update(f"{constant.dtype} {constant.shape} ".encode())
        digest.update(np.ascontiguousarray(constant).reshape(-1).view(np.uint8).data)
    folder = cache_home() / "hatch-lower" / "tensorrt" / digest.hexdigest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProgramError(
            "the folder for TensorRT's engines cannot be made",
            where=str(folder),
            found=f"{type(error).__name__}: {error}",
            hint="let `XDG_CACHE_HOME` name a folder that can be written to, or build without `engine-cache`",
        ) from error
    return str(folder)


def provider_error(blob: DelegateBlob, provider: str, found: str) -> UnavailableError:
    build = DISTRIBUTIONS.get(provider)
    what = f"`{build}`" if build else "a build of ONNX Runtime that has the provider"
    needed = "the driver and the libraries that the provider needs"
    hint = f"install {what}, with {needed}, or take another recipe"
    if provider in import_onnxruntime().get_available_providers():
        hint = f"install {needed}; ONNX Runtime writes the name of a missing library to stderr"
    return UnavailableError(
        f"ONNX Runtime does not run on `{provider}` here", where=str(blob.path), found=found, hint=hint
    )


def make_options(onnxruntime: Any, threads: int) -> SessionOptions:
    options: SessionOptions = onnxruntime.SessionOptions()
    # Without a number, ONNX Runtime would bind its threads to processors, and every session to the same processors.
    options.intra_op_num_threads = threads or thread_count()
    options.inter_op_num_threads = 1
    # By default threads spin for some 50 ms after a call, on processors that the next computation needs: another
    # partition, torch, another model. Two operators, or two calls of a small model, are less than 50 ms apart.
    options.add_session_config_entry(SPIN_DURATION, "100")
    # By default sums of products of bytes saturate on processors without an instruction for them. With the instruction,
    # sums are as exact without this setting, and twice as fast.
    options.add_session_config_entry(EXACT_BYTES, "0" if multiplies_bytes() else "1")
    options.use_deterministic_compute = True
    options.log_severity_level = 3
    return options


def to_array(value: object) -> object:
    return value if isinstance(value, np.ndarray) else np.array(value, dtype=np.int64)


class OnnxFacts(NamedTuple):
    # map from a call of the partition to a call of the model
    call: CallMap
    # positions of the constants that the model takes
    bound: list[int]
    # the execution providers to use, the best first
    providers: list[Provider]
    # how many threads a session has; 0: as many as torch
    threads: int


def bind_model_constants(
    options: SessionOptions, blob: DelegateBlob, constants: Sequence[Array], bound: Sequence[int]
) -> tuple[bytes, list[object]]:
    """Return the model with its constants' places, and the constants in memory, which the caller must keep alive."""
    # the session maps files of constants, all in one folder, and copies constants that it packs
    folder, mapped = choose_folder(blob.places, bound)
    if folder is not None:
        options.add_session_config_entry(FOLDER, str(folder))
    named = {position: mapped.get(position, ("none", 0)) for position in bound}
    model = relocate(blob.path.read_bytes(), named)
    refuse_files(model, {path_of(name) for name, _ in named.values()})
    values = {f"w{position}": to_value(constants[position]) for position in bound if position not in mapped}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    return model, list(values.values())


def choose_folder(
    places: Sequence[Place | None], bound: Sequence[int]
) -> tuple[Path | None, Mapping[int, tuple[str, int]]]:
    """Return the folder with most bytes of constants, and by position the file name and offset of its constants."""
    # where files really lie: ONNX Runtime follows no link out of the folder
    files = {place.path: place.path.resolve() for place in places if place is not None}
    folders: dict[Path, dict[int, Place]] = {}
    for position in bound:
        place = places[position] if places else None
        if place is not None and fits_offset_mark(files[place.path].name):
            folders.setdefault(files[place.path].parent, {})[position] = place
    if not folders:
        return None, {}
    folder = max(folders, key=lambda folder: sum(place.length for place in folders[folder].values()))
    return folder, {position: (files[place.path].name, place.offset) for position, place in folders[folder].items()}


def to_value(constant: Array) -> object:
    from onnxruntime import OrtValue

    dense = constant if constant.flags.c_contiguous else constant.copy(order="C")
    if is_bfloat16(dense):
        return OrtValue.ortvalue_from_numpy_with_onnx_type(dense.view(np.int16), BFLOAT16)
    return OrtValue.ortvalue_from_numpy(dense)


def read_info(blob: DelegateBlob, constants: int) -> OnnxFacts:
    with facts_read(blob, "onnxruntime") as info:
        bound = [int(position) for position in info["bound"]]
        require(all(0 <= position < constants for position in bound), f"constants {bound} of {constants}")
        return OnnxFacts(
            read_call_map(info, "torch" if blob.device != "cpu" else OnnxruntimeDelegate.arrays),
            bound,
            [read_provider(provider) for provider in info["providers"]],
            int(info["threads"]),
        )
