"""A backend that does what `HATCH_LOWER_TEST_FAULT` says, `<where> <fault>+<fault>`; without it it works."""

from __future__ import annotations

import ctypes
import locale
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from hatch_lower.backends.reference.claim import claim, is_operation
from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.dialects._ops import edge_overload
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

WHERE, _, FAULT = os.environ.get("HATCH_LOWER_TEST_FAULT", "").partition(" ")
MARKER = os.environ.get("HATCH_LOWER_TEST_MARKER", "")


def wrong(where: str, value: Any = None) -> Any:
    """Do what is wrong here, if anything is; return what the caller is to return in place of `value`."""
    for name in FAULT.split("+") if where == WHERE else ():
        value = FAULTS[name](value)
    return value


def raises(error: BaseException) -> Callable[[Any], Any]:
    def fault(value: Any) -> Any:
        raise error

    return fault


def recurse(value: Any) -> Any:
    return recurse(value)


def loop(value: Any) -> Any:
    while True:
        time.sleep(0.01)


def exits(status: int) -> Callable[[Any], Any]:
    return lambda value: os._exit(status)


def overwrite(value: Any) -> Any:
    """Fill what is no memory of this process."""
    ctypes.memset(64, 255, 4096)


def free_wildly(value: Any) -> Any:
    """Give the heap back what it never gave: it aborts, as it does where its lists are damaged."""
    block = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(ctypes.addressof(block) + 24)
    return value


def abort_as_cpp(value: Any) -> Any:
    """End as C++ does when `new` fails and nobody catches that."""
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    os.abort()


def pipes() -> list[int]:
    """Return the descriptors above 2 of pipes that this process can write to."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            status, flags = os.fstat(number), Path(f"/proc/self/fdinfo/{number}").read_text()
        except OSError:
            continue
        if number > 2 and stat.S_ISFIFO(status.st_mode) and int(flags.split("flags:")[1].split()[0], 8) & 1:
            found.append(number)
    return found


def close_pipe(value: Any) -> Any:
    for each in pipes():
        os.close(each)
    return value


def close_all(value: Any) -> Any:
    """Close every file, and open one that gets the number that the pipe had."""
    os.closerange(3, 64)
    for _ in range(40):
        os.open(MARKER, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    return value


def garbage_on_pipe(value: Any) -> Any:
    lines = [
        b"\xff\xfe\x00 no text\n",
        b"[" * 100_000 + b"\n",
        b'{"stage": 1, "state": "end", "model": [], "seconds": "long"}\n',
        b'{"stage": "lower", "state": "end", "model": "m", "seconds": "long"}\n',
        b'{"stage": "lower", "state": "note", "model": null, "detail": {"a": 1}}\n',
        b"null\n42\n",
        b"no end of a line " * 100_000,
        b"\n",
    ]
    for each in pipes():
        for line in lines:
            view = memoryview(line)
            while view:
                view = view[os.write(each, view) :]
    return value


def print_much(value: Any) -> Any:
    """Print at the level of descriptors, lines first and then megabytes without an end of a line."""
    os.write(1, b"a line of its own\n" * 2000)
    for _ in range(400):
        os.write(2, b"\rprogress" * 8192)
    return value


def leave_thread(value: Any) -> Any:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return value


def leave_thread_and_exit(value: Any) -> Any:
    leave_thread(value)
    raise SystemExit(0)


def leave_child(value: Any) -> Any:
    """Leave a child process that holds every pipe open."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    return value


def leave_child_and_exit(value: Any) -> Any:
    leave_child(value)
    os._exit(3)


def leave_server(value: Any) -> Any:
    """Leave a process in a session of its own, as servers of compilers do, which never stops printing."""
    code = "while True: print('x' * 1000, flush=True)"
    server = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    Path(MARKER).write_text(str(server.pid))
    return value


def disturb(value: Any) -> Any:
    """Change all that a process has one of."""
    os.chdir("/")
    for name in ("PATH", "TMPDIR", "HATCH_LOWER_CACHE_DIR"):
        os.environ.pop(name, None)
    os.environ["CXX"] = "/nowhere/g++"
    locale.setlocale(locale.LC_ALL, "C")
    sys.path[:] = []
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.manual_seed(42)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.umask(0)
    sys.setrecursionlimit(200)
    sys.stdout = sys.stderr = None
    return value


