"""A part, as a worker's child process makes it: torch, compilers and backends are at work here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatch_lower.build.spread.asking import BODY, DATA, LACKS, PartBody
from hatch_lower.build.spread.protocol import Lack, LacksError
from hatch_lower.cache.key import Key
from hatch_lower.cache.store import Store
from hatch_lower.errors import BackendError, ProcessError
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.lowering.portable import read_partition
from hatch_lower.exir.lowering.portable_sizes import NotPortableError
from hatch_lower.exir.lowering.preprocess import Ask, Request, key_of, preprocess_all
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.exir.lowering.stored_steps import step_key, write_step
from hatch_lower.format.codec import encode, read_record, write_record
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.record import ModelReport
from hatch_lower.pipeline.sandbox import backend_guard

# components of keys that are pairs of a name and a version
VERSIONS = frozenset({"fingerprint", "made_by"})
# names for readers of other components
WORDS = {"interpreter": "Python", "result_schema": "form of results"}


def make_part(name: str, folder: Path, store: Store, ask: Ask | None) -> ModelReport:
    """Make the part that lies in a folder; a `ProcessError` if it has another key here: `LACKS` says what differs."""
    body, data = read_record(PartBody, folder / BODY), (folder / DATA).read_bytes()
    try:
        if body.make == "partition":
            make_partition(name, body, data, store, ask)
        else:
            make_step(name, body, data, store)
    except LacksError as error:
        write_record(folder / LACKS, error.lacks)
        raise ProcessError("this machine makes something else of it", where=name, found=str(error)) from error
    return ModelReport(name, ModelEntry((), None, None, {}), files=())


def make_partition(name: str, body: PartBody, data: bytes, store: Store, ask: Ask | None) -> None:
    try:
        local = read_partition(data)
    except NotPortableError as error:
        raise LacksError(Lack("a partition as it came", "", str(error))) from error
    with found_here(body.backend):
        request = Request("part", DelegationSpec(body.backend, specs_of(body)), find_backend(body.backend), local)
        key = key_of(request, {})
    refuse_other_key(body.key, key)
    with backend_guard(body.backend, name):
        preprocess_all([request], store, ask)


def make_step(name: str, body: PartBody, data: bytes, store: Store) -> None:
    specs = specs_of(body)
    with found_here(body.backend), process_restored():
        backend = find_backend(body.backend)
        step = backend.step_of(body.step, data.decode(), specs)
    key = step_key(body.backend, step)
    refuse_other_key(body.key, key)
    with backend_guard(body.backend, name):
        made = backend.run_step(step, specs)
    write_step(store, key, made)


def specs_of(body: PartBody) -> list[CompileSpec]:
    return [CompileSpec(key, bytes.fromhex(value)) for key, value in body.specs]


@contextmanager
def found_here(backend: str) -> Iterator[None]:
    # a backend that is not installed, or that finds no compiler, is one that another machine may have
    try:
        yield
    except BackendError as error:
        raise LacksError(Lack(f"the backend `{backend}`", "", f"{error.what}: {error.found}")) from error


def refuse_other_key(wanted: Mapping[str, object], key: Key) -> None:
    """Refuse a part whose result would be another one here; its key was computed here anew."""
    found: dict[str, object] = encode(key.components())
    lacks = [lack for name in {**wanted, **found} for lack in lacks_of(name, encode(wanted.get(name)), found.get(name))]
    if lacks:
        raise LacksError(*lacks)


def lacks_of(name: str, wanted: Any, found: Any) -> Iterator[Lack]:
    if wanted == found:
        return
    if name in VERSIONS and isinstance(wanted, list) and isinstance(found, list):
        there, here = dict(wanted), dict(found)
        for tool in {**there, **here}:
            if here.get(tool) != there.get(tool):
                yield Lack(f"`{tool}`", str(there.get(tool, "")), str(here.get(tool, "")))
    else:
        yield Lack(WORDS.get(name, name), str(wanted), str(found))
