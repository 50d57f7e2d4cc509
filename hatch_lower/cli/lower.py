"""`hatch-lower lower`: some units of the next build are made here and kept, for a build that joins them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cli.arguments import is_sent, opened_context, root_option, shared_cache
from hatch_lower.cli.output import count, show
from hatch_lower.errors import CacheError
from hatch_lower.hatch.terminal import method_table_lines, not_compared_lines

if TYPE_CHECKING:
    from hatch_lower.cache.store import Store
    from hatch_lower.config.settings import Settings
    from hatch_lower.format.results import MethodRow


@click.command()
@click.option(
    "--only",
    multiple=True,
    metavar="MODEL[/RECIPE]",
    help="A model, or one recipe of it. May be given several times, and hold several, with spaces between them."
    " Default: everything.",
)
@click.option("--shard", metavar="I/N", help="Of what is selected, the shard I of N.")
@root_option
def lower(only: Sequence[str], shard: str | None, root: Path) -> None:
    """Make units of the next build, for the cache.

    Each model is exported here, lowered for the recipes that are asked for, and verified. Cached units are not
    made again. No wheel is built: `hatch build` joins the units in the cache. The machines of the shards 1/N to N/N
    make everything once.
    """
    from hatch_lower.driver.units import find_units, read_shard, select_units, shard_of

    numbers = None if shard is None else read_shard(shard)
    names = [name for text in only for name in text.split()]
    with opened_context(root) as context:
        refuse_unkept(context.store)
        shared = is_sent(context.settings)
        chosen = select_units(find_units(context, shared=shared), names)
        if numbers is not None:
            chosen = shard_of(chosen, *numbers)
        missing = [unit.name for unit in chosen if not unit.cached]
        rows: Sequence[MethodRow] = ()
        if missing:
            from hatch_lower.driver.units import make_missing

            rows = make_missing(context, missing, shared=shared)
        place = place_line(context.settings, context.store.directory)
    show([*method_table_lines(rows), *not_compared_lines(rows, by_settings=False)], err=True)
    done = ", ".join([*([f"{len(missing)} made"] if missing else []), f"{len(chosen) - len(missing)} cached before"])
    show([f"{count(len(chosen), 'unit')}: {done}; {place}"])


def refuse_unkept(store: Store) -> None:
    if not store.writes:
        raise CacheError(
            "what is made here is to be kept in the cache",
            where="environment variable `HATCH_LOWER_CACHE`",
            found=f"`{store.mode}`, with which nothing is kept",
            hint="unset it; `frozen` is for the build that joins what was made",
        )


def place_line(settings: Settings, directory: Path) -> str:
    policy = shared_cache(settings)
    if policy is None:
        return f"nothing leaves this machine, for no shared cache is named; kept in {directory}"
    if not policy.push:
        return (
            f"nothing leaves this machine, for {policy.place()} is only read (HATCH_LOWER_REMOTE_PUSH=1 sends);"
            f" kept in {directory}"
        )
    return f"kept in {policy.place()}"
