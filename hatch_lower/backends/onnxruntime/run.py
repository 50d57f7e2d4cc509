"""Run half of the `onnxruntime` backend: loads a model with its mapped weights, and calls it. It imports no `onnx`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hatch_lower.backends.onnxruntime.library import import_onnxruntime
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.delegates import Delegate, DelegateBlob, description_error

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
SPIN_DURATION = "session.intra_op.spin_duration_us"


class OnnxruntimeDelegate(Delegate):
    """A partition as a session of ONNX Runtime. Calls from several threads may run side by side.

    Args:
        session: the session.
        info: what the compile half knows of inputs and outputs.
    """

    def __init__(self, session: InferenceSession, info: CallInfo) -> None:
        self._session = session
        self._run = session.run
        self._info = info
        self._names = [f"y{index}" for index in range(info.results)]

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> OnnxruntimeDelegate:
        """Make a session of the model. It maps the files of large weights; those that it packs it copies.

        Raises:
            ProgramError: if ONNX Runtime is not installed, has none of the wanted providers, or refuses the model.
        """
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
        names = [each.name for each in session.get_inputs()], [each.name for each in session.get_outputs()]
        wanted = [f"x{position}" for position in info.inputs], [f"y{index}" for index in range(info.results)]
        if names != wanted:
            raise description_error(
                blob, "onnxruntime", f"a model with the inputs {names[0]} and the outputs {names[1]}"
            )
        return cls(session, info)

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        """Run the model; the outputs have memory of their own."""
        info = self._info
        feed = {name: to_array(inputs[position]) for name, position in info.feed}
        results = self._run(self._names, feed)
        if info.plain:
            return [torch.from_numpy(each) for each in results]
        return info.arrange(inputs, results)


def to_array(value: Any) -> Any:
    """Return a tensor's memory, or a number as an array."""
    if isinstance(value, Tensor):
        return (value.detach() if value.requires_grad else value).numpy()
    return torch.tensor(value, dtype=torch.int64).numpy()


class CallInfo:
    """What the compile half wrote of a model.

    Args:
        given: the number of inputs of a call.
        inputs: positions of the inputs that the model takes.
        results: how many results the model has.
        outputs: how each output is made, as the compile half writes it.
        weights: the names of the large weights in the named data.
        providers: the execution providers to use, the best first.
        threads: how many threads a session has; 0: as many as torch.
    """

    def __init__(
        self,
        given: int,
        inputs: list[int],
        results: int,
        outputs: list[dict[str, Any]],
        weights: list[str],
        providers: list[str],
        threads: int,
    ) -> None:
        self.given = given
        self.inputs = inputs
        self.results = results
        self.outputs = outputs
        self.weights = weights
        self.providers = providers
        self.threads = threads
        self.feed = [(f"x{position}", position) for position in inputs]
        self.plain = outputs == [{"result": index} for index in range(results)]

    def problem(self) -> str:
        """Return what is wrong with these facts, or an empty string."""
        if not all(0 <= position < self.given for position in self.inputs):
            return f"inputs {self.inputs} of {self.given}"
        for output in self.outputs:
            if "result" in output and not 0 <= output["result"] < self.results:
                return f"the output {output} of a model with {self.results} results"
            if "input" in output and not 0 <= output["input"] < self.given:
                return f"the output {output} of a call with {self.given} inputs"
            if not output.keys() & {"result", "input", "literal"}:
                return f"the output {output}"
        return ""

    def arrange(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Return a call's outputs."""
        tensors = [torch.from_numpy(each) for each in results]
        return [make_output(output, inputs, tensors) for output in self.outputs]


def make_output(output: Mapping[str, Any], inputs: Sequence[Any], tensors: Sequence[Tensor]) -> Any:
    """Return one output of a call."""
    if "result" in output:
        tensor = tensors[output["result"]]
        return tensor.permute(output["permute"]) if "permute" in output else tensor
    return inputs[output["input"]] if "input" in output else output["literal"]


def find_weights(blob: DelegateBlob, weights: Sequence[str]) -> Path:
    """Return the folder in which the files of the large weights really lie: ONNX Runtime follows no link out of it.

    Raises:
        ProgramError: if a weight is missing.
    """
    missing = [name for name in weights if name not in blob.files]
    if missing:
        raise description_error(blob, "onnxruntime", f"the weights {missing}, which are not in the named data")
    return blob.files[weights[0]].resolve().parent


def read_info(blob: DelegateBlob) -> CallInfo:
    """Return the facts that the compile half wrote.

    Raises:
        ProgramError: if they are damaged.
    """
    info = blob.info
    try:
        found = CallInfo(
            int(info["given"]),
            [int(each) for each in info["inputs"]],
            int(info["results"]),
            [dict(each) for each in info["outputs"]],
            [str(each) for each in info["weights"]],
            [str(each) for each in info["providers"]],
            int(info["threads"]),
        )
        problem = found.problem()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise description_error(blob, "onnxruntime", f"{type(error).__name__}: {error}") from error
    if problem:
        raise description_error(blob, "onnxruntime", problem)
    return found
