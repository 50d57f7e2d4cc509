"""Run half of the `openvino` backend: reads a model, binds its constants, compiles once without fusions that change
numbers, and runs the model.

OpenVINO's CPU plugin computes an elementwise operation with a constant in the kernel of the operation before, if that
has no other user. So an additional, unused result of the model keeps the two apart. Found with 2026.4, on AVX2 and
AVX-512, for models of two operations:

- A quotient of a constant and a computed number is inverted, behind a reduction, a product, a convolution, an
  interpolation and a normalization. `torch.rsqrt` is a quotient with the constant 1.
- Behind a reduction, all elements meet the first number of a constant with several numbers, as in a batch norm.
- Behind a reduction, some elements of a quotient by a constant and some elements of `hardswish` are wrong. A static
  number of elements, as in a variance, is a constant, too. So the kernel of a reduction computes the operations of
  norms and no others.

The plugin moves absolute values to the inputs of a one-dimensional concatenation, so that all users of the
concatenation read absolute values; another shape between the two prevents this. The plugin drops a transposition of a
dimension of size 1 next to a reduction without `keepdim`, and a reshape to a shape with sizes of 1 in the reduced
dimensions, whatever the other sizes.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from hatch_lower.backends.call_map import CallMap, facts_read, read_call_map, require
from hatch_lower.backends.openvino.library import (
    CPU,
    INSTALL,
    elsewhere_reason,
    engine,
    engine_of_integers,
    import_openvino,
    missing_devices,
    passed_over,
)
from hatch_lower.errors import LowerError, ProgramError, UnavailableError, reading_hint
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.indices import check_indices
from hatch_lower.runtime.numpy_arrays import element_dtype, is_bfloat16

# OpenVINO's own mark of a division that must not become a product with the reciprocal, which rounds differently
EXACT = "nonconvertable_divide_0"
# operations that the plugin fuses, or that its simplification of a graph removes
FUSED = frozenset(
    {
        *("Abs", "Add", "BatchNormInference", "Ceiling", "Clamp", "Convert", "Divide", "Elu", "Erf", "Exp", "Floor"),
        *("Gelu", "HSigmoid", "HSwish", "HardSigmoid", "LogicalNot", "Maximum", "Minimum", "Mish", "Multiply"),
        *("Negative", "PRelu", "Power", "ReLU", "Relu", "Reshape", "Round", "Sigmoid", "SoftPlus", "Sqrt"),
        *("SquaredDifference", "Squeeze", "Subtract", "Swish", "Tanh", "Unsqueeze"),
    }
)
ROOTS = frozenset({"Constant", "ShapeOf"})  # the static sizes of a tensor are constants
SHAPED = frozenset({"Reshape", "Squeeze", "Unsqueeze"})  # with a constant that is a shape
CRASHING = frozenset({"GroupNormalization", "Select"})  # a kernel that OpenVINO generates for both ends the process
OF_NORMS = frozenset({"Add", "Multiply", "Power", "Sqrt"})  # operations that the kernel of a reduction computes right


def keep_numbers(openvino: Any, model: Any) -> None:
    """Mark divisions as exact, and keep operations apart whose fusion changes OpenVINO's results."""
    layers = model.get_ordered_ops()
    fixed = names_of_fixed(layers)
    apart = []
    for layer in layers:
        kind = layer.get_type_name()
        if kind == "Divide":
            numerator, denominator = layer.input_values()
            if is_one(numerator):
                continue  # the reciprocal is exact, and fused right
            layer.get_rt_info()[EXACT] = True
            if node_name(numerator) in fixed:
                apart.append(denominator)
        elif kind == "Abs":
            keep_concatenation(openvino, layer)
        elif kind.startswith("Reduce"):
            if any(differs_fused(user, fixed) for user in users(layer, fixed)):
                apart.append(layer.output(0))
            keep_order(openvino, layer)
    model.add_results([openvino.op.Result(value) for value in apart if node_name(value) not in fixed])


