"""Does each constant and each option change a backend's result for a program, or the key of the result?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.export import ExportedProgram

from hatch_lower.backends.testing.bench import Bench, export, probe, sample, warnings_ignored
from hatch_lower.backends.testing.case import Case, Fault, NotClaimedError
from hatch_lower.backends.testing.comparison import first_difference
from hatch_lower.backends.testing.programs.state import EVERY_CONSTANT
from hatch_lower.errors import BackendError
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.lower import Wishes
from hatch_lower.exir.lowering.preprocess import PreprocessRequest

UNKNOWN = "hatch_lower_no_such_option"


def check_constants(bench: Bench, cases: Sequence[Case]) -> str:
    """Change one constant of a program after the other; each time the lowered program must compute with the change."""
    case = probe(bench, cases, EVERY_CONSTANT, *(other.name for other in cases if other.name.startswith("constants/")))
    targets = [str(spec.target) for spec in constant_specs(bench.edge(case))]
    if not targets:
        raise NotClaimedError("the backend takes no program with constants")
    program = export(case)  # not shared with other checks, as its tensors are changed
    with warnings_ignored():
        wishes = Wishes.of(program, [bench.partitioner()])
        edge = to_edge(wishes.program, keep=wishes.whole, keep_nodes=wishes.some)
    known = dict(bench.results(bench.requests(edge)))
    with changed(program, targets):
        keyed = refuse_other_results(bench, known, edge, "the change of all constants") != known.keys()
    for target in targets:
        with changed(program, [target]):
            if keyed:  # else no constant is in a key, not even when all change
                refuse_other_results(bench, known, edge, f"the constant `{target}`")
            if bench.subject.computes:
                compare_changed(bench, case, program, edge, target)
    return f"{len(targets)} constants of `{case.name}`"


def refuse_other_results(bench: Bench, known: Mapping[str, str], edge: ExportedProgram, what: str) -> set[str]:
    """Lower a program's partitions with known keys again, and compare results; return the keys of all partitions."""
    keyed = dict(bench.keyed(bench.requests(edge)))
    again = bench.results([request for key, request in keyed.items() if key in known])
    if any(known[key] != digest for key, digest in again):
        raise Fault(f"{what} changes the result and not the key: the cache would give the wrong result")
    return set(keyed)


def compare_changed(bench: Bench, case: Case, program: ExportedProgram, edge: ExportedProgram, target: str) -> None:
    arguments = case.arguments()[0]
    with warnings_ignored(), torch.no_grad():
        expected = program.module()(*arguments)
    result = bench.load(bench.save(bench.lower(edge)))(*arguments)
    if difference := first_difference(result, expected, bench.subject.tolerance):
        raise Fault(f"after the constant `{target}` changed, {difference}")


@contextmanager
def changed(program: ExportedProgram, targets: Sequence[str]) -> Iterator[None]:
    """Change constants of an exported program in place, and change them back after the block."""
    tensors = [constant_of(program, spec).detach() for spec in constant_specs(program) if spec.target in targets]
    before = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        change(tensor)
    try:
        yield
    finally:
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)


def change(tensor: Tensor) -> None:
    if tensor.dtype is torch.bool:
        tensor.logical_not_()
    else:
        tensor.add_(1)


def check_options(bench: Bench, cases: Sequence[Case]) -> str:
    variations = bench.subject.variations
    if not variations:
        raise NotClaimedError("no `variations` were given")
    chosen = sample(bench, cases)
    own = dict(bench.subject.options)
    known = requests_with(bench, chosen, own).keys()
    for name, values in variations.items():
        for value in values:
            what = f"the option `{name} = {value!r}`"
            other = {**own, name: value}
            keys = requests_with(bench, chosen, other).keys()
            # a difference in the key is enough, without compilation
            if results_with(bench, chosen, own, keys & known) != results_with(bench, chosen, other, keys & known):
                raise Fault(f"{what} changes the result and not the key: the cache would give the wrong result")
            if keys == known:
                raise Fault(f"{what} changes neither a result nor a key")
    return ", ".join(f"`{name}`" for name in variations)


def requests_with(bench: Bench, cases: Sequence[Case], options: Mapping[str, object]) -> dict[str, PreprocessRequest]:
    partitioner = bench.partitioner(options)
    with warnings_ignored():
        programs = [bench.exports.edge(case, partitioner) for case in cases]
    return {key: request for program in programs for key, request in bench.keyed(bench.requests(program, partitioner))}


def results_with(bench: Bench, cases: Sequence[Case], options: Mapping[str, object], keys: Set[str]) -> dict[str, str]:
    if not keys:
        return {}
    requests = requests_with(bench, cases, options)
    return dict(bench.results([requests[key] for key in sorted(keys)]))


def check_unknown_option(bench: Bench, cases: Sequence[Case]) -> str:
    try:
        bench.partitioner({**bench.subject.options, UNKNOWN: 1})
    except BackendError:
        return ""
    except Exception as error:
        raise Fault(f"an unknown option is a `{type(error).__name__}` and not a `BackendError`") from error
    raise Fault("an unknown option is not refused: a misspelt option would have no effect")
