"""Make `dtypes.json`: which dtypes torch accepts for the core ATen operators, and which it returns.

`python -m hatch_lower.exir.dialects.edge.generate_dtypes` writes the table anew. Each operator is called with every
combination of the regular dtypes, by torch's meta function and by its CPU kernel; a combination is in the table if both
accept it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from hatch_lower.exir.dialects.edge.dtype_samples import Slot, call_variants, core_operators
from hatch_lower.exir.dialects.edge.dtypes import REGULAR_DTYPES, full_name, is_tensor_type, tensor_names

__all__ = ["accepted_dtypes", "expand", "rows_of", "table_of", "write_table"]

Combination = tuple[str | None, ...]
Row = tuple[tuple[int, ...], tuple[frozenset[str | None], ...]]
"""For each tensor the number of its alias, and for each alias its dtypes."""

NAMES = tuple(str(dtype).removeprefix("torch.") for dtype in REGULAR_DTYPES)
MANY_TENSORS = 4
"""With more tensors than this, dtypes that no uniform call accepts in some place are not combined."""


def accepted_dtypes(op: OpOverload) -> tuple[tuple[str, ...], set[Combination]]:
    """Return the names of an operator's tensors, and each combination of their dtypes that torch accepts.

    An optional tensor that was left out has `None` in a combination.
    """
    essential, optional = tensor_names(op._schema)
    names = (*essential, *optional)
    found: set[Combination] = set()
    for call in call_variants(op):
        slots = {name: value for name, value in call.items() if isinstance(value, Slot)}
        for dtypes in combinations(op, call, slots):
            results = run(op, call, dtypes)
            if results is not None:
                known = {**dict(zip(slots, dtypes, strict=True)), **results}
                found.add(tuple(dtype_text(known.get(name)) for name in names))
    return names, found


def combinations(
    op: OpOverload, call: Mapping[str, Any], slots: Mapping[str, Slot]
) -> Iterator[tuple[torch.dtype, ...]]:
    """Yield the combinations of dtypes to try."""
    choices: list[Sequence[torch.dtype]] = [REGULAR_DTYPES] * len(slots)
    if len(slots) > MANY_TENSORS:
        uniform = [dtype for dtype in REGULAR_DTYPES if run(op, call, (dtype,) * len(slots)) is not None]
        choices = [uniform] * len(slots)
    return product(*choices)


def run(op: OpOverload, call: Mapping[str, Any], dtypes: Sequence[torch.dtype]) -> dict[str, torch.dtype] | None:
    """Call an operator; return its results' dtypes by name, or `None` if torch refuses the call.

    Operators whose result's shape depends on values have no meta function; their kernel decides alone.
    """
    try:
        results = run_on("cpu", op, call, dtypes)
    except (RuntimeError, TypeError, IndexError, ValueError, ZeroDivisionError):
        return None
    if not all(dtype in REGULAR_DTYPES for dtype in results.values()):
        return None
    try:
        meta = run_on("meta", op, call, dtypes)
    except NotImplementedError:
        return results
    except (RuntimeError, TypeError, IndexError, ValueError, ZeroDivisionError) as error:
        return results if "meta tensors" in str(error) else None
    return results if meta == results else None


def run_on(device: str, op: OpOverload, call: Mapping[str, Any], dtypes: Sequence[torch.dtype]) -> dict[str, Any]:
    """Call an operator on a device and return its results' dtypes by name."""
    chosen = iter(dtypes)
    given = {
        name: value.make(next(chosen), device) if isinstance(value, Slot) else value for name, value in call.items()
    }
    if any(argument.name == "device" for argument in op._schema.arguments):
        given["device"] = device
    results = op(**given)
    returns = op._schema.returns
    values = [results] if len(returns) == 1 else list(results)
    return {
        argument.name or f"__ret_{position}": (value[0] if isinstance(value, (list, tuple)) else value).dtype
        for position, (argument, value) in enumerate(zip(returns, values, strict=True))
        if is_tensor_type(argument.type)
    }


