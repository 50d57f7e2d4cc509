"""Units that are recipes, as a worker makes them: the project is unpacked, and then built as far as the recipe goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hatch_lower.build.sources import urls_of
from hatch_lower.build.spread.make import make_units, narrowed
from hatch_lower.build.spread.parts import asking
from hatch_lower.build.spread.protocol import Lack, LacksError, UnitRequest
from hatch_lower.build.spread.snapshot import HostileArchiveError, Relocated, relocated, unpack
from hatch_lower.build.spread.units import Unit
from hatch_lower.build.spread.workplace import Workplace
from hatch_lower.errors import FetchError, ProgramError, size_text
from hatch_lower.format.codec import decode
from hatch_lower.frozen import Frozen

SNAPSHOT = "snapshot"  # the role of the attachment
TREE = "tree"  # the folder in which it is unpacked


class RecipeBody(Frozen):
    project: Relocated
    unit: Unit


def make_recipe(request: UnitRequest, given: Mapping[str, bytes], place: Workplace) -> None:
    """Make a recipe; a `LacksError` if another worker may be able to, a `NeedsError` if it needs parts first."""
    tree = place.folder / TREE
    try:
        body: RecipeBody = decode(RecipeBody, request.body, "the unit")
        tree.mkdir()
        settings, view = relocated(body.project, tree)
        unpack(given[SNAPSHOT], tree)
        settings.root.mkdir(parents=True, exist_ok=True)
    except (ProgramError, HostileArchiveError, KeyError) as error:
        found = f"`{error}` is missing" if isinstance(error, KeyError) else str(error)
        raise LacksError(Lack("what was sent with the unit", "", found)) from error
    except OSError as error:
        lack = Lack(f"room for {size_text(len(given[SNAPSHOT]))} of files", "", error.strerror or str(error))
        raise LacksError(lack) from error
    store = replace(place.store, remote=None)  # what its child processes keep is noted, and nothing of before
    sources = {}
    if urls := urls_of(narrowed(settings, [body.unit]).models):
        from hatch_lower.build.weight_sources import obtain_sources

        try:
            sources = obtain_sources(place.context(settings, view, store, None), urls)
        except FetchError as error:  # this machine may not reach what another one does
            raise LacksError(Lack(f"weights at {error.where}", "", f"{error.what}: {error.found}")) from error
    with asking(given, place) as may_ask:
        answers = make_units(place.context(settings, view, store, may_ask), [body.unit], sources)
    for answer in answers:
        if any(place.store.find_record(key) is None for key in answer.recipes.values()):
            raise LacksError(Lack("room for what was made", "", "the unit's store could not be written"))
