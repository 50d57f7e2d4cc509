"""A build whose units an executor makes: requests for units, and the results of answers, which are in the build's
store afterwards. The local build that follows finds the results there, and makes the units that were given up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hatch_lower.cache.remote.policy import takes_unsigned, trusted_keys
from hatch_lower.cache.remote.signing import VerifyingKeys
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.config.settings import ModelSettings
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.environment import level_variables
from hatch_lower.driver.inputs.record import received, secret
from hatch_lower.driver.lookup import add_entry, open_stats, own_components, readable_entries, shared_key
from hatch_lower.driver.signals import ending_on_signals
from hatch_lower.driver.spread.executors.choose import opener
from hatch_lower.driver.spread.pool import LostWorkerError, Reply, UnitWork
from hatch_lower.driver.spread.protocol import (
    Entries,
    Facts,
    LacksError,
    UnitAnswer,
    UnitBody,
    UnitRequest,
    WrongAnswerError,
    new_secret,
    read_unit_answer,
    write_unit_request,
)
from hatch_lower.driver.spread.run_unit import facts_here, facts_wanted, run_unit, sent_variables
from hatch_lower.driver.spread.scheduler import Scheduler, UnitClock, UnitView
from hatch_lower.driver.spread.snapshot import Snapshot, take_snapshot
from hatch_lower.driver.units import Unit, find_units
from hatch_lower.errors import CacheError, LowerError, ProcessError, error_from_json
from hatch_lower.events import Event
from hatch_lower.format.codec import encode

UNIT = "unit"  # the kind of an entry with the recorded inputs of a recipe
QUOTED = re.compile(r"""['"`]([^'"`\n]+)['"`]|([^\s'"`]+)""")


def requests_of(context: BuildContext, units: Collection[Unit], snapshot: Snapshot) -> Iterator[UnitRequest]:
    settings = context.settings
    digest = sha256_bytes(snapshot.data)
    facts = required_facts(context, {unit.recipe for unit in units})
    models = {model.name: model for model in settings.models}
    own = {name: context.environment[name] for name in level_variables(settings.recipes)}
    environment = {**own, **sent_variables(context.environment, settings.pass_env)}
    signers = signers_of(context).ids()
    for unit in units:
        # without the other models: otherwise the requests grow with the square of their number
        model = replace(models[unit.model], recipes=(unit.recipe,))
        project = replace(snapshot.project, settings=replace(snapshot.project.settings, models=(model,)))
        yield UnitRequest(
            name=unit.name,
            key=unit.key,
            secret=new_secret(),
            facts=facts[unit.recipe],
            environment=environment,
            body=encode(UnitBody(project, unit)),
            snapshot=digest,
            signers=signers,
            bring_all=context.store.remote is None,
        )


def required_facts(context: BuildContext, recipes: Collection[str]) -> dict[str, Facts]:
    """Return the required facts for each recipe, each set found once: there may be thousands of units."""
    stats = open_stats(context.store)
    chosen = [recipe for recipe in context.settings.recipes if recipe.name in recipes]
    names = {recipe.name: facts_wanted([choice.name for choice in recipe.backends]) for recipe in chosen}
    known = {wanted: facts_here(wanted, context.environment, stats) for wanted in set(names.values())}
    return {recipe: known[wanted] for recipe, wanted in names.items()}


def take_answer(context: BuildContext, answer: UnitAnswer, entries: Entries) -> tuple[str, ...]:
    """Put an answer's entries into the build's store, which must be readable and writable; return the new keys."""
    store = context.store
    taking = replace(store, remote=replace(entries, trusted=signers_of(context)))
    new = []
    for key in answer.entries:
        if store.find_record(key) is not None:
            continue
        brought = key in entries.entries
        value = (taking if brought else store).find(key)
        if not store.writes:
            raise CacheError(
                "the results of a worker cannot be kept",
                where=str(store.directory),
                found="the cache cannot be written",
                hint="make room there, or name another directory in `HATCH_LOWER_CACHE_DIR`",
            )
        if value is None and not brought:
            raise WrongAnswerError(f"its entry {key[:16]}… is not taken: the shared cache does not have it")
        if value is None:
            reason = entries.refused.get(key, "its contents have another digest")
            raise WrongAnswerError(f"its entry {key[:16]}… is not taken: {reason}")
        if brought:
            store.share(key)
        new.append(key)
    for key in answer.entries:
        remember_read(context, answer.key, key)
    return tuple(new)


def signers_of(context: BuildContext) -> VerifyingKeys:
    """Return the keys that must sign entries; empty if no signature is needed."""
    environment = context.environment
    if takes_unsigned(environment):
        return VerifyingKeys()
    return trusted_keys(environment, context.settings.cache.public_keys)


def remember_read(context: BuildContext, unit: str, key: str) -> None:
    """If an entry has the recorded inputs of a unit, keep the inputs as if the export had run here."""
    store = context.store
    record = store.find_record(key)
    if record is None or record["components"].get("kind") != UNIT:
        return
    components = own_components(record["components"])
    if (digest_of(components), shared_key(components)) != (unit, key):
        return
    own = secret(store.directory, keeps=store.writes)
    for inputs, made in reversed(readable_entries(record["value"])):
        add_entry(store, components, received(inputs, context.environment, own), made)


def failed_unit_error(snapshot: Snapshot, answer: UnitAnswer, root: Path) -> LowerError:
    """Return the error of a failed unit. The hint names a file that was not sent to the worker."""
    told = answer.error or ProcessError("a worker failed without a word", where=answer.name).to_json()
    error = error_from_json(dict(told))
    names = (quoted or plain.rstrip(".,;:)") for quoted, plain in QUOTED.findall(f"{error.what} {error.found}"))
    missing = next((name for name in names if snapshot.lacks(root, name)), None)
    hint = (
        f"`{missing}` is not sent to workers, for it is in no distribution of the project:"
        " name it in `inputs` of the build hook `lower`"
    )
    where = f"{error.where}, on the worker {answer.worker}" if error.where else f"the worker {answer.worker}"
    return type(error)(error.what, where=where, found=error.found, hint=error.hint if missing is None else hint)


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
        Scheduler(open_pool, desk, view, UnitClock()).run(desk.works)


class UnitDesk:
    def __init__(self, context: BuildContext, units: Sequence[Unit]) -> None:
        self._context = context
        self._snapshot = take_snapshot(context.settings, context.view, context.files())
        self._requests = {request.key: request for request in requests_of(context, units, self._snapshot)}
        self._brings = False  # whether answers bring all entries: a shared cache may be lost to this build alone
        groups = {key: digest_of(dict(request.facts)) for key, request in self._requests.items()}
        self.works = [UnitWork(unit.key, unit.name, unit.seconds, groups[unit.key]) for unit in units]

    def request(self, work: UnitWork) -> tuple[bytes, bytes]:
        request = self._requests[work.key]
        if self._brings:
            request = self._requests[work.key] = replace(request, secret=new_secret(), bring_all=True)
        return write_unit_request(request), self._snapshot.data

    def read(self, work: UnitWork, reply: Reply) -> None:
        try:
            self._read(work, reply)
        except WrongAnswerError:
            self._brings = True
            raise

    def _read(self, work: UnitWork, reply: Reply) -> None:
        answer, entries = read_unit_answer(reply.data, self._requests[work.key])
        if answer.outcome == "refused":
            raise LacksError(*answer.lacks)
        if answer.outcome == "killed" and answer.error is not None:
            raise LostWorkerError(answer.error["what"], reply.worker)
        if answer.outcome == "failed":
            for line in answer.log:
                self._context.reporter.report(Event("output", "note", work.name, detail=line))
            raise failed_unit_error(self._snapshot, answer, self._context.settings.root)
        take_answer(self._context, answer, entries)