def dtype_text(dtype: torch.dtype | None) -> str | None:
    """Return `float32` for `torch.float32`."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def rows_of(accepted: Iterable[Combination]) -> list[Row]:
    """Return rows that describe a set of combinations, and nothing else.

    Each row is grown from a combination that none covers yet: its tensors of one dtype share an alias, or have each
    their own, or all but one share it, whichever covers most; then each alias takes in every further dtype with which
    all combinations of the row are still accepted.
    """
    everything = set(accepted)
    missing = sorted(everything, key=sort_key)
    rows: list[Row] = []
    covered: set[Combination] = set()
    for combination in missing:
        if combination not in covered:
            grown = [grow(combination, aliases, everything) for aliases in partitions_of(combination)]
            row = max(grown, key=lambda each: len(set(members(each)) - covered))
            rows.append(row)
            covered.update(members(row))
    return rows


def sort_key(combination: Combination) -> tuple[int, ...]:
    """Return what orders combinations: by the order of the dtypes."""
    return tuple(-1 if dtype is None else NAMES.index(dtype) for dtype in combination)


def partitions_of(combination: Combination) -> list[tuple[int, ...]]:
    """Return ways to share aliases among tensors that have one dtype, the most sharing first."""
    shared = tuple(combination.index(dtype) for dtype in combination)
    apart = [
        tuple(len(combination) if position == alone else alias for position, alias in enumerate(shared))
        for alone in range(len(combination))
    ]
    return list(dict.fromkeys([shared, *map(renumber, apart), tuple(range(len(combination)))]))


def renumber(aliases: Sequence[int]) -> tuple[int, ...]:
    """Return aliases named by their first tensor."""
    return tuple(list(aliases).index(alias) for alias in aliases)


def grow(combination: Combination, aliases: tuple[int, ...], accepted: set[Combination]) -> Row:
    """Return the largest row that starts from a combination and stays within what is accepted."""
    kept = list(dict.fromkeys(aliases))
    numbers = tuple(kept.index(alias) for alias in aliases)
    sets: list[frozenset[str | None]] = [frozenset([combination[alias]]) for alias in kept]
    for number in range(len(sets)):
        for dtype in (*NAMES, None):
            wider = [*sets[:number], sets[number] | {dtype}, *sets[number + 1 :]]
            alone = [*sets[:number], frozenset([dtype]), *sets[number + 1 :]]
            if all(each in accepted for each in expand(numbers, alone)):
                sets = wider
    return numbers, tuple(sets)


def expand(numbers: Sequence[int], sets: Sequence[Iterable[str | None]]) -> Iterator[Combination]:
    """Yield the combinations that a row stands for."""
    for chosen in product(*sets):
        yield tuple(chosen[number] for number in numbers)


def members(row: Row) -> Iterator[Combination]:
    """Yield the combinations that a row stands for."""
    return expand(*row)


def table_of(operators: Iterable[OpOverload]) -> dict[str, Any]:
    """Return the table of some operators as it is written."""
    letters: dict[tuple[str, ...], str] = {}
    entries = {}
    for op in operators:
        names, accepted = accepted_dtypes(op)
        if accepted:
            rows = [row_text(row, letters) for row in rows_of(accepted)]
            entries[full_name(op)] = {"tensors": list(names), "rows": rows}
    aliases = {letter: list(dtypes) for dtypes, letter in letters.items()}
    return {"torch": torch.__version__.partition("+")[0], "aliases": aliases, "operators": entries}


def row_text(row: Row, letters: dict[tuple[str, ...], str]) -> str:
    """Return a row's aliases in the order of the tensors; `T1'` has the dtypes of `T1` and is chosen by itself.

    Args:
        row: the row.
        letters: the sets of dtypes that have a name already; extended.
    """
    numbers, sets = row
    texts: list[str] = []
    for each in sets:
        dtypes = tuple(name for name in NAMES if name in each)
        text = letters.setdefault(dtypes, f"T{len(letters)}")
        while text in texts:
            text += "'"
        texts.append(text)
    return " ".join(texts[number] for number in numbers)


def write_table(path: Path) -> None:
    """Write the table of all core ATen operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = table_of(core_operators())
    lines = json.dumps(table, indent=0, sort_keys=True)
    path.write_text(lines + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write_table(Path(__file__).with_name("dtypes.json"))
