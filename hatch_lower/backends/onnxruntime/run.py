"""Run half of the `onnxruntime` backend: loads a model with its mapped weights, and calls it. It imports no `onnx`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hatch_lower.backends.call_map import CallMap, read_call_map, read_facts
from hatch_lower.backends.onnxruntime.library import import_onnxruntime
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.delegates import Delegate, DelegateBlob, description_error

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
SPIN_DURATION = "session.intra_op.spin_duration_us"


class OnnxruntimeDelegate(Delegate):
    """A partition as a session of ONNX Runtime. Calls from several threads may run side by side."""

    def __init__(self, session: InferenceSession, call: CallMap) -> None:
        self._session = session
        self._run = session.run
        self._map = call
        self._feed = [(f"x{position}", position) for position in call.passed]
        self._names = [f"y{index}" for index in range(call.results)]

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> OnnxruntimeDelegate:
        # the session maps the files of large weights; those that it packs it copies
        try:
            onnxruntime = import_onnxruntime()
        except ImportError as error:
            raise ProgramError(
                "the program needs ONNX Runtime, which cannot be imported",
                where=str(blob.path),
                found=f"{type(error).__name__}: {error}",
                hint='install it: pip install "hatch-lower[onnxruntime]"',
            ) from error
        info = read_info(blob)
        available = onnxruntime.get_available_providers()
        providers = [name for name in info.providers if name in available]
        if not providers:
            raise ProgramError(
                "ONNX Runtime as installed has none of the execution providers that the program was built for",
                where=str(blob.path),
                found=f"wanted {', '.join(info.providers)}; installed {', '.join(available)}",
                hint="install the build of ONNX Runtime that has one of them, such as onnxruntime-gpu",
            )
        options = onnxruntime.SessionOptions()
        # Without a number, ONNX Runtime would bind its threads to processors, of which every session takes the same.
        options.intra_op_num_threads = info.threads or torch.get_num_threads()
        options.inter_op_num_threads = 1
        # By default threads spin for some 50 ms after a call, on processors that whatever computes next wants: another
        # partition, torch, another model. Between two operators, and calls of a small model, less than this passes.
        options.add_session_config_entry(SPIN_DURATION, "100")
        options.use_deterministic_compute = True
        options.log_severity_level = 3
        if info.weights:
            options.add_session_config_entry(WEIGHTS_FOLDER, str(find_weights(blob, info.weights)))
        try:
            session = onnxruntime.InferenceSession(blob.path.read_bytes(), options, providers=providers)
        except Exception as error:
            raise ProgramError(
                "ONNX Runtime refuses a model",
                where=str(blob.path),
                found=f"{type(error).__name__}: {error}",
                hint="install the version of ONNX Runtime that the wheel requires, or build the wheel again",
            ) from error
        names = [value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]
        wanted = (
            [f"x{position}" for position in info.call.passed],
            [f"y{index}" for index in range(info.call.results)],
        )
        if names != wanted:
            raise description_error(
                blob, "onnxruntime", f"a model with the inputs {names[0]} and the outputs {names[1]}"
            )
        return cls(session, info.call)

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        feed = {name: to_array(inputs[position]) for name, position in self._feed}
        return self._map.arrange(inputs, [torch.from_numpy(result) for result in self._run(self._names, feed)])


def to_array(value: object) -> object:
    if isinstance(value, Tensor):
        return (value.detach() if value.requires_grad else value).numpy()
    return torch.tensor(value, dtype=torch.int64).numpy()


class OnnxFacts(NamedTuple):
    # how a call of the partition becomes one of the model
    call: CallMap
    # the names of the large weights in the named data
    weights: list[str]
    # the execution providers to use, the best first
    providers: list[str]
    # how many threads a session has; 0: as many as torch
    threads: int


def find_weights(blob: DelegateBlob, weights: Sequence[str]) -> Path:
    # where they really lie: ONNX Runtime follows no link out of the folder
    missing = [name for name in weights if name not in blob.files]
    if missing:
        raise description_error(blob, "onnxruntime", f"the weights {missing}, which are not in the named data")
    return blob.files[weights[0]].resolve().parent


def read_info(blob: DelegateBlob) -> OnnxFacts:
    return read_facts(
        blob,
        "onnxruntime",
        lambda info: OnnxFacts(
            read_call_map(info),
            [str(name) for name in info["weights"]],
            [str(name) for name in info["providers"]],
            int(info["threads"]),
        ),
    )
