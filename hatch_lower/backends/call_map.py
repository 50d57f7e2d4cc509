"""From a call of a partition to a call of an engine and back; every run half reads the map from its delegate's `info`.

The compile halves write the map with `call_facts`. The module imports only modules that a run half may import: the
runtime, and no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hatch_lower.runtime.arrays import Array, Arrays, find_arrays
from hatch_lower.runtime.delegates import DelegateBlob, description_error

NUMBERS: Mapping[str, Callable[[Any], object]] = {"int": int, "float": float, "bool": bool}


class FactsError(ValueError):
    """The facts of a partition contradict each other."""


# no dataclass: to generate its methods takes a millisecond of a process's first load
class CallMap:
    """The inputs that the engine gets, and how each output of the partition is made.

    An output is a position among the engine's results, or a table:
    - `{"result": i, "permute": dims}`: a view of a result with its dimensions permuted,
    - `{"result": i, "order": dims}`: a copy of a result in which the dimensions lie in this order in memory,
    - `{"result": i, "number": "int"}`: a Python number, from a result with one element,
    - `{"input": i}` or `{"literal": value}`.
    """

    def __init__(self, given: int, passed: list[int], outputs: list[object], arrays: Arrays) -> None:
        self.arrays = arrays
        self.given = given
        self.passed = passed  # positions of the inputs that the engine gets
        self.outputs = outputs
        # how many results the engine has
        self.results = len({index for output in outputs if (index := call_result(output)) is not None})
        self.passes_all = passed == list(range(given))
        self.returns_all = outputs == list(range(len(outputs)))

    def select(self, inputs: list[Array]) -> list[Array]:
        return inputs if self.passes_all else [inputs[position] for position in self.passed]

    def arrange(self, inputs: Sequence[object], results: Sequence[Array]) -> Sequence[object]:
        if self.returns_all:
            return results
        return [make_output(output, inputs, results, self.arrays) for output in self.outputs]


def make_output(output: Any, inputs: Sequence[object], results: Sequence[Array], arrays: Arrays) -> object:
    if isinstance(output, int):
        return results[output]
    if "input" in output:
        return inputs[output["input"]]
    if "literal" in output:
        return output["literal"]
    result = results[output["result"]]
    if "permute" in output:
        return arrays.permuted(result, output["permute"])
    if "number" in output:
        return NUMBERS[output["number"]](result.item())
    order = output["order"]
    return arrays.permuted(arrays.contiguous_copy(arrays.permuted(result, order)), inverse(order))


def inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def call_result(output: object) -> object:
    return output.get("result") if isinstance(output, dict) else output


def call_facts(given: int, passed: Sequence[int], outputs: Sequence[object]) -> dict[str, object]:
    return {"inputs": given, "passed": list(passed), "outputs": list(outputs)}


def read_call_map(facts: Mapping[str, Any], arrays: str = "torch") -> CallMap:
    found = CallMap(int(facts["inputs"]), list(facts["passed"]), list(facts["outputs"]), find_arrays(arrays))
    require(all(0 <= position < found.given for position in found.passed), f"inputs {found.passed} of {found.given}")
    numbered = {call_result(output) for output in found.outputs} - {None} == set(range(found.results))
    require(numbered and all(is_output(each, found.given) for each in found.outputs), f"outputs {found.outputs}")
    return found


def is_output(output: object, given: int) -> bool:
    match output:
        case bool():
            return False
        case int() | {"literal": _}:
            return True
        case {"input": int(position)}:
            return 0 <= position < given
        case {"result": int(), "permute": order} | {"result": int(), "order": order}:
            return sorted(order) == list(range(len(order)))
        case {"result": int(), "number": kind}:
            return kind in NUMBERS
    return False


def require(holds: bool, found: str) -> None:
    if not holds:
        raise FactsError(found)


@contextmanager
def facts_read(blob: DelegateBlob, backend: str) -> Iterator[Mapping[str, Any]]:
    """Give the facts of a blob; turn an error in their use into a `ProgramError`."""
    try:
        yield blob.info
    except FactsError as error:
        raise description_error(blob, backend, str(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise description_error(blob, backend, f"{type(error).__name__}: {error}") from error
