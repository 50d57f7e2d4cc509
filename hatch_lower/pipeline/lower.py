"""The stages `decompose` and `compile`: a model's methods for a recipe, backend by backend, timed and reported."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions

from hatch_lower.config.settings import Recipe
from hatch_lower.errors import BackendError, EdgeError
from hatch_lower.events import Event, stage
from hatch_lower.exir.backend.backend_api import DelegatedMethod
from hatch_lower.exir.backend.backend_details import BackendNote
from hatch_lower.exir.graph.nodes import MAY_BE_ZERO
from hatch_lower.exir.lowering.leave_out import Places
from hatch_lower.exir.lowering.lower import LoweringSteps, Turn, lower_exported
from hatch_lower.exir.lowering.unlike_eager import UNLIKE_EAGER
from hatch_lower.exir.pass_base import AnyPass
from hatch_lower.exir.passes.fold_literals import FoldLiterals
from hatch_lower.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.emit.signature import user_inputs
from hatch_lower.pipeline.heal import Attempt, Healing
from hatch_lower.pipeline.model_build import BuildInputs, KeptLowering, Services, place_of
from hatch_lower.pipeline.sandbox import backend_guard

FINITE_ONLY = "finite-only"
NAMED = 3  # number of operators in a line


def lower_for_recipe(inputs: BuildInputs, services: Services, recipe: Recipe, attempt: Attempt) -> KeptLowering:
    """Return the model's methods, lowered for a recipe."""
    before = attempt.kept.get(recipe.name)
    if before is not None and before.left_out == attempt.left_out.get(recipe.name, {}):
        return before
    source, reporter, partitioners = inputs.source_of(recipe), services.reporter, inputs.partitioners[recipe.name]
    methods = {method.name: method.program for method in source.methods}
    turns = [Turn(dict.fromkeys(methods, partitioner), backend) for backend, partitioner in partitioners.items()]
    # without a backend no operation is decomposed: torch runs whole operations faster and with eager's own numbers
    everything: Any = [] if turns else list(default_decompositions())
    healing = Healing(services, recipe, attempt)
    steps = ReportedSteps(source.name, recipe, services, healing)
    if before is not None:
        steps.seconds.update(before.seconds)
    wanted: list[AnyPass] = [RemoveMixedTypeOperators(), FoldLiterals()] if turns else [FoldLiterals()]
    passes = dict.fromkeys(methods, wanted)
    sizes = {method.name: symbols_of_sizes(method) for method in source.methods}
    lowered = lower_exported(
        methods,
        turns,
        preserve=everything,
        preserve_nodes=UNLIKE_EAGER,
        passes=passes,
        steps=steps,
        before=None if before is None else before.methods,
    )
    for method in source.methods:
        where = f"{place_of(source.name, recipe)}, method `{method.name}`"
        check_sizes(where, sizes[method.name], symbols_of_sizes(method))
        if line := line_on_ranges(method, lowered.methods[method.name].reasons.values()):
            reporter.report(Event("compile", "note", source.name, recipe.name, method.name, detail=line))
    for backend in recipe.backends:
        line = line_on_finite(backend.name, steps.finite_only[backend.name])
        if line and FINITE_ONLY not in backend.options:
            reporter.report(Event("compile", "note", source.name, recipe.name, detail=line))
    return KeptLowering(lowered, steps.seconds, healing.left_out, healing.times)


class ReportedSteps(LoweringSteps):
    """Reports and times the steps, and names the backend whose code fails."""

    def __init__(self, model: str, recipe: Recipe, services: Services, healing: Healing) -> None:
        self._model = model
        self._recipe = recipe
        self.store = services.store
        self._reporter = services.reporter
        self._healing = healing
        self.seconds: dict[str, float] = {}
        self.finite_only: dict[str, frozenset[str]] = {}  # operators by backend, of all methods

    @contextmanager
    def edge(self, method: str) -> Iterator[None]:
        begin = time.perf_counter()
        with stage(self._reporter, "decompose", self._model, self._recipe.name, method):
            try:
                yield
            except EdgeError as error:
                error.where = ", ".join(filter(None, (self._place(method), error.where)))
                raise
        self.seconds[method] = time.perf_counter() - begin

    def left_out(self, turn: Turn) -> Mapping[str, Places]:
        return self._healing.places(turn.name)

    def leaves_out(self, turn: Turn, programs: Mapping[str, ExportedProgram], error: BackendError) -> bool:
        return self._healing.leaves_out(turn, programs, error)

    def ask(self, method: str) -> AbstractContextManager[object]:
        # code of all backends of the recipe runs here
        backends = "` or `".join(choice.name for choice in self._recipe.backends)
        return backend_guard(backends, self._place(method))

    def _place(self, method: str) -> str:
        return f"{place_of(self._model, self._recipe)}, method `{method}`"

    @contextmanager
    def turn(self, turn: Turn) -> Iterator[Callable[[Mapping[str, DelegatedMethod]], object]]:
        begin = time.perf_counter()
        lowered: dict[str, DelegatedMethod] = {}
        with stage(self._reporter, "compile", self._model, self._recipe.name) as describe:
            with backend_guard(turn.name, place_of(self._model, self._recipe)), notes_given_to(self._note):
                yield lowered.update
            describe(f"{turn.name}: {partitions_text(lowered)}")
        taken = time.perf_counter() - begin
        self.finite_only[turn.name] = frozenset().union(*(method.finite_only for method in lowered.values()))
        for method, share in shares_of(lowered).items():
            self.seconds[method] += share * taken

    def _note(self, line: str) -> None:
        self._reporter.report(Event("compile", "note", self._model, self._recipe.name, detail=line))


