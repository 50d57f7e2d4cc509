"""What steps of backends came to, in the cache."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from hatch_lower.cache.entry import DIGEST
from hatch_lower.cache.key import StepKey
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.steps import Step

AskSteps: TypeAlias = Callable[[str, Sequence[CompileSpec], Mapping[str, Step]], None]


def find_steps(
    store: Store, ask: AskSteps, backend_id: str, steps: Sequence[Step], specs: Sequence[CompileSpec]
) -> list[bytes | None]:
    """Return the results of a backend's steps that others have made; `ask` is told of those that nobody has."""
    keys = [step_key(backend_id, step).digest() for step in steps]
    found = {key: read_step(store, key) for key in dict.fromkeys(keys)}
    missing = {key: step for key, step in zip(keys, steps, strict=True) if found[key] is None}
    if missing:
        ask(backend_id, specs, missing)
    return [found[key] for key in keys]


def step_key(backend_id: str, step: Step) -> StepKey:
    return StepKey(
        step=step.name,
        text=sha256_bytes(step.text.encode()),
        backend=backend_id,
        made_by=tuple(sorted(step.components.items())),
        torch=torch.__version__,
        interpreter=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def read_step(store: Store, key: str) -> bytes | None:
    value = store.find(key)
    blob = value.get("blob") if isinstance(value, dict) else None
    # another machine may have written it
    return store.read_blob(blob) if isinstance(blob, str) and DIGEST.fullmatch(blob) else None


def write_step(store: Store, key: StepKey, data: bytes) -> None:
    store.put(key.digest(), key.components(), {"blob": sha256_bytes(data)}, [data])
