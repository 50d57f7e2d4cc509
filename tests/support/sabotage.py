"""Backends that get one thing wrong each, for tests of the kit; but for that they are `reference`."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.export import ExportedProgram

from hatch_lower.backends.reference.claim import claim, is_operation, refuse_options
from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.errors import BackendError, InputError
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.graph.canonical import structure_digest
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

Wrong = Callable[[ExportedProgram], None]


class Claiming(Partitioner):
    """Tags as `reference` does, for another backend, and may do something wrong besides."""

    def __init__(self, backend_id: str, wrong: Wrong = lambda program: None) -> None:
        super().__init__()
        self.backend_id, self.wrong = backend_id, wrong

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        result = claim(exported_program, DelegationSpec(self.backend_id, []), is_operation, "no operation")
        self.wrong(exported_program)
        return result


class ReferenceLike(BackendDetails):
    """Nothing is wrong with it. The others do not derive from it, as no backend derives from another."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return ReferenceBackend.preprocess(edge_program, compile_specs)

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        refuse_options(cls.__name__, options)
        return Claiming(cls.__name__)


class WrongNumberDelegate(ReferenceDelegate):
    """Computes something else in half precision."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        return [
            each + 1 if isinstance(each, Tensor) and each.dtype is torch.float16 else each
            for each in super().run(inputs)
        ]


class EngineMemoryDelegate(ReferenceDelegate):
    """Returns memory of its own, one for each thread, into which the next call writes."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        if not hasattr(self, "memory"):
            self.memory = threading.local()
        returned: list[Any] = []
        for index, each in enumerate(super().run(inputs)):
            if not isinstance(each, Tensor):
                returned.append(each)
                continue
            place = f"{index} {tuple(each.shape)}"
            if not hasattr(self.memory, place):
                setattr(self.memory, place, torch.empty_like(each))
            returned.append(getattr(self.memory, place).copy_(each))
        return returned


class AnyInputDelegate(ReferenceDelegate):
    """Makes something of any input."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        try:
            return super().run(inputs)
        except InputError:
            return [torch.zeros(1)]


class OneCallDelegate(ReferenceDelegate):
    """Keeps the inputs of a call where another call puts its own."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        self.inputs = inputs
        time.sleep(0.002)
        return super().run(self.inputs)


class LastLoadedDelegate(ReferenceDelegate):
    """Every instance of a blob runs with the state of the one that was loaded last."""

    last: ClassVar[dict[str, Delegate]] = {}

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> LastLoadedDelegate:
        made = super().load(blob, constants)
        made.name = blob.path.name
        cls.last[made.name] = made
        return made

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        return ReferenceDelegate.run(self.last[self.name], inputs)


class SharedStateDelegate(ReferenceDelegate):
    """Loads a blob once; whoever loads it later has the same state."""

    made: ClassVar[dict[str, ReferenceDelegate]] = {}

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> ReferenceDelegate:
        return cls.made.setdefault(blob.path.name, ReferenceDelegate.load(blob, constants))


class TiredDelegate(ReferenceDelegate):
    """Computes something else from its 40th call on."""

    calls = 0

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        self.calls += 1
        return [each if self.calls < 40 else each + 1 for each in super().run(inputs)]


class LeakingDelegate(ReferenceDelegate):
    """Keeps what it returned."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        self.__dict__.setdefault("kept", []).append(super().run(inputs))
        return self.__dict__["kept"][-1]


class OpeningDelegate(ReferenceDelegate):
    """Opens its blob in each call."""

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> ReferenceDelegate:
        made = super().load(blob, constants)
        made.path, made.opened = blob.path, []
        return made

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        self.opened.append(os.open(self.path, os.O_RDONLY))
        return super().run(inputs)

    def __del__(self) -> None:
        for each in self.opened:
            os.close(each)


class TurnedDelegate(ReferenceDelegate):
    """Returns matrices in the order of Fortran."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        return [each.T.contiguous().T if each.dim() == 2 else each for each in super().run(inputs)]


class OneMoreDelegate(ReferenceDelegate):
    """Returns an output too many."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        outputs = super().run(inputs)
        return [*outputs, outputs[0]]


class ListeningDelegate(ReferenceDelegate):
    """Computes what a variable says."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        return [each + int(os.environ.get("HATCH_LOWER_ROGUE", "0")) for each in super().run(inputs)]


class ConnectingDelegate(ReferenceDelegate):
    """Tells somebody that it was loaded."""

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> ReferenceDelegate:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
            made.connect(("127.0.0.1", 9))
        return super().load(blob, constants)


class HomelyDelegate(ReferenceDelegate):
    """Looks for its settings in the home folder."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        with suppress(OSError):
            Path("~/.rogue.json").expanduser().read_text()
        return super().run(inputs)


class Listening(BackendDetails):
    """Puts a variable into its result."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        result = ReferenceBackend.preprocess(edge_program, compile_specs)
        return replace(result, info={**result.info, "level": os.environ.get("HATCH_LOWER_ROGUE", "0")})

    partitioner = ReferenceLike.__dict__["partitioner"]


