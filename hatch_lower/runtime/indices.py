"""Indices out of range: the error of a call, which names the argument, the index and the rows of the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from hatch_lower.errors import IndexRangeError
from hatch_lower.format.arguments import Argument, Value
from hatch_lower.format.graph import OpCall
from hatch_lower.runtime.arrays import Arrays

# of operators whose first argument is a table, and that take no negative index: the positions of the dimension (`None`:
# always 0) and of the indices
LOOKUPS: Mapping[str, tuple[int | None, int]] = {
    **dict.fromkeys(
        (
            *("aten.embedding.default", "aten.embedding_bag.padding_idx"),
            *("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default"),
        ),
        (None, 1),
    ),
    **dict.fromkeys(
        (
            *("aten.gather.default", "aten.index_select.default", "aten.scatter.src", "aten.scatter.value"),
            *("aten.scatter_add.default", "aten.scatter_reduce.two"),
        ),
        (1, 2),
    ),
}
# of operators with a list of indices, which may be negative: one for each dimension of the table
WITH_LISTS = frozenset({"aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default"})
INDEX_DTYPES = frozenset({"int32", "int64"})
LARGEST = (2**31 - 1, 2**63 - 1)  # into these an engine's program turns a negative index
# the words of engines, with the index and the last row; the index and the number of rows; the number of rows
ONNXRUNTIME_WORDS = re.compile(r"\bidx=(-?\d+) must be within (?:the inclusive range )?\[-?\d+, ?(\d+)\]")
TORCH_WORDS = re.compile(r"\bindex (-?\d+) is out of bounds for dimension \d+ with size (\d+)")
BAG_WORDS = re.compile(r"\binput takes value (-?\d+) which is not in the valid range \[0, (\d+)\)")
INDUCTOR_WORDS = re.compile(r"\bindex out of bounds: 0 <= \w+ < (\d+)")


class UsedIndices(NamedTuple):
    """Indices of a call: at least `least`, and less than `rows`."""

    argument: Any
    value: Any
    least: int
    rows: int


class WrongIndex(NamedTuple):
    """An index that is out of range, and its place in its array."""

    number: int
    place: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"{self.number} at {list(self.place)}" if self.place else str(self.number)


class ArgumentNames:
    """The names of a method's arguments, for its graph's values; in a nested graph no value has one."""

    def __init__(self, where: str, paths: Sequence[str] = (), slots: Sequence[int] = ()) -> None:
        self.where = where  # method `forward`
        self._names = {slot: f"`{path}`" for slot, path in zip(slots, paths, strict=True)}
        self._positions = {slot: position for position, slot in enumerate(slots)}

    def name_of(self, argument: Argument) -> str:
        return self._names.get(argument.slot, "") if isinstance(argument, Value) else ""

    def position_of(self, argument: Argument) -> int | None:
        return self._positions.get(argument.slot) if isinstance(argument, Value) else None


def is_lookup(call: OpCall) -> bool:
    return call.op in LOOKUPS or call.op in WITH_LISTS


def refuse_lookup(
    names: ArgumentNames, call: OpCall, arrays: Arrays, error: Exception, values: Sequence[Any]
) -> NoReturn:
    """Raise the error of an operator again, as `IndexRangeError` if one of its indices is out of range."""
    for used in used_indices(call, arrays, values):
        if (found := first_outside(arrays, used.value, used.least, used.rows)) is not None:
            refused = range_error([(names.name_of(used.argument), found)], used.least, used.rows, names.where)
            refused.position = names.position_of(used.argument)
            raise refused from error
    raise error


def used_indices(call: OpCall, arrays: Arrays, values: Sequence[Any]) -> Iterator[UsedIndices]:
    if call.op in WITH_LISTS:
        table, indices, arguments = values[0], values[1], call.args[1]
        # a mask may stand for several dimensions
        plain = all(value is None or arrays.dtype_name(value) in INDEX_DTYPES for value in indices)
        if isinstance(arguments, tuple) and plain:
            for dimension, (argument, value) in enumerate(zip(arguments, indices, strict=True)):
                if value is not None and dimension < table.ndim:
                    rows = table.shape[dimension]
                    yield UsedIndices(argument, value, -rows, rows)
        return
    dim, index = LOOKUPS[call.op]
    if index < len(values) and values[0].ndim:
        rows = values[0].shape[0 if dim is None else values[dim]]
        yield UsedIndices(call.args[index], values[index], 0, rows)


def first_outside(arrays: Arrays, value: Any, least: int, rows: int) -> WrongIndex | None:
    return first_where(arrays, value, lambda index: not least <= index < rows)


def first_where(arrays: Arrays, value: Any, is_wrong: Callable[[int], bool]) -> WrongIndex | None:
    """Return the first wrong index; `None` for values that are no integers or cannot be read."""
    try:
        if not isinstance(value, arrays.kind) or arrays.dtype_name(value) not in INDEX_DTYPES:
            return None
        numbers: list[int] = arrays.on_host(value).flatten().tolist()
    except Exception:  # of a tensor without memory (`torch.func`), or after the fault of a GPU
        return None
    position = next((at for at, number in enumerate(numbers) if is_wrong(number)), None)
    return None if position is None else WrongIndex(numbers[position], place_of(position, value.shape))


def place_of(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    place: list[int] = []
    for size in reversed(shape):
        position, within = divmod(position, size)
        place.insert(0, within)
    return tuple(place)


def range_error(found: Sequence[tuple[str, WrongIndex]], least: int, rows: int, where: str) -> IndexRangeError:
    """Return the error for indices, each with the name of its argument: one of the indices is out of range."""
    (name, first), *others = found
    listed = " or ".join(f"{each.text} of {label}" for label, each in found)
    error = IndexRangeError(
        "an index is out of range",
        where=f"{name} of {where}" if name and not others else where,
        found=f"{listed if others else first.text}, where a table has {rows} rows",
        hint=f"give indices from {least} to {rows - 1}" if rows else "give a table that has rows",
    )
    error.least, error.rows = least, rows
    return error


def delegate_range_error(
    names: Sequence[str], where: str, arrays: Arrays, error: Exception, values: Sequence[Any]
) -> IndexRangeError | None:
    """Return the error for a failed call of a delegate; `None` if no argument has the index that the error is about.

    Args:
        names: of the delegate's inputs that are arguments of the method; empty for other inputs.
        where: the method.
        arrays: the library of the program.
        error: of the delegate.
        values: the delegate's inputs.
    """
    if isinstance(error, IndexRangeError):
        if error.position is None:
            return None
        found = first_outside(arrays, values[error.position], error.least, error.rows)
        return found and range_error([(names[error.position], found)], error.least, error.rows, where)
    named = [(name, value) for name, value in zip(names, values, strict=True) if name]
    index, rows = told_range(str(error))
    is_wrong = wrong_indices(index, rows)
    all_found = [(name, first_where(arrays, value, is_wrong)) for name, value in named] if rows else []
    here = [(name, found) for name, found in all_found if found is not None]
    return range_error(here, 0, rows, where) if here else None


def told_range(words: str) -> tuple[int | None, int]:
    """Return the index, if known, and the number of rows in an engine's words; 0 rows without such words."""
    if match := ONNXRUNTIME_WORDS.search(words):
        return int(match[1]), int(match[2]) + 1
    if match := TORCH_WORDS.search(words) or BAG_WORDS.search(words):
        return int(match[1]), int(match[2])
    match = INDUCTOR_WORDS.search(words)
    return None, int(match[1]) if match else 0


def wrong_indices(index: int | None, rows: int) -> Callable[[int], bool]:
    """Return a test for the indices that an engine may have refused, by the index that the engine names, if any."""
    if index in LARGEST:
        return lambda number: number < 0 or number == index
    if index is not None:
        return lambda number: number == index
    return lambda number: not 0 <= number < rows


def check_indices(indices: Any, position: int, least: int, rows: int) -> None:
    """Raise an `IndexRangeError` for an index out of range in a delegate's input at `position`, an array of NumPy."""
    if indices.size and (indices.min() < least or indices.max() >= rows):
        wrong = indices[(indices < least) | (indices >= rows)]
        error = range_error([("", WrongIndex(int(wrong[0]), ()))], least, rows, f"input {position} of a delegate")
        error.position = position
        raise error
