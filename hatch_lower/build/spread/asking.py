"""What a child process asks for instead of making it: it writes parts into a folder, where its worker finds them.

A part is a partition that a backend is to lower, or one step of that, such as a compilation. One part alone is made
where it is: the unit that asks has to be begun again, with another export.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hatch_lower.build.spread.protocol import Need
from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import ProcessError
from hatch_lower.format.codec import encode, read_record, write_record
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
    from hatch_lower.exir.backend.steps import Step
    from hatch_lower.exir.lowering.preprocess import Group

NEEDS = "needs.json"
# the files of a part that is made, in the folder of its child process
BODY, DATA, LACKS = "part.json", "part", "lacks.json"


class PartBody(Frozen):
    """What a part is made from, beside the bytes that travel with it."""

    make: Literal["partition", "step"]
    backend: str
    specs: tuple[tuple[str, str], ...]  # key, and value in hexadecimal
    key: Mapping[str, object]  # components
    timeout: int  # seconds
    step: str = ""  # its name


class PartsNeededError(ProcessError):
    """A child process has asked for parts."""


class Asker:
    """Asks for what is missing in a unit, if that is more than one part."""

    def __init__(self, folder: Path, asked: Collection[str], timeout: int, note: Callable[[str], None]) -> None:
        self._folder = folder  # gets the parts
        self._asked = frozenset(asked)  # keys that were asked for before and brought nothing: they are made here
        self._timeout = timeout  # seconds that a part may take
        self._note = note  # is told why a partition is lowered here
        self._told: set[str] = set()

    def partitions(self, groups: Mapping[str, Group]) -> None:
        """Ask for partitions; a `PartsNeededError` if there is something to wait for."""
        parts = (self._partition(key, group) for key, group in groups.items() if key not in self._asked)
        self._ask([part for part in parts if part is not None])

    def steps(self, backend_id: str, specs: Sequence[CompileSpec], steps: Mapping[str, Step]) -> None:
        """Ask for steps of a backend; raises as `partitions`."""
        from hatch_lower.exir.lowering.stored_steps import step_key

        parts = []
        for key, step in steps.items():
            if key not in self._asked:
                components = step_key(backend_id, step).components()
                body = PartBody("step", backend_id, written(specs), components, self._timeout, step.name)
                parts.append(part_of(f"{step.name} {key[:8]} for `{backend_id}`", body, key, step.text.encode()))
        self._ask(parts)

    def _partition(self, key: str, group: Group) -> tuple[Need, bytes] | None:
        from hatch_lower.exir.lowering.portable import write_partition
        from hatch_lower.exir.lowering.portable_sizes import NotPortableError

        request = group.requests[0]
        backend_id = request.spec.backend_id
        try:
            if group.joint:
                raise NotPortableError("a backend that lowers all partitions together")
            data = write_partition(request.local, contents=not request.backend.weight_free)
        except NotPortableError as error:
            subject = f"a partition of `{request.method}` for `{backend_id}`"
            self._tell(f"{subject} is lowered with its recipe: it has {error}")
            return None
        body = PartBody("partition", backend_id, written(request.spec.compile_specs), group.components, self._timeout)
        return part_of(f"partition {key[:8]} for `{backend_id}`", body, key, data)

    def _tell(self, line: str) -> None:
        if line not in self._told:  # partitions of one method mostly have the same
            self._told.add(line)
            self._note(line)

    def _ask(self, parts: Sequence[tuple[Need, bytes]]) -> None:
        if len(parts) < 2:
            return
        self._folder.mkdir(exist_ok=True)
        for need, data in parts:
            (self._folder / need.blob).write_bytes(data)
        write_record(self._folder / NEEDS, [need for need, _ in parts])
        raise PartsNeededError("parts of it are to be made first", found=", ".join(need.name for need, _ in parts))


def written(specs: Sequence[CompileSpec]) -> tuple[tuple[str, str], ...]:
    return tuple((spec.key, spec.value.hex()) for spec in specs)


def part_of(name: str, body: PartBody, key: str, data: bytes) -> tuple[Need, bytes]:
    return Need(key, name, encode(body), sha256_bytes(data)), data


def read_asked(folder: Path) -> tuple[tuple[Need, ...], list[bytes]]:
    """Return what a child process has asked for, and the bytes of each; nothing if it did not."""
    try:
        needs = read_record(tuple[Need, ...], folder / NEEDS)
    except FileNotFoundError:
        return (), []
    return needs, [(folder / need.blob).read_bytes() for need in needs]
