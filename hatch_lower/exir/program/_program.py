"""The methods of a model, from exported to lowered programs, as one object, under ExecuTorch's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.export import ExportedProgram

from hatch_lower.errors import EdgeError, nearest
from hatch_lower.exir._program_utils import _get_updated_graph_signature as _get_updated_graph_signature
from hatch_lower.exir._serialize._named_data_store import NamedDataStore
from hatch_lower.exir.backend.backend_api import DelegatedMethod, lower_methods
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.capture._config import EdgeCompileConfig, ExecutorchBackendConfig
from hatch_lower.exir.dialects.edge.verify import EdgeViolationError, verify_edge
from hatch_lower.exir.lowered_backend_module import lowered_modules
from hatch_lower.exir.lowering.convert import to_edge as convert_program
from hatch_lower.exir.lowering.lower import Turn, lower_exported, programs_of
from hatch_lower.exir.pass_base import AnyPass, transform_program
from hatch_lower.runtime.torch_private.operators import OpOverload
from hatch_lower.runtime.torch_private.programs import Verifier, lift_constants

Programs = ExportedProgram | Mapping[str, ExportedProgram]
Passes = Sequence[AnyPass] | Mapping[str, Sequence[AnyPass]] | AnyPass
Partitioners = Partitioner | Sequence[Partitioner] | Mapping[str, Sequence[Partitioner]]


class MethodNameError(EdgeError, KeyError):
    """A model has no method of that name."""


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    programs: Mapping[str, ExportedProgram]
    constant_methods: Mapping[str, object] = field(default_factory=dict)
    # by method and node: the reason why no backend took the node
    reasons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def methods(self) -> set[str]:
        return set(self.programs)

    @property
    def config_methods(self) -> set[str]:
        return set(self.constant_methods)

    def exported_program(self, method_name: str = "forward") -> ExportedProgram:
        return program_named(self.programs, method_name)


class EdgeProgramManager:
    """The edge programs of a model's methods; each step returns a new manager.

    Args:
        edge_programs: the program of `forward`, or method name to program.
        constant_methods: method name to the value that it returns.
        core_aten_ops_exception_list: operators that need not be core ATen; `preserve_ops` adds more.
        reasons: method name to node name to the reasons why no backend took the node so far.

    Raises:
        EdgeViolationError: a `SpecViolationError`, if a program breaks a rule of the dialect.
    """

    def __init__(
        self,
        edge_programs: Programs,
        constant_methods: Mapping[str, object] | None = None,
        compile_config: EdgeCompileConfig | None = None,
        core_aten_ops_exception_list: Iterable[OpOverload] | None = None,
        preserve_ops: Iterable[OpOverload] | None = None,
        reasons: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.compile_config = EdgeCompileConfig() if compile_config is None else compile_config
        self._edge_programs = by_method(edge_programs)
        self._config_methods = dict(constant_methods or {})
        self._kept = frozenset((*(core_aten_ops_exception_list or ()), *(preserve_ops or ())))
        self._reasons = dict(reasons or {})
        if self.compile_config._check_ir_validity:
            self.verify(self.compile_config)

    @property
    def methods(self) -> set[str]:
        return set(self._edge_programs)

    @property
    def config_methods(self) -> set[str]:
        return set(self._config_methods)

    @property
    def _named_data_store(self) -> NamedDataStore:
        store = NamedDataStore()
        for program in self._edge_programs.values():
            for module in lowered_modules(program):  # partitions are lowered separately: each has its own store
                if module.named_data_store_output is not None:
                    store.merge_named_data_store(module.named_data_store_output)
        return store

    def exported_program(self, method_name: str = "forward") -> ExportedProgram:
        """Return a method's program; raise a `MethodNameError`, a `KeyError`, for an unknown method."""
        return program_named(self._edge_programs, method_name)

    def transform(self, passes: Passes, compile_config: EdgeCompileConfig | None = None) -> EdgeProgramManager:
        """Run passes over all methods, or over the named methods: a list, a list for each, or a `PassManager`."""
        chosen = per_method(passes, self._edge_programs, "passes")
        programs = {
            name: transform_program(program, chosen[name]) if chosen.get(name) else program
            for name, program in self._edge_programs.items()
        }
        config = self.compile_config if compile_config is None else compile_config
        return EdgeProgramManager(programs, self._config_methods, config, self._kept, reasons=self._reasons)

    def to_backend(self, partitioner: Partitioner | Mapping[str, Partitioner]) -> EdgeProgramManager:
        """Lower all methods by one partitioner, or the named methods each by its own."""
        if isinstance(partitioner, Partitioner):
            partitioner = dict.fromkeys(self._edge_programs, partitioner)
        lowered = {
            name: DelegatedMethod(self._edge_programs[name], reasons=self._reasons.get(name, {})).then(result)
            for name, result in lower_methods(self._edge_programs, partitioner).items()
        }
        # lowering adds delegate calls only, and the rest has been checked
        config = replace(self.compile_config, _check_ir_validity=False)
        reasons = {name: result.reasons for name, result in lowered.items()}
        return EdgeProgramManager(programs_of(lowered), self._config_methods, config, self._kept, reasons=reasons)

    def to_executorch(self, config: ExecutorchBackendConfig | None = None) -> LoweredProgram:
        """Return the program to package; `hatch_lower.pipeline.emit.emit` writes its files."""
        return LoweredProgram(dict(self._edge_programs), dict(self._config_methods), dict(self._reasons))

    def verify(self, config: EdgeCompileConfig) -> None:
        for name, program in self._edge_programs.items():
            verify_edge_method(name, program, config.exempt() | self._kept)