def keep_concatenation(openvino: Any, layer: Any) -> None:
    """Give absolute values of a one-dimensional concatenation another shape, if the concatenation has other users."""
    source = layer.input_value(0)
    count = len(source.get_target_inputs())
    if source.get_partial_shape().rank != 1 or source.get_node().get_type_name() != "Concat" or count == 1:
        return
    first = openvino.op.Constant(np.zeros(1, np.int64))
    absolute = openvino.opset13.abs(openvino.opset13.unsqueeze(source, first))
    layer.output(0).replace(openvino.opset13.squeeze(absolute, first).output(0))


def keep_order(openvino: Any, layer: Any) -> None:
    """Remove the dimensions of a reduction by another operation, if a transposition or another shape is next."""
    places = list(layer.output(0).get_target_inputs())
    if any(map(changes_order, places)) and not layer.get_attributes()["keep_dims"]:
        layer.set_attribute("keep_dims", True)
        layer.validate_and_infer_types()
        squeezed = openvino.opset13.squeeze(layer, layer.input_value(1))
        for place in places:
            place.replace_source_output(squeezed.output(0))


def changes_order(place: Any) -> bool:
    """Return whether a value becomes a transposition or another shape, past conversions of its dtype."""
    node = place.get_node()
    kind = node.get_type_name()
    if kind == "Convert":  # OpenVINO removes a conversion of bool to bool
        return any(map(changes_order, node.output(0).get_target_inputs()))
    return kind in SHAPED or kind == "Transpose"


def names_of_fixed(layers: Sequence[Any]) -> set[str]:
    """Return the names of values computed from constants and sizes alone, which OpenVINO may compute at loading."""
    fixed: set[str] = set()
    for layer in layers:
        sources = layer.input_values()
        if layer.get_type_name() in ROOTS or (sources and all(node_name(source) in fixed for source in sources)):
            fixed.add(layer.get_name())
    return fixed


def users(layer: Any, fixed: Set[str]) -> Iterator[Any]:
    """Give the operations behind a reduction that may be computed in its kernel: each of a single computed value."""
    found: set[str] = set()
    pending = [layer]
    while pending:
        for place in pending.pop().output(0).get_target_inputs():
            user = place.get_node()
            computed = sum(node_name(source) not in fixed for source in user.input_values())
            if user.get_type_name() in FUSED and user.get_name() not in found and computed == 1:
                found.add(user.get_name())
                pending.append(user)
                yield user


def differs_fused(layer: Any, fixed: Set[str]) -> bool:
    name, sources = layer.get_type_name(), layer.input_values()
    if name in SHAPED or (name == "Divide" and is_one(sources[0])):
        return False
    return name not in OF_NORMS or any(node_name(source) in fixed and has_several(source) for source in sources)


def node_name(value: Any) -> str:
    return str(value.get_node().get_name())  # no two layers of a process have the same


def has_several(value: Any) -> bool:
    return any(not length.is_static or length.get_length() > 1 for length in value.get_partial_shape())


def is_one(value: Any) -> bool:
    node = value.get_node()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant" or has_several(value):
        return False
    data = node.get_data()
    return bool(data.size == 1 and data.item() == 1)


Array = np.ndarray[Any, Any]
NUMBERS: Mapping[type, type] = {bool: np.bool_, float: np.float32, int: np.int64}  # Python's types to torch's dtypes
HEAD = b"<net "
QUANTIZED = b'"FakeQuantize"'


