"""The lowering flow and `to_backend`: tag → plan → extract → preprocess → splice.

All methods of a model are lowered together; a single program is a model with one method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import overload

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from hatch_lower.cache.store import Store
from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.graph.canonical import structure_digest
from hatch_lower.exir.graph.state import constant_specs, shared_state
from hatch_lower.exir.graph.surgery import all_nodes, computes, copy_program
from hatch_lower.exir.graph.tensors import is_plain_tensor, storage_checksums, storage_key
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.extract import extract, localize_program
from hatch_lower.exir.lowering.leave_out import Places, mark_left_out, without_left_out
from hatch_lower.exir.lowering.partition import Partition, PartitionPlan, plan_partitions
from hatch_lower.exir.lowering.preprocess import PreprocessRequest, Response, preprocess_all
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.exir.lowering.splice import splice

_validation: ContextVar[bool] = ContextVar("hatch_lower_validation", default=True)


@dataclass(frozen=True, slots=True)
class MethodProgramsPartitionerSpec:
    """The methods of a model and the partitioner of each; a method without a partitioner stays unchanged."""

    method_to_edge_program: Mapping[str, ExportedProgram]
    method_to_partitioner: Mapping[str, Partitioner]


@dataclass(frozen=True, slots=True)
class DelegatedMethod:
    """One method after lowering."""

    program: ExportedProgram
    partitions: int = 0
    reused: int = 0  # partitions that needed no `preprocess` call
    delegated: int = 0  # operations that went into partitions
    reasons: Mapping[str, str] = field(default_factory=dict)  # by the name of the node that was not taken
    keys: Mapping[str, bool] = field(default_factory=dict)  # key of a result, to whether the result was cached before
    finite_only: frozenset[str] = frozenset()  # as in `PartitionResult`

    def then(self, later: DelegatedMethod, name: str = "") -> DelegatedMethod:
        reasons = dict(self.reasons)
        for node, reason in later.reasons.items():
            told = f"{name}: {reason}" if name else reason
            reasons[node] = f"{reasons[node]}; {told}" if node in reasons else told
        return DelegatedMethod(
            later.program,
            partitions=self.partitions + later.partitions,
            reused=self.reused + later.reused,
            delegated=self.delegated + later.delegated,
            reasons=reasons,
            keys=merged_keys((self.keys, later.keys)),
            finite_only=self.finite_only | later.finite_only,
        )


def merged_keys(keys: Iterable[Mapping[str, bool]]) -> dict[str, bool]:
    # equal partitions share a key: the second finds the first's new result, which was not cached before
    merged: dict[str, bool] = {}
    for several in keys:
        for key, from_cache in several.items():
            merged[key] = from_cache and merged.get(key, True)
    return merged


def lower_methods(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, Partitioner],
    *,
    store: Store | None = None,
    validate: bool = True,
    left_out: Mapping[str, Places] = {},
) -> dict[str, DelegatedMethod]:
    """Lower each method of a model with its partitioner; methods without a partitioner are returned unchanged."""
    # `left_out`: by method, the operations that no partition gets
    # a partitioner that changes its program, or whose tags form no partitions, is a `PartitionError`; a backend that is
    # unknown or answers wrongly is a `BackendError`, and its own exceptions pass through
    unknown = sorted(set(partitioners) - set(programs))
    if unknown:
        raise PartitionError(
            f"there is a partitioner for `{unknown[0]}`, which is no method",
            found=", ".join(f"`{name}`" for name in programs),
            hint="name a partitioner for existing methods only",
        )
    cut = cut_methods(programs, partitioners, validate and _validation.get(), left_out)
    tagged, plans, extracted, backends = cut.tagged, cut.plans, cut.extracted, cut.backends
    requests = [
        make_request(method, partition.spec, backends[partition.spec.backend_id], program)
        for method, partition, program in extracted
    ]
    responses = preprocess_all(requests, store)
    modules = {
        partition: make_module(program, request, response)
        for (_, partition, program), request, response in zip(extracted, requests, responses, strict=True)
    }
    lowered = {method: DelegatedMethod(program) for method, program in programs.items()}
    for method, plan in plans.items():
        own = [response for request, response in zip(requests, responses, strict=True) if request.method == method]
        lowered[method] = DelegatedMethod(
            splice(tagged[method].tagged_exported_program, plan, modules),
            partitions=len(own),
            reused=sum(response.reused for response in own),
            delegated=sum(computes(node) for partition in plan.all_partitions() for node in partition.nodes),
            reasons=tagged[method].reasons,
            keys=merged_keys({response.key: response.reused} for response in own),
            finite_only=tagged[method].finite_only,
        )
    return lowered


@dataclass(frozen=True, slots=True)
class Cut:
    """The partitions of a model's methods after a turn of partitioners."""

    tagged: Mapping[str, PartitionResult]
    plans: Mapping[str, PartitionPlan]
    extracted: Sequence[tuple[str, Partition, ExportedProgram]]  # each partition with its method, as a program
    backends: Mapping[str, type[BackendDetails]]


