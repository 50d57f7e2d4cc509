"""The instructions of an engine's program: their operations, with every operation assigned, and timed runs.

Imports only modules that a run half may import.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hatch_lower.runtime.timing import Run, TimedDelegate

if TYPE_CHECKING:
    from torch.fx import Node

Key = TypeVar("Key", bound=Hashable)
Home = TypeVar("Home", bound=Hashable)


def instruction_handles(
    numbers: Mapping[Node, int], handles: Sequence[int], instructions: Mapping[str, Iterable[int]], rest: str
) -> dict[int | str, tuple[int, ...]]:
    """Return the debug handles of each instruction.

    `numbers` maps the nodes of a written graph, in order, to the operations that they belong to; `rest` names the
    instruction of all operations without an instruction.
    """
    homes: dict[int, tuple[str, ...]] = dict.fromkeys(range(len(handles)), ())
    for name, computed in instructions.items():
        for number in computed:
            homes[number] += (name,)
    # an operation may have no instruction: a view, or an operation that a pattern replaced
    nodes = {number: node for node, number in numbers.items()}  # of several nodes, the last gives the result
    users = {number: [numbers[each] for each in node.users if each in numbers] for number, node in nodes.items()}
    sources = {
        number: [numbers[each] for each in node.all_input_nodes if each in numbers] for number, node in nodes.items()
    }
    adopt(homes, users, sources)
    computes: dict[str, set[int]] = {name: set() for name in instructions}
    for number, names in homes.items():
        for name in sorted(names) or [rest]:
            computes.setdefault(name, set()).add(handles[number])
    return {name: tuple(sorted(numbers)) for name, numbers in computes.items() if numbers}


def adopt(
    homes: dict[Key, tuple[Home, ...]], users: Mapping[Key, Iterable[Key]], sources: Mapping[Key, Iterable[Key]]
) -> None:
    """Give keys without a home those of their users, or else of their sources; `homes` is in computing order."""
    for order, neighbours in ((reversed(homes), users), (iter(homes), sources)):
        for key in order:
            if not homes[key]:
                found = (home for neighbour in neighbours.get(key, ()) for home in homes.get(neighbour, ()))
                homes[key] = tuple(dict.fromkeys(found))


def added(times: Iterable[tuple[tuple[str, ...], float]]) -> Run:
    """Return a run with the times of each instruction added up."""
    run: dict[tuple[str, ...], float] = {}
    for names, nanoseconds in times:
        run[names] = run.get(names, 0) + nanoseconds
    return run


class CountedRuns(TimedDelegate):
    """A timed delegate that counts its runs; a mixin before the engine's own delegate."""

    count = 0
    forgotten = 0  # the count at the last call of `forget_runs`

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        self.count += 1
        engine: Any = super()  # the engine's delegate, not the protocol, whose `run` is empty
        outputs: Sequence[Any] = engine.run(inputs)
        return outputs

    def forget_runs(self) -> None:
        self.forgotten = self.count
