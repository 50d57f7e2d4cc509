"""Execution of a plan: methods compiled once and linked for each loaded instance, with its constants and delegates."""

from __future__ import annotations

import builtins
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from hatch_lower.errors import LowerError, ProgramError, nearest
from hatch_lower.format.arguments import Argument, constants_in
from hatch_lower.format.codec import installation_error
from hatch_lower.format.constants import Constant, DelegateEntry, holds_state
from hatch_lower.format.graph import arguments_in
from hatch_lower.format.plan import Plan, signature_text
from hatch_lower.format.values import DTYPES
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.arrays import LIBRARIES, Array, Arrays, find_arrays
from hatch_lower.runtime.delegates import Delegate, DelegateBlob, Place
from hatch_lower.runtime.mapped import data_layouts, data_places, map_data
from hatch_lower.runtime.names import CodeNames
from hatch_lower.runtime.writer import MethodWriter

if TYPE_CHECKING:
    from hatch_lower.runtime.exchange import Exchange
    from hatch_lower.runtime.timing import Timing


class MethodCode(Frozen):
    """A compiled method, not yet linked to constants and delegates."""

    source: str  # of a module with the function `make`, which returns the method
    code: CodeType  # `source`, compiled
    names: CodeNames
    signature: inspect.Signature  # the Python signature that callers see
    text: str  # the signature with dtypes and symbolic shapes


