"""What carries objects to and from a remote cache, and how long that may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class TransferError(Exception):
    """An object could not be got or sent; the text says why, in a few words."""


class UnreachableError(TransferError):
    """There is no use in asking this remote again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much time and space a remote cache may cost.

    Args:
        connect: seconds until a connection stands.
        silence: seconds without a byte.
        object: seconds for an object, to which its size adds.
        rate: bytes each second below which a transfer is given up.
        build: seconds for all objects of a build, in one process.
        failures: after so many nothing is asked any more.
        result_bytes: the largest action result.
        entry_bytes: the largest record.
    """

    connect: float = 5.0
    silence: float = 10.0
    object: float = 20.0
    rate: float = 256 * 1024
    build: float = 600.0
    failures: int = 3
    result_bytes: int = 4 << 20
    entry_bytes: int = 16 << 20

    def seconds(self, size: int) -> float:
        """Return how long an object of so many bytes may take."""
        return self.object + size / self.rate


class Transport(Protocol):
    """Gets and sends objects by name (`ac/<sha256>`, `cas/<sha256>`). It checks nothing, and is used by one thread."""

    def read(self, name: str, write: Callable[[bytes], object]) -> bool:
        """Give an object's pieces to `write`, which raises to end it; return whether there is such an object.

        Raises:
            TransferError: if it cannot be told.
        """

    def holds(self, name: str, size: int) -> bool:
        """Return whether there is an object of this name and size; if in doubt, there is not."""

    def write(self, name: str, source: bytes | Path) -> None:
        """Send an object.

        Raises:
            TransferError: if it was not taken.
        """

    def abandon(self) -> None:
        """End whatever another thread does with this transport, as far as that is possible."""


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """Return what `work` returns, or give up after some seconds, whatever it is waiting for.

    Sockets know how long a peer may be silent and not how long an answer may take in all, and name servers and the
    libraries of object stores have limits of their own. So the work is done by a thread that is not waited for.

    Raises:
        TransferError: if it takes longer.
    """
    outcome: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="remote-cache", daemon=True)
    thread.start()
    thread.join(max(seconds, 0))
    if errors:
        raise errors[0]
    if not outcome:
        raise TransferError("it took too long")
    return outcome[0]
