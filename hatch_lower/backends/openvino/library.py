"""The OpenVINO library, imported where it is needed, and without its telemetry."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

INSTALL = 'install it: `pip install "hatch-lower[openvino]"`'
TELEMETRY = "openvino_telemetry"
IMPORTING = Lock()


def import_openvino() -> Any:
    # Importing it sends a message to its vendor and writes into the home folder, where the telemetry package that it
    # brings is found. A build and a loaded model do neither, so the package is hidden meanwhile; the library has a way
    # of its own to do without.
    with IMPORTING, hidden(TELEMETRY):
        return importlib.import_module("openvino")


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let a module that nobody has imported yet be missing, as long as the context lasts."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@cache
def engine() -> Any:
    # one in the process: the plugins of devices are loaded once
    return import_openvino().Core()