class Placed(BackendDetails):
    """Puts the home folder into its result."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        result = ReferenceBackend.preprocess(edge_program, compile_specs)
        return replace(result, info={**result.info, "where": str(Path.home())})

    partitioner = ReferenceLike.__dict__["partitioner"]


class Counting(BackendDetails):
    """Puts into its result how many there were before."""

    made: ClassVar[int] = 0

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        cls.made += 1
        result = ReferenceBackend.preprocess(edge_program, compile_specs)
        return replace(result, info={**result.info, "made": cls.made})

    partitioner = ReferenceLike.__dict__["partitioner"]


class SometimesMapped(BackendDetails):
    """Gives a debug map for its larger partitions only."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        result = ReferenceBackend.preprocess(edge_program, compile_specs)
        assert result.debug_handle_map is not None
        return result if len(result.debug_handle_map) > 5 else replace(result, debug_handle_map=None)

    partitioner = ReferenceLike.__dict__["partitioner"]


class HashedBytes(BackendDetails):
    """Puts a number into its result that each process chooses anew."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        result = ReferenceBackend.preprocess(edge_program, compile_specs)
        return replace(result, info={**result.info, "made": hash("anything")})

    partitioner = ReferenceLike.__dict__["partitioner"]


class DroppedHandle(BackendDetails):
    """Forgets what its last instruction computes."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        result = ReferenceBackend.preprocess(edge_program, compile_specs)
        assert result.debug_handle_map is not None
        return replace(result, debug_handle_map=dict(list(result.debug_handle_map.items())[:-1]))

    partitioner = ReferenceLike.__dict__["partitioner"]


class Levelled(BackendDetails):
    """Has an option that shapes the result and is no compile spec."""

    level: ClassVar[int] = 0

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        result = ReferenceBackend.preprocess(edge_program, compile_specs)
        return replace(result, info={**result.info, "level": cls.level})

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        refuse_all_but(options, "level")
        cls.level = options.get("level", 0)
        return Claiming(cls.__name__)


class Idle(BackendDetails):
    """Has an option that has no effect, and takes unknown ones."""

    preprocess = ReferenceLike.__dict__["preprocess"]

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        return Claiming(cls.__name__)


def refuse_all_but(options: Mapping[str, Any], known: str) -> None:
    if set(options) - {known}:
        raise BackendError("unknown option")


class Quadratic(BackendDetails):
    """Looks at all nodes for each node."""

    preprocess = ReferenceLike.__dict__["preprocess"]

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        refuse_options(cls.__name__, options)

        def look(program: ExportedProgram) -> None:
            nodes = list(program.graph.nodes)
            assert all(sum(each is node for each in nodes) == 1 for node in nodes)

        return Claiming(cls.__name__, look)


class Writing(BackendDetails):
    """Leaves notes in the program."""

    preprocess = ReferenceLike.__dict__["preprocess"]

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        refuse_options(cls.__name__, options)

        def write(program: ExportedProgram) -> None:
            for node in program.graph.nodes:
                node.meta["seen"] = True

        return Claiming(cls.__name__, write)


class Freezing(BackendDetails):
    """Takes the buffers that a program changes, and does not keep what they become."""

    preprocess = ReferenceLike.__dict__["preprocess"]

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        refuse_options(cls.__name__, options)

        def take_state(program: ExportedProgram) -> None:
            names = program.graph_signature.inputs_to_buffers
            for node in program.graph.nodes:
                tags = [user.meta["delegation_tag"] for user in node.users if "delegation_tag" in user.meta]
                if node.name in names and tags:
                    node.meta["delegation_tag"] = tags[0]

        return Claiming(cls.__name__, take_state)


class FreezingDelegate(Delegate):
    def __init__(self, blob: DelegateBlob) -> None:
        self.blob = blob

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> FreezingDelegate:
        return cls(blob)

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        return ReferenceDelegate.load(self.blob, []).run(inputs)


class Bound(BackendDetails):
    """Nothing is wrong with it: weight-free, its blob names a program that `BoundDelegate` interprets."""

    weight_free = True
    programs: ClassVar[dict[str, ExportedProgram]] = {}

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        name = structure_digest(edge_program)
        Bound.programs[name] = edge_program
        return PreprocessResult(name.encode())

    partitioner = ReferenceLike.__dict__["partitioner"]


class BoundDelegate(Delegate):
    def __init__(self, program: ExportedProgram, constants: Sequence[Tensor]) -> None:
        self.program, self.constants = program, constants

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> BoundDelegate:
        return cls(Bound.programs[blob.path.read_text()], list(constants))

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        with torch.no_grad():
            found: Sequence[Any] = torch.fx.Interpreter(self.program.graph_module).run(*self.constants, *inputs)
        return found


class CopyingDelegate(BoundDelegate):
    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> BoundDelegate:
        return cls(Bound.programs[blob.path.read_text()], [each.clone() for each in constants])


class CopiedOnceDelegate(BoundDelegate):
    """Copies the weights of a blob when it is first loaded."""

    copies: ClassVar[dict[str, list[Tensor]]] = {}

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> BoundDelegate:
        name = blob.path.read_text()
        return cls(Bound.programs[name], cls.copies.setdefault(name, [each.clone() for each in constants]))


class CopiedEachTimeDelegate(BoundDelegate):
    """Copies the weights in each call."""

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        return BoundDelegate(self.program, [each.clone() for each in self.constants]).run(inputs)


class Peeking(BackendDetails):
    """Weight-free, and yet its result depends on a weight, which its partitioner looks at."""

    weight_free = True
    seen: ClassVar[float] = 0

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return replace(Bound.preprocess(edge_program, compile_specs), info={"seen": cls.seen})

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        refuse_options(cls.__name__, options)

        def peek(program: ExportedProgram) -> None:
            cls.seen = sum(float(each.detach().sum()) for each in program.state_dict.values())

        return Claiming(cls.__name__, peek)