class OpenvinoDelegate(Delegate):
    arrays: ClassVar[str] = "numpy"
    without_elements: ClassVar[str] = "skip"
    timed: ClassVar[str] = "hatch_lower.backends.openvino.timed:load_timed"

    def __init__(self, compiled: Any, constants: Sequence[object], info: OpenvinoFacts) -> None:
        self._openvino = import_openvino()
        self._compiled = compiled
        self._constants = constants
        self._info = info
        # a request holds one call's state: a call takes a free request, or makes another if other threads use them all
        self._requests: deque[Any] = deque([compiled.create_infer_request()])

    @classmethod
    def load(
        cls, blob: DelegateBlob, constants: Sequence[Array], more: Mapping[str, object] = MappingProxyType({})
    ) -> Self:
        # `more` are settings besides the usual
        info = read_info(blob, len(constants))
        try:
            openvino = import_openvino()
        except ImportError as error:
            raise ProgramError(
                "a partition of the backend `openvino` needs the OpenVINO library",
                where=str(blob.path),
                found=str(error),
                hint=INSTALL,
            ) from error
        check_device(blob, info.device)
        try:
            literals = openvino.Tensor(view_of(blob, info.literals), shared_memory=True)
            text = read_model_text(blob)
            core = engine_of_integers() if QUANTIZED in text else engine()
            model = core.read_model(text, literals)
            values = [to_tensor(openvino, constants[position]) for position in info.bound]
            bind_parameters(openvino, model, values)
            keep_numbers(openvino, model)
            try:
                compiled = core.compile_model(model, info.device, {**settings(info, model), **more})
            except RuntimeError as error:
                if info.device == CPU:
                    raise
                raise device_error(blob, info.device, words_of(error)) from error
            check_running(blob, info.device, compiled)
        except LowerError:
            raise
        except Exception as error:
            raise ProgramError(
                "OpenVINO cannot load a partition of the backend `openvino`",
                where=str(blob.path),
                found=words_of(error),
                hint=reading_hint(
                    str(error), "install the OpenVINO that the wheel requires; choose a device that this machine has"
                ),
            ) from error
        return cls(compiled, [literals, *values], info)

    def run(self, inputs: list[Array]) -> Sequence[object]:
        for position, least, size in self._info.indices:
            check_indices(inputs[position], position, least, size)
        try:
            request = self._requests.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        try:
            # kept until the call is over: the request does not keep their memory
            given = [self._given(inputs[position]) for position in self._info.call.passed]
            for place, value in enumerate(given):
                request.set_input_tensor(place, value)
            request.infer({}, share_outputs=True, decode_strings=False)
            # copied: where a result equals an input, OpenVINO writes into that input if it is given memory for the
            # result
            results = [self._result(request.get_output_tensor(place)) for place in range(self._info.call.results)]
        finally:
            self._requests.append(request)
        return self._info.call.arrange(inputs, results)

    def _given(self, value: object) -> object:
        array = value if isinstance(value, np.ndarray) else np.array(value, NUMBERS[type(value)])
        return to_tensor(self._openvino, array)

    def _result(self, result: Any) -> Array:
        copy: Array = result.data.copy()
        return copy.view(element_dtype("bfloat16")) if result.element_type == self._openvino.Type.bf16 else copy


def check_device(blob: DelegateBlob, device: str) -> None:
    """Raise an `UnavailableError` where the machine lacks a device that the recipe names."""
    if missing := missing_devices(device):
        raise device_error(blob, missing[0], f"OpenVINO has {', '.join(engine().available_devices)}")


def check_running(blob: DelegateBlob, device: str, compiled: Any) -> None:
    """Raise an `UnavailableError` where a model was compiled for other devices than the recipe's."""
    if device == CPU:
        return  # the plugin of the CPU knows no other device
    try:
        running = [str(name) for name in compiled.get_property("EXECUTION_DEVICES")]
    except RuntimeError as error:
        raise device_error(blob, device, f"OpenVINO does not say where the model runs: {words_of(error)}") from error
    if reason := elsewhere_reason(device, running):
        raise device_error(blob, device, reason)
    if first := passed_over(device, running):
        warnings.warn(
            f"the recipe names the device `{device}`, and OpenVINO computes on {', '.join(running)} instead of {first}",
            RuntimeWarning,
            stacklevel=2,
        )


