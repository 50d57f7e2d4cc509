"""The build's own side: requests for recipes and their parts, and what becomes of the answers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatch_lower.build.context import BuildContext
from hatch_lower.build.inputs.record import received
from hatch_lower.build.inputs.variables import secret
from hatch_lower.build.lookup import add_entry, open_stats, readable_entries, shared_key
from hatch_lower.build.spread.entries import Entries, Entry, write_entries
from hatch_lower.build.spread.facts import facts_here, facts_wanted
from hatch_lower.build.spread.parts import ASKED, PART
from hatch_lower.build.spread.protocol import (
    ENTRIES,
    KNOWN,
    Facts,
    Need,
    UnitAnswer,
    UnitRequest,
    WrongAnswerError,
    attach,
    new_secret,
)
from hatch_lower.build.spread.recipe_unit import SNAPSHOT, RecipeBody
from hatch_lower.build.spread.snapshot import Snapshot, take_snapshot
from hatch_lower.build.spread.units import Unit
from hatch_lower.build.spread.workplace import sent_variables
from hatch_lower.cache.remote.policy import takes_unsigned, trusted_keys
from hatch_lower.cache.remote.signing import VerifyingKeys
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.errors import CacheError, LowerError, ProcessError, error_from_json
from hatch_lower.format.codec import encode
from hatch_lower.frozen import Frozen

UNIT = "unit"  # the kind of an entry that says what an export read for a recipe
QUOTED = re.compile(r"""['"`]([^'"`\n]+)['"`]|([^\s'"`]+)""")


class NotSharedError(WrongAnswerError):
    """What a worker says it has sent to the shared cache does not come from there."""


class Asked(Frozen):
    """A request with what travels with it."""

    request: UnitRequest
    attachments: Mapping[str, bytes]  # by role, in the request's order
    snapshot: Snapshot

    def carrying(self, attachments: Mapping[str, bytes], **changes: Any) -> Asked:
        """Return a request with other attachments, and other values of some fields."""
        attached = tuple(attach(role, data) for role, data in attachments.items())
        request = replace(self.request, attachments=attached, **changes)
        return replace(self, request=request, attachments=attachments)

    def without(self, role: str) -> dict[str, bytes]:
        return {other: data for other, data in self.attachments.items() if other != role}


def requests_of(context: BuildContext, units: Collection[Unit]) -> list[Asked]:
    """Return a request for each of some recipes; the snapshot is one object that all of them share."""
    settings, store = context.settings, context.store
    snapshot = take_snapshot(settings, context.view, context.files())
    known = b"" if store.remote is not None else known_keys(store)
    attachments = {SNAPSHOT: snapshot.data, **({KNOWN: known} if known else {})}
    attached = tuple(attach(role, data) for role, data in attachments.items())
    facts = facts_of(context, {unit.recipe for unit in units})
    models = {model.name: model for model in settings.models}
    environment, signers = sent_variables(context.environment, settings.pass_env), signers_of(context).ids()
    asked = []
    for unit in units:
        # without the other models, or what is sent for all grows with their square
        model = replace(models[unit.model], recipes=(unit.recipe,))
        project = replace(snapshot.project, settings=replace(snapshot.project.settings, models=(model,)))
        request = UnitRequest(
            name=unit.name,
            kind="recipe",
            key=unit.key,
            secret=new_secret(),
            facts=facts[unit.recipe],
            environment=environment,
            body=encode(RecipeBody(project, unit)),
            attachments=attached,
            signers=signers,
            bring_all=store.remote is None,
        )
        asked.append(Asked(request, attachments, snapshot))
    return asked


def facts_of(context: BuildContext, recipes: Collection[str]) -> dict[str, Facts]:
    """Return for each recipe what a worker must be; it is looked up once, for there may be thousands of units."""
    stats = open_stats(context.store)
    chosen = [recipe for recipe in context.settings.recipes if recipe.name in recipes]
    names = {recipe.name: facts_wanted([choice.name for choice in recipe.backends]) for recipe in chosen}
    known = {wanted: facts_here(wanted, context.environment, stats) for wanted in set(names.values())}
    return {recipe: known[wanted] for recipe, wanted in names.items()}


def ask_again(asked: Asked, entries: Collection[Entry] = ()) -> Asked:
    """Return a request for the same unit with results that it needs; all that it comes to is to be brought."""
    # known keys are left out: what the build was believed to have, it may have lost
    attachments = {**asked.without(KNOWN), ENTRIES: write_entries(entries)}
    return asked.carrying(attachments, secret=new_secret(), bring_all=True)


def may_ask(asked: Asked, before: Iterable[str] = ()) -> Asked:
    """Return a request whose unit may ask for parts, but for those of some keys, for which it has asked before."""
    return asked.carrying({**asked.attachments, ASKED: b"".join(map(bytes.fromhex, before))})


def may_not_ask(asked: Asked) -> Asked:
    """Return a request whose unit makes all that is missing itself."""
    return asked.carrying(asked.without(ASKED))


def request_part(asked: Asked, need: Need, blob: bytes) -> Asked:
    """Return the request for a part that the unit of another request needs; `blob` came with its answer."""
    part = {"name": need.name, "kind": "part", "key": need.key, "body": need.body}
    return asked.carrying({PART: blob}, **part, secret=new_secret(), bring_all=True)


def take_answer(context: BuildContext, answer: UnitAnswer, entries: Entries) -> tuple[str, ...]:
    """Put an answer's entries into the build's store, which must be read and written; return the keys of new ones."""
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
                "what a worker has made cannot be kept",
                where=str(store.directory),
                found="the cache cannot be written",
                hint="make room there, or name another directory in `HATCH_LOWER_CACHE_DIR`",
            )
        if value is None and not brought:
            raise NotSharedError(f"its entry {key[:16]}… is not taken: the shared cache does not have it")
        if value is None:
            reason = entries.refused.get(key, "it is not what it says")
            raise WrongAnswerError(f"its entry {key[:16]}… is not taken: {reason}")
        if brought:
            store.share(key)
        new.append(key)
    for key in answer.entries:
        remember_read(context, answer.key, key)
    return tuple(new)


def signers_of(context: BuildContext) -> VerifyingKeys:
    """Return the keys by one of which entries must be signed; none if they need not be."""
    environment = context.environment
    if takes_unsigned(environment):
        return VerifyingKeys()
    return trusted_keys(environment, context.settings.cache.public_keys)


def remember_read(context: BuildContext, unit: str, key: str) -> None:
    """If an entry says what an export has read for a unit, note it as if the export had run here."""
    store = context.store
    record = store.find_record(key)
    if record is None or record["components"].get("kind") != UNIT:
        return
    components: Mapping[str, object] = record["components"]
    if (digest_of(components), shared_key(components)) != (unit, key):
        return
    own = secret(store.directory, keeps=store.writes)
    for inputs, made in reversed(readable_entries(record["value"])):
        add_entry(store, components, received(inputs, context.environment, own), made)


def error_of(asked: Asked, answer: UnitAnswer, root: Path) -> LowerError:
    """Return the error with which a unit has failed; a file that the worker did not have is named."""
    told = answer.error or ProcessError("a worker failed without a word", where=answer.name).to_json()
    error = error_from_json(dict(told))
    names = (quoted or plain.rstrip(".,;:)") for quoted, plain in QUOTED.findall(f"{error.what} {error.found}"))
    missing = next((name for name in names if asked.snapshot.lacks(root, name)), None)
    hint = (
        f"`{missing}` is not sent to workers, for it is in no distribution of the project:"
        " name it in `inputs` of the build hook `lower`"
    )
    where = f"{error.where}, on the worker {answer.worker}" if error.where else f"the worker {answer.worker}"
    return type(error)(error.what, where=where, found=error.found, hint=error.hint if missing is None else hint)


def known_keys(store: Store) -> bytes:
    """Return the keys of all entries that a store has, 32 bytes each."""
    paths = (store.directory / "records").glob("[0-9a-f][0-9a-f]/[0-9a-f]*.json")
    return b"".join(sorted(bytes.fromhex(path.stem) for path in paths if len(path.stem) == 64))
