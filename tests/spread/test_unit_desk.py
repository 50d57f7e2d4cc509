"""Requests for units and answers to them, between the scheduler and workers that are simulated and may lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.elsewhere import context_of
from support.kept_events import Events
from support.scenarios import copy_project
from support.simulated import Make, RecordingWatcher, SimulatedEngine

from hatch_lower.cache.entry import Keep, Record
from hatch_lower.canonical import sha256_bytes
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.spread.pool import Reply
from hatch_lower.driver.spread.protocol import (
    Lack,
    UnitAnswer,
    UnitRequest,
    WrongAnswerError,
    read_unit_request,
    write_unit_answer,
)
from hatch_lower.driver.spread.scheduler import Scheduler
from hatch_lower.driver.spread.spread import UnitDesk
from hatch_lower.driver.units import find_units, recipe_units
from hatch_lower.errors import CaptureError, ExecutorError, LowerError, ProcessError

Answer = Callable[[UnitRequest, str], bytes]


@pytest.fixture
def context(tmp_path: Path) -> BuildContext:
    return context_of(copy_project("two_methods", tmp_path), tmp_path / "work")


def made(request: UnitRequest, worker: str) -> bytes:
    return write_unit_answer(UnitAnswer(request.name, request.key, worker, "made"), (), request.secret)


def flipped(request: UnitRequest, worker: str) -> bytes:
    data = bytearray(made(request, worker))
    data[-20] ^= 1
    return bytes(data)


def of_another_unit(request: UnitRequest, worker: str) -> bytes:
    return write_unit_answer(UnitAnswer("other/default", request.key, worker, "made"), (), request.secret)


def of_another_build(request: UnitRequest, worker: str) -> bytes:
    return write_unit_answer(UnitAnswer(request.name, request.key, worker, "made"), (), sha256_bytes(b"guessed"))


def without_its_entries(request: UnitRequest, worker: str) -> bytes:
    answer = UnitAnswer(request.name, request.key, worker, "made", entries=(sha256_bytes(b"entry"),))
    return write_unit_answer(answer, (), request.secret)


def refusing(request: UnitRequest, worker: str) -> bytes:
    lacks = (Lack("torch", "2.13.0", "2.12.1"), Lack("C++ compiler", "g++ 13", ""))
    return write_unit_answer(UnitAnswer(request.name, request.key, worker, "refused", lacks=lacks), (), request.secret)


def failing(request: UnitRequest, worker: str) -> bytes:
    error = CaptureError("a method could not be exported", where="two_methods", found="a loop", hint="unroll it")
    answer = UnitAnswer(
        request.name, request.key, worker, "failed", error=error.to_json(), log=("a line of the model",)
    )
    return write_unit_answer(answer, (), request.secret)


def first_worker(answer: Answer) -> Make:
    """Return workers of which the first one answers so, and the other as it should."""

    def make(worker: str, text: str) -> tuple[float, bytes]:
        request = read_unit_request(text.encode())
        return 1.0, (answer if worker == "worker-0" else made)(request, worker)

    return make


def spread(context: BuildContext, make: Make, workers: int = 2) -> tuple[dict[str, str], list[str]]:
    units = recipe_units(find_units(context, shared=False))
    desk, watcher = UnitDesk(context, units), RecordingWatcher()
    engine = SimulatedEngine(workers, make)
    given_up = Scheduler(engine.open, desk, watcher, engine).run(desk.works)
    names = {work.key: work.name for work in desk.works}
    return {names[key]: reason for key, reason in given_up.items()}, watcher.lines


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (flipped, "the answer was changed"),
        (of_another_unit, "the answer is about another unit, `other/default`"),
        (of_another_build, "the answer belongs to another request, or is damaged"),
        (without_its_entries, "its entry "),
        (lambda request, worker: b"", "the bytes are no answer"),
    ],
)
def test_a_wrong_answer_is_reported_and_the_unit_made_by_another_worker(
    context: BuildContext, answer: Answer, reason: str
) -> None:
    given_up, lines = spread(context, first_worker(answer))
    assert given_up == {}
    wrong = [line for line in lines if "answered wrongly" in line]
    assert wrong
    assert all(f" again: worker-0 answered wrongly: {reason}" in line for line in wrong)
    assert [line.split(" in ")[0] for line in lines if " made on " in line] == [
        f"two_methods/{recipe} made on worker-1" for recipe in ("portable", "default")
    ]


def test_workers_that_all_refuse_are_named_with_what_they_lack(context: BuildContext) -> None:
    with pytest.raises(ExecutorError) as caught:
        spread(context, lambda worker, text: (1.0, refusing(read_unit_request(text.encode()), worker)))
    assert caught.value.found == "\n".join(
        f"{worker}: has torch 2.12.1, where 2.13.0 is wanted; has no C++ compiler, where g++ 13 is wanted"
        for worker in ("worker-0", "worker-1")
    )


def test_the_error_of_a_unit_names_its_worker_and_its_log_arrives(context: BuildContext) -> None:
    reporter = Events()
    with pytest.raises(LowerError) as caught:
        spread(replace(context, reporter=reporter), first_worker(failing), workers=1)
    assert isinstance(caught.value, CaptureError)
    assert caught.value.where == "two_methods, on the worker worker-0"
    assert (caught.value.found, caught.value.hint) == ("a loop", "unroll it")
    assert [event.detail for event in reporter.seen] == ["a line of the model"]


def killed(request: UnitRequest, worker: str) -> bytes:
    error = ProcessError("the build process was killed (SIGKILL)", where="two_methods", hint="give it memory")
    answer = UnitAnswer(request.name, request.key, worker, "killed", error=error.to_json())
    return write_unit_answer(answer, (), request.secret)


def test_a_unit_that_was_killed_on_its_worker_is_made_by_another_one(context: BuildContext) -> None:
    given_up, lines = spread(context, first_worker(killed))
    assert given_up == {}
    assert any(" again: worker-0: the build process was killed (SIGKILL)" in line for line in lines)
    assert sum(" made on worker-1" in line for line in lines) == 2


def test_a_unit_that_is_killed_wherever_it_is_made_is_left_to_the_build(context: BuildContext) -> None:
    given_up, _ = spread(context, lambda worker, text: (1.0, killed(read_unit_request(text.encode()), worker)))
    assert set(given_up) == {"two_methods/default", "two_methods/portable"}


class Lost:
    """A shared cache that workers reach, and the build does not."""

    def fetch(self, key: str, keep: Keep) -> Record | None:
        return None

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        return False


def test_a_shared_cache_that_the_build_has_lost_is_relied_on_once(context: BuildContext) -> None:
    context = replace(context, store=replace(context.store, remote=Lost()))
    desk = UnitDesk(context, recipe_units(find_units(context, shared=False)))
    first, second = desk.works
    request = read_unit_request(desk.request(first)[0])
    assert not request.bring_all
    with pytest.raises(WrongAnswerError, match="the shared cache does not have it"):
        desk.read(first, Reply("worker", without_its_entries(request, "worker")))
    for work in (first, second):
        assert read_unit_request(desk.request(work)[0]).bring_all