@contextmanager
def notes_given_to(report: Callable[[str], object]) -> Iterator[None]:
    """Give the lines of backends to a function; other warnings stay warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", BackendNote)
        show = warnings.showwarning

        def take(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if issubclass(category, BackendNote):
                report(str(message))
            else:
                show(message, category, *rest, **named)

        warnings.showwarning = take  # `catch_warnings` restores the function
        yield


def partitions_text(lowered: Mapping[str, DelegatedMethod]) -> str:
    partitions = sum(method.partitions for method in lowered.values())
    reused = sum(method.reused for method in lowered.values())
    return f"{partitions} partition{'' if partitions == 1 else 's'}, {reused} reused"


def shares_of(lowered: Mapping[str, DelegatedMethod]) -> dict[str, float]:
    # by newly built partitions: a single call lowers all methods, and only that call is timed
    built = {name: method.partitions - method.reused for name, method in lowered.items()}
    total = sum(built.values())
    return {name: count / total if total else 1 / len(built) for name, count in built.items()}


def symbols_of_sizes(method: CapturedMethod) -> dict[str, frozenset[str]]:
    """Return the symbols in each integer input and in each size of an input tensor, by the words for the place."""
    places: dict[str, object] = {}
    for _, node in user_inputs(method.program):
        value = node.meta.get("val")
        places[f"`{node.name}`"] = value
        places |= {f"dimension {at} of `{node.name}`": size for at, size in enumerate(getattr(value, "shape", ()))}
    return {
        place: frozenset(map(str, size.node.expr.free_symbols))
        for place, size in places.items()
        if isinstance(size, torch.SymInt)
    }


def check_sizes(where: str, before: Mapping[str, frozenset[str]], after: Mapping[str, frozenset[str]]) -> None:
    """Refuse a lowering that fixed a dynamic size, which is then fixed for all programs with the same symbols."""
    fixed = [place for place, symbols in before.items() if not symbols <= after.get(place, frozenset())]
    if fixed:
        raise EdgeError(
            "a dynamic size became a fixed size in the lowering",
            where=where,
            found=f"{', '.join(fixed)}: no range of its own any more",
            hint="leave the backends out of the recipe one by one, and report the fault to the authors of the backend"
            " that fixes the size; or omit the dimension in `dynamic_shapes`",
        )


def line_on_ranges(method: CapturedMethod, reasons: Iterable[str]) -> str:
    """Return advice for a method with operations outside of delegates because a dynamic size may be 0."""
    count = sum(MAY_BE_ZERO in reason for reason in reasons)
    ranges = {str(symbol): limits for symbol, limits in method.program.range_constraints.items()}
    wide = {name: ranges[symbol].upper for symbol, name in method.dimensions.items() if ranges[symbol].lower == 0}
    if not count or not wide:
        return ""
    ends = {name: f", max={upper}" if upper.is_finite else "" for name, upper in sorted(wide.items())}
    lines = ", ".join(f'`Dim("{name}", min=1{end})`' for name, end in ends.items())
    operations = "1 operation stays" if count == 1 else f"{count} operations stay"
    return f"{operations} outside of delegates because {MAY_BE_ZERO}; if the size is never 0, write {lines}"


def line_on_finite(backend: str, operators: Collection[str]) -> str:
    """Return advice for a recipe whose backend took operators because `finite-only` is true by default."""
    if not operators:
        return ""
    named = ", ".join(f"`{operator}`" for operator in sorted(operators)[:NAMED])
    more = f" and {len(operators) - NAMED} more" if len(operators) > NAMED else ""
    return (
        f"`{backend}` computes {named}{more} as eager does for finite numbers only; "
        f"write `{FINITE_ONLY} = true` if the model meets neither NaN nor infinity, else `{FINITE_ONLY} = false`"
    )
