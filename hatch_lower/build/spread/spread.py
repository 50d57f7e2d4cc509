"""A build's units, made by an executor: what its workers made is in the build's store when it goes on.

The local build that follows finds it there, and makes whatever was given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

from hatch_lower.build.context import BuildContext
from hatch_lower.build.signals import ending_on_signals
from hatch_lower.build.spread.answers import read_answer
from hatch_lower.build.spread.entries import Entries, entry_of
from hatch_lower.build.spread.executors.choose import opener
from hatch_lower.build.spread.graph import Work
from hatch_lower.build.spread.parts import ASKED
from hatch_lower.build.spread.pool import LostWorkerError, Reply, Shared
from hatch_lower.build.spread.protocol import LacksError, UnitAnswer, WrongAnswerError, write_request
from hatch_lower.build.spread.requests import (
    Asked,
    NotSharedError,
    ask_again,
    error_of,
    may_ask,
    may_not_ask,
    request_part,
    requests_of,
    take_answer,
)
from hatch_lower.build.spread.run_unit import run_unit
from hatch_lower.build.spread.scheduler import Clock, Scheduler
from hatch_lower.build.spread.units import Unit, find_units
from hatch_lower.build.spread.view import UnitView
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings
from hatch_lower.events import Event

# Units that took less than that are made in one go: who asks for parts is begun again, and exports again
PARTS_SECONDS = 30.0
# Times that a unit may ask: a few for each of its backends. One whose export differs each time would never end
MOST_ASKED = 16


def make_elsewhere(context: BuildContext, models: Sequence[ModelSettings]) -> None:
    """Have the units of some models made by the executor, as far as they are not cached."""
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
    with closing(view), ending_on_signals():  # else what was asked of a cluster would go on there
        Scheduler(open_pool, desk, view, Clock()).run(desk.works)


class UnitDesk:
    def __init__(self, context: BuildContext, units: Sequence[Unit]) -> None:
        self._context = context
        self._asked: dict[str, Asked] = {}  # what was last asked, by key
        # what travels with a unit from then on: keys of what it has asked for, and of what was made before it asked
        self._sent: dict[str, list[str]] = {}
        self._kept: dict[str, set[str]] = {}
        self._times: Counter[str] = Counter()  # that a unit has asked, by key
        self._wrong: set[str] = set()  # units that were answered wrongly
        self._brings = False  # whether the shared cache is not relied on any more: it may be lost to this build alone
        self._shared: dict[int, Shared] = {}
        self.works: list[Work] = []
        for unit, asked in zip(units, requests_of(context, units), strict=True):
            for data in asked.attachments.values():  # one object in all of them, which lives as long as this
                self._shared.setdefault(id(data), Shared(data))
            self._asked[unit.key] = asked
            group = digest_of(dict(asked.request.facts))
            self.works.append(Work(unit.key, unit.name, unit.seconds, group))

    def request(self, work: Work, *, divisible: bool) -> tuple[bytes, Sequence[bytes | Shared]]:
        asked, sent = self._asked[work.key], self._sent.get(work.key, [])
        if sent or work.key in self._wrong or self._brings:
            keys = [*sent, *sorted(self._kept.get(work.key, ()))]
            found = [entry_of(self._context.store, key) for key in keys]
            asked = ask_again(asked, [entry for entry in found if entry is not None])
        if self._times[work.key] >= MOST_ASKED:
            asked = may_not_ask(asked)
        elif sent or (divisible and (work.seconds is None or work.seconds >= PARTS_SECONDS)):
            asked = may_ask(asked, sent)
        self._asked[work.key] = asked
        return write_request(asked.request), [self._shared.get(id(data), data) for data in asked.attachments.values()]

    def read(self, work: Work, reply: Reply) -> Sequence[Work] | None:
        try:
            return self._read(work, reply)
        except WrongAnswerError as error:
            self._wrong.add(work.key)
            self._brings |= isinstance(error, NotSharedError)
            raise

    def _read(self, work: Work, reply: Reply) -> Sequence[Work] | None:
        asked = self._asked[work.key]
        answer, entries = read_answer(reply.data, asked.request)
        if answer.outcome == "refused":
            raise LacksError(*answer.lacks)
        if answer.outcome == "killed" and answer.error is not None:
            raise LostWorkerError(answer.error["what"], reply.worker)
        if answer.outcome == "failed":
            for line in answer.log:
                self._context.reporter.report(Event("output", "note", work.name, detail=line))
            raise error_of(asked, answer, self._context.settings.root)
        take_answer(self._context, answer, entries)
        if answer.outcome == "needs":
            return tuple(self._parts(work, asked, answer, entries))
        del self._asked[work.key]
        return None

    def _parts(self, work: Work, asked: Asked, answer: UnitAnswer, entries: Entries) -> Iterator[Work]:
        """Yield the units that a unit needs; of what is in the store already there is none to be made."""
        sent = self._sent.setdefault(work.key, [])
        new = [need for need in answer.needs if need.key not in sent]
        if not new:
            raise WrongAnswerError("it asks again for what was sent with it")
        for need in new:
            if self._context.store.find_record(need.key) is None:
                if ASKED not in asked.attachments:
                    raise WrongAnswerError("it asks for parts, and may not")
                if need.key not in self._asked:
                    self._asked[need.key] = request_part(asked, need, entries.blob(need.blob))
                yield Work(need.key, need.name, None, work.group)
        sent += [need.key for need in new]
        self._kept.setdefault(work.key, set()).update(entries.entries)
        self._times[work.key] += 1
        if self._times[work.key] == MOST_ASKED:
            text = f"it asked for other parts {MOST_ASKED} times, and is made without any more"
            self._context.reporter.report(Event("units", "note", work.name, detail=text))