def cut_methods(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, Partitioner],
    validate: bool,
    left_out: Mapping[str, Places],
) -> Cut:
    weights = plain_weights(programs[method] for method in partitioners) if validate else {}
    before = storage_checksums(tensor for _, tensor in weights.values())
    tagged = {
        method: tag_program(programs[method], partitioner, validate, left_out.get(method, {}))
        for method, partitioner in partitioners.items()
    }
    refuse_weights_of_partitioner(weights, before)
    # a declared tag that no operation carries is ignored: its backend need not be installed
    used = (result.partition_tags[tag].backend_id for result in tagged.values() for tag in used_tags(result))
    backends = {name: find_backend(name) for name in dict.fromkeys(used)}
    # delegates that hold or copy state cannot share the state with other methods; delegates with bound constants can
    shared = shared_state(programs.values())
    plans = {
        method: plan_partitions(
            result.tagged_exported_program,
            result.partition_tags,
            lambda backend_id, constant: storage_key(constant) in shared and backends[backend_id].copies(constant),
        )
        for method, result in tagged.items()
    }
    extracted = [
        (method, partition, extract(tagged[method].tagged_exported_program, partition))
        for method, plan in plans.items()
        for partition in plan.all_partitions()
    ]
    return Cut(tagged, plans, extracted, backends)


def tag_program(
    program: ExportedProgram, partitioner: Partitioner, validate: bool, left_out: Mapping[int, str] = {}
) -> PartitionResult:
    copied = copy_program(program)
    mark_left_out(copied, left_out)
    with process_restored():
        result = partitioner(copied)
    name = type(partitioner).__name__
    if not isinstance(result, PartitionResult) or result.partition_tags is None:
        raise PartitionError(
            "the partitioner returned no tags",
            where=f"`{name}.partition`",
            found=repr(result),
            hint="return `PartitionResult(tagged_exported_program, partition_tags)`",
        )
    if validate and (change := first_change(result.tagged_exported_program, program)):
        raise PartitionError(
            "the partitioner changed the program",
            where=f"`{name}.partition`",
            found=change,
            hint="only write `node.meta['delegation_tag']`; change graphs in a pass before partitioning",
        )
    return without_left_out(result) if left_out else result


def first_change(tagged: ExportedProgram, program: ExportedProgram) -> str:
    if not has_structure_of(tagged, program):
        return "another graph than before: an operation, an argument, a literal or a signature differs"
    # the canonical form has no names, but lowering finds nodes by name
    names, names_before = ([node.name for node in each.graph.nodes] for each in (tagged, program))
    if tagged.graph_signature != program.graph_signature or names != names_before:
        return "other names in the graph or its signature than before"
    if tagged.module_call_graph != program.module_call_graph or tagged.range_constraints != program.range_constraints:
        return "another calling convention, or other ranges of sizes, than before"
    for before, after in ((program.state_dict, tagged.state_dict), (program.constants, tagged.constants)):
        for target in sorted(before.keys() | after.keys()):
            if before.get(target) is not after.get(target):
                return f"another tensor under the name `{target}` than before"
    return ""


def has_structure_of(tagged: ExportedProgram, program: ExportedProgram) -> bool:
    expected = structure_digest(program)
    try:
        return structure_digest(tagged) == expected
    except Exception:  # a graph that a partitioner has broken has no canonical form
        return False


def used_tags(result: PartitionResult) -> list[str]:
    nodes = all_nodes(result.tagged_exported_program.graph_module)
    tags = {node.meta.get(DELEGATION_TAG) for node in nodes if node.op != "placeholder"}
    return [tag for tag in result.partition_tags if tag in tags]


