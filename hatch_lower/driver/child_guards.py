"""Guards of a child process against the code of models and backends.

The child reports events through a pipe of its own, ends with the parent, and cannot be ended silently by its own code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from typing import Any, NoReturn

from hatch_lower.errors import ProcessError
from hatch_lower.events import Event

LONGEST_SOCKET = 107  # bytes in the path of a socket, on Linux
SOCKET_NAME = len("/pymp-12345678/listener-12345678")  # the suffix that `multiprocessing` adds to the temporary folder
LIFELINE = "lifeline"
# signals that end or stop a process without a handler
ENDING = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT, signal.SIGSTOP}
)


class PipeReporter:
    """Sends events to the parent; several threads may report at once."""

    # A model's code or a backend may close foreign descriptors, and open files with the same numbers. Then no event is
    # sent any more: the build does not need events, and the foreign file must not be written.

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # a compiler must not keep the pipe open
        self._descriptor = descriptor
        self._pipe = file_identity(descriptor)
        self._lock = threading.Lock()

    def report(self, event: Event) -> None:
        with self._lock, contextlib.suppress(Exception):  # while the model's code runs, `json` and `os` may be its own
            line = memoryview(json.dumps(event.to_json()).encode() + b"\n")
            while line and file_identity(self._descriptor) == self._pipe:
                line = line[os.write(self._descriptor, line) :]


def file_identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def end_with_parent() -> None:
    """End this process and its subprocesses when the parent ends: the parent's end of our stdin closes then."""
    lifeline = os.dup(0)
    os.set_inheritable(lifeline, False)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)

    def wait() -> None:
        while os.read(lifeline, 1):
            pass
        end_group()

    threading.Thread(target=wait, name=LIFELINE, daemon=True).start()


def end_group() -> NoReturn:
    """End this process, and its group if this process leads the group."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def refuse_signals(model: str) -> None:
    """Prevent Python code from ending this process, its group or the parent by a signal: the cause would be unknown."""
    own = os.getpid()
    targets = {0, -1, own, -own, os.getppid()}

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("os.kill", "os.killpg") or os.getpid() != own:  # a fork may end itself
            return
        target, number = arguments
        if target not in targets or number not in ENDING or threading.current_thread().name == LIFELINE:
            return
        raise ended_error(model, f"{event}({target}, {signal.Signals(number).name})")

    sys.addaudithook(hear)


def ended_error(model: str, found: str) -> ProcessError:
    return ProcessError(
        "the model's code or a backend tried to end the build process",
        where=f"model `{model}`",
        found=found,
        hint="let it raise an exception that says what is wrong",
    )


def shorten_sockets(folder: str) -> None:
    """Give `multiprocessing` a short path to the temporary folder if the paths of its sockets would be too long."""
    if sys.platform == "linux" and len(os.fsencode(folder)) + SOCKET_NAME > LONGEST_SOCKET:
        # The folder of a build is in the user's temporary folder. A `DataLoader` with workers would wait for ever.
        from multiprocessing.process import current_process

        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        process: Any = current_process()
        process._config["tempdir"] = f"/proc/{os.getpid()}/fd/{descriptor}"
