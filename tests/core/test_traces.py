"""What of the machine is found in a blob."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hatch_lower.format.constants import DelegateEntry
from hatch_lower.pipeline.emit.emit import machine_words, trace_in, traces_of

pytestmark = pytest.mark.torch

WORDS = {"the project's folder": b"/srv/digits/", "the machine's name": b"builder", "the id of the process": b"12345"}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\0/srv/digits/model.py\0", "the project's folder, `/srv/digits/`"),
        (b"made on builder.", ""),
        (b"made on builder", "the machine's name, `builder`"),
        (b"rebuilders", ""),
        (b"/tmp/work-12345/a.o", "the id of the process, `12345`"),
        (b"<dim>123456</dim> 0.12345", ""),
        (b"<Graph object at 0x7f03c4a81d90>", "an address in memory, `at 0x7f03c4a81d90>`"),
        (bytes(1000), ""),
    ],
)
def test_what_a_blob_holds_of_the_machine_is_found(data: bytes, found: str) -> None:
    assert trace_in(data, WORDS) == found


def test_what_is_looked_for_is_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere/home")
    monkeypatch.setattr(os, "getpid", lambda: 17)
    words = machine_words(Path("/srv/digits"))
    assert words["the project's folder"] == b"/srv/digits/"
    assert words["the home folder"] == b"/nowhere/home/"
    assert "the id of the process" not in words, "two digits are in any blob"


def test_the_facts_of_a_backend_are_looked_at_too() -> None:
    info = {"where": "/srv/digits/model.py"}
    entry = DelegateEntry("engine", "digits/delegates/sha256_ab.bin", (), info, None)
    blob = SimpleNamespace(data=b"12345")
    program: Any = SimpleNamespace(plan=SimpleNamespace(delegates=(entry,)), blobs={"ab": blob})
    assert list(traces_of(program, WORDS)) == [
        "the blob of the backend `engine` holds the id of the process, `12345`",
        "the facts of the backend `engine` hold the project's folder, `/srv/digits/`",
    ]
