"""A build's units, made by an executor: what its workers made is in the build's store when it goes on.

The local build that follows finds it there, and makes whatever was given up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hatch_lower.build.context import BuildContext
from hatch_lower.build.spread.answers import read_answer
from hatch_lower.build.spread.entries import Entries, entry_of
from hatch_lower.build.spread.executors.choose import opener
from hatch_lower.build.spread.graph import Work
from hatch_lower.build.spread.part_requests import may_ask, request_part
from hatch_lower.build.spread.pool import Reply, Shared
from hatch_lower.build.spread.protocol import UnitAnswer, write_request
from hatch_lower.build.spread.requests import Asked, ask_again, error_of, requests_of, take_answer
from hatch_lower.build.spread.run_unit import run_unit
from hatch_lower.build.spread.scheduler import Outcome, RealClock, Scheduler
from hatch_lower.build.spread.units import Unit, find_units
from hatch_lower.build.spread.view import UnitView
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings
from hatch_lower.events import Event


def make_elsewhere(context: BuildContext, models: Sequence[ModelSettings]) -> None:
    """Have the units of some models made by the executor, as far as they are not cached.

    Raises:
        ExecutorError: if there is no such executor, or none of its workers can make a unit.
        LowerError: with which a unit has failed.
    """
    settings, store = context.settings, context.store
    view = UnitView(context.reporter, settings.name)
    open_pool = opener(context.executor, settings.executor, settings.jobs, context.work, run_unit)
    if not (store.reads and store.writes):
        if store.mode != "frozen":
            view.said(f"the cache is {store.mode}, so that models are lowered here and not by `{context.executor}`")
        return
    names = {model.name for model in models}
    units = [u for u in find_units(context, shared=False) if u.model in names and u.recipe and not u.cached]
    if not units:
        return
    count = "1 unit is" if len(units) == 1 else f"{len(units)} units are"
    view.said(f"{count} made by `{context.executor}`")
    desk = UnitDesk(context, units)
    try:
        given_up = Scheduler(open_pool, desk, view, RealClock()).run(desk.works)
    finally:
        view.close()
    for key, reason in given_up.items():
        context.reporter.report(Event("units", "note", desk.name_of(key), detail=f"made by this build: {reason}"))


class UnitDesk:
    """Requests for the units of a build, and what becomes of their answers."""

    def __init__(self, context: BuildContext, units: Sequence[Unit]) -> None:
        self._context = context
        asked = requests_of(context, units)
        self._asked = {each.request.key: each for each in asked}
        self._sent = dict(self._asked)  # as they were submitted last
        self._needed: dict[str, list[str]] = {}  # keys of what a unit has asked for
        self.works = [
            Work(each.request.key, unit.name, (), unit.seconds, digest_of(dict(each.request.facts)))
            for each, unit in zip(asked, units, strict=True)
        ]
        # what travels with every request is one object in all of them
        self._shared = {id(data): Shared(data) for data in asked[0].attachments}

    def name_of(self, key: str) -> str:
        return self._asked[key].request.name

    def request(self, work: Work, *, divisible: bool) -> tuple[bytes, Sequence[bytes | Shared]]:
        asked, needed = self._asked[work.key], self._needed.get(work.key, [])
        if needed:
            found = [entry_of(self._context.store, key) for key in needed]
            asked = ask_again(asked, [entry for entry in found if entry is not None])
        if needed or divisible:
            asked = may_ask(asked, needed)
        self._sent[work.key] = asked
        return write_request(asked.request), [self._shared.get(id(data), data) for data in asked.attachments]

    def read(self, work: Work, reply: Reply) -> Outcome:
        asked = self._sent[work.key]
        answer, entries = read_answer(reply.data, asked.request)
        if answer.outcome == "made":
            take_answer(self._context, answer, entries)
            if asked.request.kind == "part":  # there may be many, and large ones
                del self._asked[work.key], self._sent[work.key]
            return Outcome("made")
        if answer.outcome == "refused":
            return Outcome("refused", lacks=tuple(lack.text() for lack in answer.lacks))
        if answer.outcome == "needs":
            return Outcome("needs", needs=tuple(self._needs(work, answer, entries)))
        for line in answer.log:
            self._context.reporter.report(Event("output", "note", work.name, detail=line))
        return Outcome("failed", error=error_of(asked, answer, self._context.settings.root))

    def _needs(self, work: Work, answer: UnitAnswer, entries: Entries) -> Iterator[Work]:
        """Yield the parts that a unit needs and that this build does not have; equal ones of several units are one."""
        keys = [need.key for need in answer.needs]
        self._needed[work.key] = list(dict.fromkeys([*self._needed.get(work.key, []), *keys]))
        for need in answer.needs:
            if need.kind == "entry" or self._context.store.find_record(need.key) is not None:
                continue
            if need.key not in self._asked:
                self._asked[need.key] = request_part(self._asked[work.key], need, entries.blob(need.blob))
            yield Work(need.key, need.name, group=work.group)