def compile_method(writer: MethodWriter) -> MethodCode:
    name, method = writer.name, writer.method
    source = "\n".join(writer.write()) + "\n"
    parameters = [
        inspect.Parameter(
            parameter.name,
            inspect.Parameter.KEYWORD_ONLY if parameter.kind == "keyword" else inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        for parameter in method.parameters
    ]
    try:
        code = compile(source, f"<hatch-lower method {name}>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        found = f"Python cannot compile the method: {type(error).__name__}: {error}"
        raise installation_error("a packaged program cannot be run", f"method `{name:.80}`", found) from error
    return MethodCode(source, code, writer.names, inspect.Signature(parameters), signature_text(name, method))


def link_method(
    code: MethodCode, name: str, constants: Mapping[str, object], runs: Sequence[Callable[..., Any]], lock: Any
) -> Callable[..., Any]:
    names = code.names
    # torch's C++ imports modules with the globals of the calling frame, which therefore need the built-in functions
    namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": "hatch_lower.program", **names.objects}
    namespace.update({identifier: constants[constant] for constant, identifier in names.constants.items()})
    namespace.update({identifier: runs[index] for index, identifier in names.delegates.items()})
    namespace[names.local("lock")] = lock
    exec(code.code, namespace)
    make = namespace.pop(names.local("make"))  # `pop`: otherwise globals and function would form a reference cycle
    function: Any = make(make(None))  # the argument is the method for calls under autocast
    function.__name__ = function.__qualname__ = name
    function.__doc__ = code.text
    function.__signature__ = code.signature
    linked: Callable[..., object] = function
    return linked


class Runnable(Protocol):
    """The methods behind a loaded model: a plan's `Executor`, or the `EagerModel` of an editable install."""

    @property
    def methods(self) -> Mapping[str, Callable[..., Any]]: ...

    @property
    def arrays(self) -> Arrays:
        """The library and the device of the arrays that methods take and return."""

    def clone(self) -> Runnable:
        """Return another instance with a copy of the current state."""

    def reset(self) -> None:
        """Reset the state to the packaged contents."""

    def has_changed(self) -> bool:
        """Return whether the state may differ from the packaged contents."""

    def signature(self, name: str) -> str:
        """Return a method's signature in words."""


class LoadedProgram(Frozen):
    """Data shared by all instances of a loaded program."""

    plan: Plan
    codes: Mapping[str, MethodCode]
    arrays: Arrays
    spans: tuple[Array, ...]  # the packaged contents of each storage, on the CPU
    placed: Mapping[int, Array]  # the contents of storages that no method changes, on the program's device
    kinds: tuple[type[Delegate], ...]  # of each delegate
    exchanges: tuple[Exchange | None, ...]  # of each delegate; `None` if program and delegate use the same library
    blobs: tuple[DelegateBlob, ...]  # of each delegate
    mutable: frozenset[int]  # indices of the storages that methods change
    timing: Timing | None = None  # `None` if calls are not timed

    def is_stateful(self, entry: DelegateEntry) -> bool:
        # a delegate with mutable constants or internal state belongs to a single instance
        bound = {self.plan.constants[name].storage for name in entry.constants}
        return bool(bound & self.mutable) or holds_state(entry)


class Executor:
    """An instance of a program, with its own state: `execute_plan` makes the first instance, `clone` further ones."""

    # several threads may call at the same time; if the program has state, a lock serializes the calls

    def __init__(self, program: LoadedProgram, state: Mapping[int, Array], parent: Executor | None = None) -> None:
        self._program = program
        self._state = state
        self._lock = Lock()
        with program.arrays.storing():
            self._constants = self._view_constants(parent)
            self._delegates = self._load_delegates(parent)
            self._methods = self._link()

    @property
    def methods(self) -> Mapping[str, Callable[..., Any]]:
        return MappingProxyType(self._methods)

    @property
    def arrays(self) -> Arrays:
        return self._program.arrays

    @property
    def plan(self) -> Plan:
        return self._program.plan

    def clone(self) -> Executor:
        """Return an instance with a copy of the current state; internal state of delegates is as packaged."""
        arrays = self._program.arrays
        with self._lock, arrays.storing(), placing(arrays.device):
            state = {index: arrays.copy(content) for index, content in self._state.items()}
        return Executor(self._program, state, self)

    def reset(self) -> None:
        arrays = self._program.arrays
        with self._lock, arrays.storing():
            for index, content in self._state.items():
                arrays.assign(content, self._program.spans[index])
            for index, entry in enumerate(self._program.plan.delegates):
                if holds_state(entry):
                    self._delegates[index] = self._load_delegate(index)

    def has_changed(self) -> bool:
        """Return whether the state may differ from the packaged state; internal state of a delegate always may."""
        if any(map(holds_state, self._program.plan.delegates)):
            return True
        with self._lock:
            pairs = [(content, self._program.spans[index]) for index, content in self._state.items()]
            return not all(self._program.arrays.is_same(one, other) for one, other in pairs)

    def signature(self, name: str) -> str:
        return self._program.codes[name].text

    def source(self, name: str) -> str:
        return self._program.codes[name].source

    def _view_constants(self, parent: Executor | None) -> dict[str, Array]:
        # unchangeable constants are shared with the parent, others are views of this instance's state
        program = self._program
        spans = {**dict(enumerate(program.spans)), **program.placed, **self._state}
        return {
            name: parent._constants[name]
            if parent is not None and constant.storage not in program.mutable
            else program.arrays.view(constant, spans)
            for name, constant in program.plan.constants.items()
        }

    def _load_delegates(self, parent: Executor | None) -> list[Delegate]:
        return [
            parent._delegates[index]
            if parent is not None and not self._program.is_stateful(entry)
            else self._load_delegate(index)
            for index, entry in enumerate(self._program.plan.delegates)
        ]

    def _load_delegate(self, index: int) -> Delegate:
        program = self._program
        entry = program.plan.delegates[index]
        try:
            constants = [self._constants[name] for name in entry.constants]
            if program.kinds[index].constants_on == "host" and program.arrays.device != "cpu":
                constants = self._host_constants(index)
            if exchange := program.exchanges[index]:
                constants = [exchange.given(constant) for constant in constants]
            kind, timing = program.kinds[index], program.timing
            load = kind.load if timing is None else partial(timing.load, index, kind)
            loaded: object = load(program.blobs[index], constants)
        except LowerError:
            raise
        except Exception as error:
            raise ProgramError(
                f"the delegate `{entry.backend}` cannot load its program",
                where=entry.file,
                found=f"{type(error).__name__}: {error}",
                hint="install the versions that the program requires, or build the wheel again",
            ) from error
        if not isinstance(loaded, Delegate):
            what = f"the run half of the backend `{entry.backend}` returns no `Delegate`"
            raise fault_of_backend(entry, what, f"`{type(loaded).__name__}`")
        return loaded

    def _host_constants(self, index: int) -> list[Array]:
        program = self._program
        entry = program.plan.delegates[index]
        if changed := [name for name in entry.constants if program.plan.constants[name].storage in program.mutable]:
            what = f"the backend `{entry.backend}`, which copies constants to the GPU itself, is given one that changes"
            raise fault_of_backend(entry, what, f"`{changed[0]}`")
        spans = dict(enumerate(program.spans))
        host = program.arrays.on_device("cpu", "cpu")
        constants = [host.view(program.plan.constants[name], spans) for name in entry.constants]
        exchange = make_exchange(host, program.kinds[index], entry)
        return constants if exchange is None else list(map(exchange.given, constants))

    def _run_of(self, index: int) -> Callable[..., Any]:
        # if `reset` may replace the delegate, each call looks it up; the lambda must not hold `self`, which holds the
        # methods
        delegates = self._delegates
        if holds_state(self._program.plan.delegates[index]):
            return lambda inputs: delegates[index].run(inputs)
        return delegates[index].run

    def _link(self) -> dict[str, Callable[..., Any]]:
        runs = [self._run_of(index) for index in range(len(self._delegates))]
        return {
            name: link_method(code, name, self._constants, runs, self._lock)
            for name, code in self._program.codes.items()
        }


def execute_plan(
    plan: Plan,
    spans: Sequence[Array],
    delegates: Mapping[str, type[Delegate]],
    folder: Path,
    *,
    places: Sequence[Place] = (),
    checks_outputs: bool = False,
    arrays: Arrays | None = None,
    timing: Timing | None = None,
) -> Executor:
    """Return an executor of a plan over the packaged contents of its storages; mutable storages are cloned."""
    # `spans`: one-dimensional arrays of the library `arrays` on the CPU, by default torch's; `places`: of the spans, if
    # in a file; `checks_outputs`: compare dtypes, shapes and strides of delegates' outputs with the plan, not only the
    # number of outputs
    arrays = find_arrays("torch") if arrays is None else arrays
    mutable = frozenset(constant.storage for constant in plan.constants.values() if constant.mutable)
    kinds = []
    for entry in plan.delegates:
        if entry.backend not in delegates:
            raise ProgramError(
                f"the program needs the delegate `{entry.backend}`, which is not installed",
                where=entry.file,
                found=nearest(entry.backend, delegates),
                hint="install the package that provides the delegate",
            )
        kinds.append(delegates[entry.backend])
    is_locked = bool(mutable) or any(map(holds_state, plan.delegates))
    exchanges = tuple(exchange_of(arrays, kind, entry) for kind, entry in zip(kinds, plan.delegates, strict=True))
    codes = {
        name: compile_method(
            MethodWriter(
                plan,
                name,
                arrays,
                exchanges,
                [kind.without_elements for kind in kinds],
                is_locked=is_locked,
                checks_outputs=checks_outputs,
                clock=None if timing is None else timing.clock(name),
            )
        )
        for name in plan.methods
    }
    blobs = make_blobs(plan, folder, places, mutable, arrays)
    with arrays.storing(), placing(arrays.device):
        needed = storages_to_place(plan, kinds, arrays.device) - mutable
        placed = {index: arrays.placed(spans[index]) for index in sorted(needed)}
        state = {index: arrays.fresh(spans[index]) for index in sorted(mutable)}
    program = LoadedProgram(plan, codes, arrays, tuple(spans), placed, tuple(kinds), exchanges, blobs, mutable, timing)
    return Executor(program, state)


def make_blobs(
    plan: Plan, folder: Path, places: Sequence[Place], mutable: frozenset[int], arrays: Arrays
) -> tuple[DelegateBlob, ...]:
    data_at = data_places(plan, folder, places)
    data, layouts = map_data(data_at), MappingProxyType(data_layouts(plan))
    return tuple(
        DelegateBlob(
            folder / entry.file,
            MappingProxyType(dict(entry.info)),
            data,
            layouts,
            MappingProxyType(data_at),
            tuple(find_constant_place(plan.constants[name], mutable, places) for name in entry.constants),
            arrays.device,
            arrays.computes_on,
        )
        for entry in plan.delegates
    )


def storages_to_place(plan: Plan, kinds: Sequence[type[Delegate]], device: str) -> frozenset[int]:
    """Return the storages that instructions and delegates read on a GPU; no storage for a program on the CPU."""
    if device == "cpu":
        return frozenset()
    arguments: list[Argument] = []
    for method in plan.methods.values():
        arguments += arguments_in(method.graph)
        arguments += [source for _, source in (*method.mutations, *method.input_mutations)]
    names = set(constants_in(arguments))
    for entry, kind in zip(plan.delegates, kinds, strict=True):
        names |= set(entry.constants) if kind.constants_on == "device" else set()
    return frozenset(plan.constants[name].storage for name in names)


@contextmanager
def placing(device: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of torch: no memory, or a fault of the GPU
        if device == "cpu":
            raise
        raise ProgramError(
            "the weights cannot be placed on the GPU",
            where=device,
            found=f"{type(error).__name__}: {error}",
            hint='free memory of the GPU, load on another GPU, or load with `device="cpu"`',
        ) from error


def exchange_of(arrays: Arrays, kind: type[Delegate], entry: DelegateEntry) -> Exchange | None:
    place = arrays.device.partition(":")[0]
    if place not in kind.devices:
        what = f"the backend `{entry.backend}` does not compute on the device of the recipe"
        raise fault_of_backend(entry, what, f"arrays on {arrays.device}; its run half takes {', '.join(kind.devices)}")
    return make_exchange(arrays, kind, entry) if place == "cpu" else None


def make_exchange(arrays: Arrays, kind: type[Delegate], entry: DelegateEntry) -> Exchange | None:
    if kind.arrays == arrays.name:
        return None
    if kind.arrays not in LIBRARIES:
        what = f"the backend `{entry.backend}` computes with arrays of an unknown library"
        raise fault_of_backend(entry, what, f"`arrays` of its run half is {kind.arrays!r:.80}")
    from hatch_lower.runtime.exchange import ToNumpy, ToTorch

    return ToNumpy() if kind.arrays == "numpy" else ToTorch()


def fault_of_backend(entry: DelegateEntry, what: str, found: str) -> ProgramError:
    hint = "this is a fault of the backend: report it to its authors"
    return ProgramError(what, where=entry.file, found=found, hint=hint)


def find_constant_place(constant: Constant, mutable: frozenset[int], places: Sequence[Place]) -> Place | None:
    shape, stride = constant.shape, constant.stride
    steps = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    is_dense = all(size == 1 or step == own for size, step, own in zip(shape, steps, stride, strict=True))
    if not places or constant.storage in mutable or not is_dense:
        return None
    size = DTYPES[constant.dtype].size
    path, offset, _ = places[constant.storage]
    if offset % size:  # unaligned in a file of weights outside: the constant is an aligned copy in memory
        return None
    return Place(path, offset + constant.offset * size, math.prod(shape) * size)
