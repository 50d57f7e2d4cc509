"""A build whose units an executor makes: the results of the workers are in the build's store afterwards.

The local build that follows finds the results there, and makes the units that were given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.signals import ending_on_signals
from hatch_lower.driver.spread.answers import read_answer
from hatch_lower.driver.spread.executors.choose import opener
from hatch_lower.driver.spread.pool import LostWorkerError, Reply, Work
from hatch_lower.driver.spread.protocol import LacksError, WrongAnswerError, new_secret, write_request
from hatch_lower.driver.spread.requests import error_of, requests_of, take_answer
from hatch_lower.driver.spread.run_unit import run_unit
from hatch_lower.driver.spread.scheduler import Clock, Scheduler
from hatch_lower.driver.spread.snapshot import take_snapshot
from hatch_lower.driver.spread.view import UnitView
from hatch_lower.driver.units import Unit, find_units
from hatch_lower.events import Event


def make_elsewhere(context: BuildContext, models: Sequence[ModelSettings]) -> None:
    """Have the executor make the units of some models that are not cached."""
    settings, store = context.settings, context.store
    view = UnitView(context.reporter, settings.name)
    open_pool = opener(context.executor, settings.executor, settings.jobs, context.work, run_unit)
    if not (store.reads and store.writes):
        if store.mode != "frozen":
            view.said(f"the cache is {store.mode}, so models are lowered here and not by `{context.executor}`")
        return
    names = {model.name for model in models}
    units = [u for u in find_units(context, shared=False) if u.model in names and u.recipe and not u.cached]
    if not units:
        return
    count = "1 unit is" if len(units) == 1 else f"{len(units)} units are"
    view.said(f"{count} made by `{context.executor}`")
    desk = UnitDesk(context, units)
    with closing(view), ending_on_signals():  # else the units would go on in a cluster
        Scheduler(open_pool, desk, view, Clock()).run(desk.works)


class UnitDesk:
    def __init__(self, context: BuildContext, units: Sequence[Unit]) -> None:
        self._context = context
        self._snapshot = take_snapshot(context.settings, context.view, context.files())
        self._requests = {request.key: request for request in requests_of(context, units, self._snapshot)}
        self._brings = False  # whether answers bring all entries: a shared cache may be lost to this build alone
        groups = {key: digest_of(dict(request.facts)) for key, request in self._requests.items()}
        self.works = [Work(unit.key, unit.name, unit.seconds, groups[unit.key]) for unit in units]

    def request(self, work: Work) -> tuple[bytes, bytes]:
        request = self._requests[work.key]
        if self._brings:
            request = self._requests[work.key] = replace(request, secret=new_secret(), bring_all=True)
        return write_request(request), self._snapshot.data

    def read(self, work: Work, reply: Reply) -> None:
        try:
            self._read(work, reply)
        except WrongAnswerError:
            self._brings = True
            raise

    def _read(self, work: Work, reply: Reply) -> None:
        answer, entries = read_answer(reply.data, self._requests[work.key])
        if answer.outcome == "refused":
            raise LacksError(*answer.lacks)
        if answer.outcome == "killed" and answer.error is not None:
            raise LostWorkerError(answer.error["what"], reply.worker)
        if answer.outcome == "failed":
            for line in answer.log:
                self._context.reporter.report(Event("output", "note", work.name, detail=line))
            raise error_of(self._snapshot, answer, self._context.settings.root)
        take_answer(self._context, answer, entries)