def to_edge(
    programs: Programs,
    constant_methods: Mapping[str, object] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
) -> EdgeProgramManager:
    """Convert exported programs to the edge dialect.

    Args:
        programs: the program of `forward`, or method name to program, from `torch.export.export`.
        constant_methods: method name to the value that it returns.

    Raises:
        EdgeError: if a program cannot be converted, or with `generate_etrecord`.
        EdgeViolationError: a `SpecViolationError`, if a program breaks a rule of the dialect.
    """
    refuse_etrecord(generate_etrecord)
    config = EdgeCompileConfig() if compile_config is None else compile_config
    edge = {
        name: convert_program(program, keep=list(config.preserve_ops)) for name, program in by_method(programs).items()
    }
    return EdgeProgramManager(edge, constant_methods, config)


def to_edge_transform_and_lower(
    programs: Programs,
    transform_passes: Passes | None = None,
    partitioner: Partitioners | None = None,
    constant_methods: Mapping[str, object] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
) -> EdgeProgramManager:
    """Convert exported programs to the edge dialect, run passes, and lower them by several partitioners in turn.

    An operation that any partitioner wants whole (`ops_to_not_decompose`) stays whole for all partitioners, in any
    order. Passes and partitioners are for all methods, or for the named methods; other arguments are as in `to_edge`.

    Raises:
        NotDelegatedError: a `RuntimeError`, if an operation was kept whole for a backend but not delegated.
        EdgeError, PartitionError, BackendError: as the single steps.
    """
    refuse_etrecord(generate_etrecord)
    config = EdgeCompileConfig() if compile_config is None else compile_config
    exported = by_method(programs)
    chosen = per_method(partitioner, exported, "partitioners")
    turns = [
        Turn({name: several[number] for name, several in chosen.items() if number < len(several)})
        for number in range(max(map(len, chosen.values()), default=0))
    ]
    lowered = lower_exported(
        exported,
        turns,
        preserve=config.preserve_ops,
        passes=per_method(transform_passes, exported, "passes"),
        needs_delegates=True,
    )
    reasons = {name: result.reasons for name, result in lowered.methods.items()}
    return EdgeProgramManager(programs_of(lowered.methods), constant_methods, config, lowered.kept, reasons=reasons)


def _transform(
    self: ExportedProgram, *passes: AnyPass, override_verifiers: Sequence[type[Verifier]] | None = None
) -> ExportedProgram:
    # a verifier of the caller's is for a result that is no edge program
    return transform_program(self, passes, verifier=override_verifiers[0] if override_verifiers else None)


def lift_constant_tensor_pass(ep: ExportedProgram) -> ExportedProgram:
    """Make inputs of the tensors that a graph holds as attributes, in place; return the program."""
    for node in ep.graph.find_nodes(op="get_attr"):
        node.meta.setdefault("nn_module_stack", {})  # torch's pass names inputs after modules; some nodes have none
    lift_constants(ep)
    ep.graph_module.recompile()
    return ep


def by_method(programs: Programs) -> dict[str, ExportedProgram]:
    return {"forward": programs} if isinstance(programs, ExportedProgram) else dict(programs)


def program_named(programs: Mapping[str, ExportedProgram], name: str) -> ExportedProgram:
    if name not in programs:
        raise MethodNameError(f"there is no method `{name}`", found=nearest(name, programs), hint="correct the name")
    return programs[name]


def per_method(given: Any, programs: Mapping[str, ExportedProgram], kind: str) -> dict[str, list[Any]]:
    """Return method name to a list of passes or partitioners; `given` is for all methods, or by method."""
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(programs))
        if unknown:
            raise MethodNameError(
                f"there are {kind} for `{unknown[0]}`, which is no method",
                found=nearest(unknown[0], programs),
                hint=f"name {kind} for existing methods only",
            )
        return {name: list(several) if isinstance(several, Sequence) else [several] for name, several in given.items()}
    listed = [] if given is None else list(given) if isinstance(given, Sequence) else [given]
    return {name: list(listed) for name in programs}


def verify_edge_method(name: str, program: ExportedProgram, exempt: frozenset[OpOverload]) -> None:
    try:
        verify_edge(program, exempt=exempt)
    except EdgeViolationError as error:  # the error knows the node and not the method
        where = f"method `{name}`, {error.where}"
        raise EdgeViolationError(error.what, where=where, found=error.found, hint=error.hint) from error


def refuse_etrecord(wanted: bool) -> None:
    if wanted:
        raise EdgeError(
            "ETRecords are not supported",
            found="generate_etrecord=True",
            hint="use the packaged program's debug map, which has the source lines of every delegate and operation",
        )
