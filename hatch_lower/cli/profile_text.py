"""A profile as a table: the same lines of several recipes side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hatch_lower.bench.profile.rows import Profile, RecipeProfile, Row
from hatch_lower.cli.output import count
from hatch_lower.hatch.terminal import table_lines

SHORT = 0.001  # the share of a call below which an operation is not shown on a line of its own

Key = tuple[str, str, str]  # source, module, operation


def profile_lines(profile: Profile, refused: Mapping[str, str], *, is_all: bool = False) -> Iterator[str]:
    calls, threads = count(profile.calls, "call"), count(profile.threads, "thread")
    yield f"{profile.model}.{profile.method}, {calls} of each recipe, {threads}"
    yield from profile.notes
    yield ""
    yield from table_lines(
        [
            ("recipe", "call", "attributed", "overhead"),
            *(
                (name, duration(each.seconds), share(each.attributed), share(each.overhead))
                for name, each in profile.recipes.items()
            ),
        ]
    )
    for name, each in profile.recipes.items():
        for note in each.notes:
            yield f"{name}: {note}"
    for name, reason in refused.items():
        yield f"{name} cannot run here: {reason}"
    yield ""
    rows = rows_of(profile, 0.0 if is_all else SHORT)
    yield from table_lines([("source", "module", "operation", *profile.recipes), *rows])


def rows_of(profile: Profile, least: float) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table; what takes longest in any recipe first, what is not attributed last."""
    times: dict[Key, dict[str, float]] = {}
    for name, recipe in profile.recipes.items():
        for row in recipe.rows:
            own = times.setdefault(key_of(row), {})
            own[name] = own.get(name, 0.0) + row.seconds
    others: list[Mapping[str, float]] = []
    for key in sorted(times, key=lambda key: (not key[0], -max(times[key].values()))):
        if key[0] and all(seconds < least * profile.recipes[name].seconds for name, seconds in times[key].items()):
            others.append(times[key])
        else:
            yield *key, *cells(profile.recipes, times[key])
    if others:
        added = {name: sum(each.get(name, 0.0) for each in others) for name in profile.recipes}
        yield "", "", count(len(others), "operation") + f" of less than {share(SHORT)}", *cells(profile.recipes, added)
    yield (
        "",
        "",
        "not attributed",
        *cells(profile.recipes, {n: each.unattributed for n, each in profile.recipes.items()}),
    )


def cells(recipes: Mapping[str, RecipeProfile], seconds: Mapping[str, float]) -> Sequence[str]:
    return [
        f"{duration(seconds[name])} {share(seconds[name] / recipe.seconds):>7}" if name in seconds else ""
        for name, recipe in recipes.items()
    ]


def key_of(row: Row) -> Key:
    return (row.source, row.module, row.op) if row.source else ("", "", f"{row.op} ({row.engine})")


def duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(seconds) * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def share(part: float) -> str:
    return f"{part:.1%}"
