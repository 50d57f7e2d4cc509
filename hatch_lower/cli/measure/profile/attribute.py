"""Attribution of measured times to source lines: the time of an instruction goes to its operations.

An engine often computes several operations at once, and knows the total time only. The time is divided equally among
the heaviest kind of operations: first convolutions, products and attention, then elementwise operations, then moves
and views. Other operations have a row with 0 seconds. An operation in several instructions (a product, and the sum
with its bias) is heavy only in its home: the longest of the instructions without other operations of the same weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hatch_lower.cli.measure.profile.rows import PLAN, REST, WHOLE, RecipeProfile, Row, Span, merged
from hatch_lower.cli.measure.timed import undisturbed
from hatch_lower.format.debug_map import DelegateDebug, MethodDebug, Origin
from hatch_lower.format.plan import Plan

HEAVIEST = 2
# by the operator's name without namespace and overload
HEAVY = frozenset(
    {
        *("_int_mm", "addbmm", "addmm", "baddbmm", "bilinear", "bmm", "convolution", "einsum", "gru", "linear", "lstm"),
        *("matmul", "mm", "mv", "addmv", "dot", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
        *("conv_transpose3d", "scaled_dot_product_attention", "_scaled_mm"),
    }
)
MOVING = frozenset(
    {
        *("_to_copy", "_unsafe_view", "alias", "alias_copy", "arange", "as_strided", "broadcast_to", "cat", "chunk"),
        *("clone", "constant_pad_nd", "contiguous", "detach", "detach_", "dropout", "expand", "expand_copy", "flatten"),
        *("full", "full_like", "getitem", "lift_fresh_copy", "narrow", "ones", "permute", "permute_copy", "repeat"),
        *("reshape", "scalar_tensor", "select", "select_copy", "slice", "slice_copy", "split", "split_copy"),
        *("split_with_sizes", "split_with_sizes_copy", "squeeze", "squeeze_copy", "stack", "sym_size", "t", "t_copy"),
        *("transpose", "transpose_copy", "unbind", "unflatten", "unsqueeze", "unsqueeze_copy", "view", "view_copy"),
        "zeros",
    }
)


class Part(NamedTuple):
    """An instruction of the plan or of a delegate, with the seconds of a call."""

    name: str
    handles: tuple[int, ...]
    seconds: float
    times: int  # number of runs


def attribute(found: Mapping[str, Any], plan: Plan, debug: MethodDebug) -> RecipeProfile:
    """Return the profile of a recipe; `found` is the answer of the measuring process."""
    plain, timed = found["times"]["plain"], found["times"]["timed"]
    divided = Attribution(debug)
    for step in found["steps"]:
        path, per_call = step["path"], 1e9 * len(timed)
        part = Part(step["op"], debug.instructions.get(path, ()), step["nanoseconds"] / per_call, step["count"])
        if "delegate" not in step:
            divided.add_instruction(part)
            continue
        entry = debug.delegates.get(path) or DelegateDebug(plan.delegates[step["delegate"]].backend)
        inside = [
            Part(", ".join(ids), handles_of(entry, ids), nanoseconds / per_call, count)
            for ids, nanoseconds, count in step["parts"]
        ]
        divided.add_delegate(part._replace(name=f"{entry.backend} {path}"), entry.backend, inside)
        if entry.map is None:
            divided.notes[f"the debug map has no operations for instructions inside `{entry.backend}`"] = None
        elif str(step["delegate"]) in found["untimed"]:
            reason = found["untimed"][str(step["delegate"])]
            divided.notes[f"`{entry.backend}` is not measured inside: {reason}"] = None
    return RecipeProfile(
        len(timed),
        sum(timed) / len(timed) / 1e9,
        undisturbed(timed) / undisturbed(plain) - 1,
        divided.rows(),
        tuple(divided.spans),
        tuple(divided.notes),
    )


def handles_of(delegate: DelegateDebug, ids: Collection[str]) -> tuple[int, ...]:
    known = delegate.map or {}
    return tuple(dict.fromkeys(handle for each in ids for handle in known.get(each, ())))


class Attribution:
    """Divides instructions among the operations that they compute."""

    def __init__(self, debug: MethodDebug) -> None:
        self._debug = debug
        self._operations: dict[tuple[int, str], Row] = {}  # by handle and engine
        self._others: list[Row] = []  # of which no operation is known
        self.spans: list[Span] = []
        self.notes: dict[str, None] = {}

    def add_instruction(self, part: Part) -> None:
        self.spans.append(self._span(part, PLAN))
        self._divide(part, PLAN, {})

    def add_delegate(self, whole: Part, engine: str, parts: list[Part]) -> None:
        spans = [self._span(part, engine) for part in parts]
        self.spans.append(self._span(whole, engine, tuple(spans)))
        if not parts:
            # all work of a delegate with a single source line belongs to the line
            sources = {(origin.source, origin.module) for origin in self._origins(whole.handles)}
            source, module = sources.pop() if len(sources) == 1 else ("", "")
            self._others.append(Row(source, module, WHOLE, engine, whole.seconds, whole.times))
            return
        homes = self._homes(parts)
        for part in parts:
            self._divide(part, engine, homes)
        rest = whole.seconds - sum(part.seconds for part in parts)
        if rest > 0:
            self._others.append(Row("", "", REST, engine, rest, whole.times))

    def rows(self) -> tuple[Row, ...]:
        return merged([*self._operations.values(), *self._others])

    def _divide(self, part: Part, engine: str, homes: Mapping[int, Part]) -> None:
        known = [handle for handle in part.handles if handle in self._debug.handles]
        own = [handle for handle in known if homes.get(handle, part) is part]
        if not any(map(self._weight, own)):
            own = known
        sharing = self._heaviest(own)
        for handle in known:
            origin = self._debug.handles[handle]
            seconds = part.seconds / len(sharing) if handle in sharing else 0.0
            row = Row(origin.source, origin.module, origin.op, engine, seconds, part.times, len(known) > 1)
            before = self._operations.get((handle, engine))
            if before is not None:  # several instructions compute the operation in turn
                row = replace(
                    row,
                    seconds=before.seconds + seconds,
                    calls=max(before.calls, row.calls),
                    shared=before.shared or row.shared,
                )
            self._operations[handle, engine] = row
        if not known:
            self._others.append(Row("", "", part.name, engine, part.seconds, part.times))

    def _homes(self, parts: Sequence[Part]) -> dict[int, Part]:
        homes: dict[int, Part] = {}
        for part in sorted(parts, key=lambda part: -part.seconds):
            heaviest = self._heaviest([handle for handle in part.handles if handle in self._debug.handles])
            if len(heaviest) == 1 and self._weight(heaviest[0]) == HEAVIEST:
                homes.setdefault(heaviest[0], part)
        return homes

    def _heaviest(self, handles: Sequence[int]) -> list[int]:
        most = max(map(self._weight, handles), default=0)
        return [handle for handle in handles if self._weight(handle) == most]

    def _weight(self, handle: int) -> int:
        name = self._debug.handles[handle].op.removeprefix("aten.").partition(".")[0]
        return HEAVIEST if name in HEAVY else 0 if name in MOVING else 1

    def _origins(self, handles: Collection[int]) -> tuple[Origin, ...]:
        return tuple(self._debug.handles[handle] for handle in handles if handle in self._debug.handles)

    def _span(self, part: Part, engine: str, parts: tuple[Span, ...] = ()) -> Span:
        return Span(part.name, engine, part.seconds, self._origins(part.handles), parts)
