"""With `verify = "interpret"`, stand-ins compare a recipe without its device, which still reads as not compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.exports import Workshop, settings_of

from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import UnavailableError, VerificationError
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.verify import INTERPRETED
from hatch_lower.runtime.delegates import Delegate

pytestmark = pytest.mark.torch

LOAD = ReferenceDelegate.__dict__["load"].__func__
GPU = Recipe("gpu", (BackendChoice("reference"),), without_device="interpret")


class Interpreted(ReferenceDelegate):
    """Stands for a run half on the CPU."""

    added = 0.0

    @classmethod
    def load(cls, *arguments: Any, **options: Any) -> Delegate:
        loaded: Delegate = LOAD(cls, *arguments, **options)
        return loaded

    def run(self, inputs: list[Any]) -> Any:
        return [value + self.added if torch.is_tensor(value) else value for value in super().run(inputs)]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take the device away; the list has the states of the stand-in's context."""
    states: list[str] = []

    def load_there(*arguments: Any, **options: Any) -> object:
        raise UnavailableError("no `GPU` here", where="/a/path", found="CPU only", hint="install a driver")

    @contextmanager
    def stand_in() -> Iterator[type[Delegate]]:
        states.append("open")
        yield Interpreted
        states.append("closed")

    monkeypatch.setattr(ReferenceDelegate, "load", load_there)
    monkeypatch.setattr(ReferenceBackend, "stand_in", stand_in)
    return states


def test_an_interpreted_recipe_is_compared_and_reads_as_not_compared(
    shop: Workshop, plain: CapturedModel, opened: list[str]
) -> None:
    report, _ = shop.build(plain, settings_of(GPU))
    assert report.manifest.recipes["gpu"].not_compared == INTERPRETED
    assert {method.compared.partition(": ")[0] for method in report.verified} == {"interpreted"}
    assert opened == ["open", "closed"]


def test_a_mismatch_of_interpreted_kernels_fails_the_build(
    shop: Workshop, plain: CapturedModel, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Interpreted, "added", 1.0)
    with pytest.raises(VerificationError, match="by interpretation of its kernels: the lowered method computes other"):
        shop.build(plain, settings_of(GPU))


def test_a_backend_without_a_stand_in_is_refused(
    shop: Workshop, plain: CapturedModel, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceBackend, "stand_in", lambda: None)
    with pytest.raises(VerificationError, match="the program does not run on this machine"):
        shop.build(plain, settings_of(replace(GPU)))