def plain_weights(programs: Iterable[ExportedProgram]) -> dict[int, tuple[str, torch.Tensor]]:
    held = [pair for program in programs for pair in (*program.state_dict.items(), *program.constants.items())]
    return {storage_key(tensor): (name, tensor) for name, tensor in held if is_plain_tensor(tensor)}


def refuse_weights_of_partitioner(weights: Mapping[int, tuple[str, torch.Tensor]], before: Sequence[int]) -> None:
    # the tensors are the model's own, not copies
    after = storage_checksums(tensor for _, tensor in weights.values())
    changed = [name for (name, _), old, new in zip(weights.values(), before, after, strict=True) if old != new]
    if changed:
        raise PartitionError(
            "a partitioner changed the model's weights",
            found=f"other contents of `{changed[0]}` than before",
            hint="only write `node.meta['delegation_tag']`",
        )


def make_request(
    method: str, spec: DelegationSpec, backend: type[BackendDetails], program: ExportedProgram
) -> PreprocessRequest:
    return PreprocessRequest(method, spec, backend, localize_program(program, weight_free=backend.weight_free), program)


def make_module(program: ExportedProgram, request: PreprocessRequest, response: Response) -> LoweredBackendModule:
    result, spec = response.result, request.spec
    # two methods may use the same name for different lifted constants
    names = tuple(
        f"{request.method}:{constant.target}" if constant.kind is InputKind.CONSTANT_TENSOR else str(constant.target)
        for constant in (constant_specs(program) if request.backend.weight_free else ())
    )
    module = LoweredBackendModule(
        program,
        spec.backend_id,
        result.processed_bytes,
        list(spec.compile_specs),
        result.data_store_output,
        result=result,
        constants=names,
    )
    debug = result.debug_handle_map
    # from the partition's local handles to the model's handles
    module.meta = {
        "debug_handle_map": None
        if debug is None
        else {key: tuple(request.local.handles[handle - 1] for handle in handles) for key, handles in debug.items()}
    }
    if result._delegate_info_meta is not None:
        module.meta["_delegate_info_meta"] = result._delegate_info_meta
    return module


def disable_validation() -> None:
    """Stop checking, in this context from now on, that partitioners leave programs unchanged."""
    _validation.set(False)


@contextmanager
def validation_disabled() -> Iterator[None]:
    """Stop checking, within the block, that partitioners leave programs unchanged."""
    token = _validation.set(False)
    try:
        yield
    finally:
        _validation.reset(token)


@overload
def to_backend(args: str, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> LoweredBackendModule: ...
@overload
def to_backend(args: ExportedProgram, edge_program: Partitioner, /) -> ExportedProgram: ...
@overload
def to_backend(args: MethodProgramsPartitionerSpec, /) -> dict[str, ExportedProgram]: ...
def to_backend(
    args: str | ExportedProgram | MethodProgramsPartitionerSpec,
    edge_program: ExportedProgram | Partitioner | None = None,
    compile_specs: list[CompileSpec] | None = None,
) -> LoweredBackendModule | ExportedProgram | dict[str, ExportedProgram]:
    """Lower a whole program for one backend, a program by a partitioner, or all methods of a model.

    Raises:
        TypeError: for any other arguments.
        PartitionError, BackendError: as `lower_methods`.
    """
    if isinstance(args, str) and isinstance(edge_program, ExportedProgram):
        return lower_whole(args, edge_program, list(compile_specs or []))
    if isinstance(args, ExportedProgram) and isinstance(edge_program, Partitioner):
        return lower_methods({"forward": args}, {"forward": edge_program})["forward"].program
    if isinstance(args, MethodProgramsPartitionerSpec) and edge_program is None:
        methods = lower_methods(args.method_to_edge_program, args.method_to_partitioner)
        return {name: lowered.program for name, lowered in methods.items()}
    given = ", ".join(type(value).__name__ for value in (args, edge_program, compile_specs) if value is not None)
    raise TypeError(
        f"to_backend takes (backend_id, ExportedProgram, compile_specs), (ExportedProgram, Partitioner) or "
        f"(MethodProgramsPartitionerSpec); it was given ({given})"
    )


def lower_whole(backend_id: str, program: ExportedProgram, compile_specs: list[CompileSpec]) -> LoweredBackendModule:
    request = make_request("forward", DelegationSpec(backend_id, compile_specs), find_backend(backend_id), program)
    return make_module(program, request, preprocess_all([request], None)[0])