def device_error(blob: DelegateBlob, device: str, found: str) -> UnavailableError:
    return UnavailableError(
        f"OpenVINO does not run on the device `{device}` here",
        where=str(blob.path),
        found=found,
        hint="install the driver of the device, or take another recipe",
    )


def words_of(error: Exception) -> str:
    """Return OpenVINO's words without the places in its own sources."""
    return "\n".join(line for line in str(error).splitlines() if line.strip() and ".cpp:" not in line)


def read_model_text(blob: DelegateBlob) -> bytes:
    # OpenVINO would guess another format, ONNX for instance, whose models name files of the machine
    text = blob.path.read_bytes()
    if not text.startswith(HEAD):
        raise ProgramError(
            "a file is not a model in OpenVINO's own format",
            where=str(blob.path),
            found=f"{text[:16]!r} at its beginning instead of {HEAD!r}",
            hint="install the package again, or build it again",
        )
    return text


def to_tensor(openvino: Any, array: Array) -> Any:
    # contiguous, aligned, and writable: OpenVINO takes no other
    dense = array if array.flags.carray else array.copy(order="C")
    if is_bfloat16(dense):
        return openvino.Tensor(dense.view(np.int16), openvino.Shape(list(dense.shape)), openvino.Type.bf16)
    return openvino.Tensor(dense, shared_memory=True)


def bind_parameters(openvino: Any, model: Any, values: Sequence[Any]) -> None:
    """Put constants over the given memory in the places of the model's last inputs."""
    parameters = model.get_parameters()
    for parameter, value in zip(parameters[len(parameters) - len(values) :], values, strict=True):
        parameter.output(0).replace(openvino.op.Constant(value).output(0))
        model.remove_parameter(parameter)


class OpenvinoFacts(NamedTuple):
    # map from a call of the partition to a call of the model
    call: CallMap
    # OpenVINO's name of the device
    device: str
    # of a call; 0: as many as OpenVINO chooses
    threads: int
    # positions of the constants that the model takes, behind its inputs
    bound: tuple[int, ...]
    # their name among the named data, or empty
    literals: str
    # positions of the inputs that are indices, each with the least and the size that they must be less than
    indices: tuple[tuple[int, int, int], ...]


def settings(info: OpenvinoFacts, model: Any) -> dict[str, object]:
    # keep float32 as float32, also beside 8-bit weights, and optimize for the latency of a single call
    chosen: dict[str, object] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if info.device == CPU:
        # several models, and other libraries, share the cores
        chosen["ENABLE_CPU_PINNING"] = False
        if {layer.get_type_name() for layer in model.get_ops()} >= CRASHING:
            chosen["SNIPPETS_MODE"] = "DISABLE"  # OpenVINO generates no kernels
        if info.threads:
            chosen["INFERENCE_NUM_THREADS"] = info.threads
    return chosen


def view_of(blob: DelegateBlob, name: str) -> object:
    if not name:
        return np.zeros(1, np.uint8)
    return np.asarray(Unguarded(np.frombuffer(blob.data[name], np.uint8)))


class Unguarded:
    """The memory of a read-only array as writable: OpenVINO takes no other, and does not write."""

    def __init__(self, array: Array) -> None:
        self._array = array  # lives as long as arrays made from this object
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def read_info(blob: DelegateBlob, constants: int) -> OpenvinoFacts:
    with facts_read(blob, "openvino") as info:
        facts = OpenvinoFacts(
            read_call_map(info, OpenvinoDelegate.arrays),
            str(info["device"]),
            int(info["threads"]),
            tuple(int(position) for position in info["bound"]),
            str(info["literals"]),
            tuple((int(position), int(least), int(size)) for position, least, size in info["indices"]),
        )
        given = facts.call.given
        require(all(0 <= place < constants for place in facts.bound), f"constants {facts.bound} of {constants}")
        require(not facts.literals or facts.literals in blob.data, f"no named data `{facts.literals}`")
        require(
            all(0 <= position < given for position, *_ in facts.indices), f"indices {facts.indices} of {given} inputs"
        )
        return facts