def changed_program(value: Any) -> Any:
    """Take the ReLU out of the program."""
    module = value.tagged_exported_program.graph_module
    for node in list(module.graph.nodes):
        if "relu" in str(node.target):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    return value


def other_operation(program: Any) -> Any:
    """Compute something else than was asked for."""
    for node in program.graph.nodes:
        if "relu" in str(node.target):
            node.target = edge_overload(torch.ops.aten.neg.default)
    return program


def changed_weights(program: Any) -> Any:
    """Write into the model's own weights."""
    for tensor in program.state_dict.values():
        tensor.data.fill_(7.0)
    return program


FAULTS: Mapping[str, Callable[[Any], Any]] = {
    "raises": raises(ValueError("the machine is not there")),
    "raises long": raises(ValueError("\n".join(f"line {i} of many" for i in range(200)))),
    "raises nothing": raises(ValueError()),
    "base": raises(BaseException("of no kind that is caught")),
    "exit": raises(SystemExit(0)),
    "exit 5": raises(SystemExit(5)),
    "exit text": raises(SystemExit("no licence for this machine")),
    "interrupt": raises(KeyboardInterrupt()),
    "generator": raises(GeneratorExit()),
    "recursion": recurse,
    "memory": raises(MemoryError()),
    "allocator": raises(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")),
    "bad_alloc": abort_as_cpp,
    "loop": loop,
    "_exit 0": exits(0),
    "_exit 3": exits(3),
    "overwrite": overwrite,
    "free": free_wildly,
    "close pipe": close_pipe,
    "close all": close_all,
    "garbage": garbage_on_pipe,
    "print": print_much,
    "thread": leave_thread,
    "thread and exit": leave_thread_and_exit,
    "child": leave_child,
    "child and exit": leave_child_and_exit,
    "server": leave_server,
    "disturb": disturb,
    "program": changed_program,
    "weights": changed_weights,
    "operation": other_operation,
    "type": lambda value: 42,
    "none": lambda value: None,
    "text": lambda value: replace(value, processed_bytes="a text"),
    "suffix": lambda value: replace(value, suffix="../../../escaped"),
    "suffix type": lambda value: replace(value, suffix=3),
    "requirements": lambda value: replace(value, requirements=("no requirement at all ===",)),
    "requirements type": lambda value: replace(value, requirements=3),
    "target": lambda value: replace(value, target="here"),
    "handles": lambda value: replace(value, debug_handle_map={"a": ("b", None)}),
    "handles type": lambda value: replace(value, debug_handle_map=17),
    "data": lambda value: replace(value, data_store_output=17),
    "info": lambda value: replace(value, info={"a": object()}),
    "info type": lambda value: replace(value, info=17),
    "place": lambda value: replace(value, info={**value.info, "where": os.getcwd() + "/model"}),
    "delete": lambda path: path.unlink(),
    "overwrite blob": lambda path: path.write_bytes(b"nothing"),
    "kill group": lambda value: os.killpg(0, signal.SIGKILL),
    "hang up": lambda value: os.kill(0, signal.SIGHUP),
    "wrong": lambda value: [each + 1 for each in value],
    "few": lambda value: [],
}


class FaultyBackend(BackendDetails):
    """The reference backend, with faults."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        edge_program = wrong("begin", edge_program)
        return wrong("preprocess", ReferenceBackend.preprocess(edge_program, compile_specs))

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        return wrong("partitioner", FaultyPartitioner())

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        return wrong("fingerprint", {"faulty": "1"})

    @classmethod
    def tools(cls, options: Mapping[str, Any]) -> Sequence[str]:
        return wrong("tools", ())


class FaultyPartitioner(Partitioner):
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return wrong("partition", claim(exported_program, DelegationSpec("faulty", []), is_operation, "no"))

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], None]:
        return wrong("wishes", ([], None))


class FaultyDelegate(Delegate):
    def __init__(self, delegate: Delegate) -> None:
        self._delegate = delegate

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[torch.Tensor]) -> FaultyDelegate:
        delegate = cls(ReferenceDelegate.load(blob, constants))
        wrong("blob", blob.path)
        return wrong("load", delegate)

    def run(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        return wrong("run", self._delegate.run(inputs))


wrong("import")
