"""Recipe records: that a model was lowered for one recipe and verified, without its files.

```text
record of a recipe key   digests of the plan and of the delegates' files, keys of the partitions, what was compared
record of a cost key     the seconds that this took when something was compiled for it
```

A machine that makes one recipe leaves such a record and the partitions. The build that joins them puts the same program
together, takes it for verified if its digests are those of the record, and uploads or downloads no constants for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.manifest import LeftOut
from hatch_lower.format.metrics import VerifiedMethod
from hatch_lower.format.values import Digest
from hatch_lower.frozen import Frozen

SCHEMA = 1
COST_SCHEMA = 1


class UsedVersions(Frozen):
    """A backend that lowered a partition, as it was then."""

    backend: str
    specs: tuple[tuple[str, str], ...]  # the options, values in hexadecimal
    versions: object  # JSON of what its result depends on beside the partition


class RecipeRecord(Frozen):
    """What one exported model came to for one recipe."""

    plan: Digest
    files: tuple[Digest, ...]  # of the delegates and their data, in the manifest's order
    requirements: tuple[str, ...]  # of what the backends made
    partitions: tuple[Digest, ...]  # keys of their results
    used: tuple[UsedVersions, ...]
    verified: tuple[VerifiedMethod, ...]  # empty where the recipe asks for no comparison
    left_out: Mapping[str, tuple[LeftOut, ...]] = field(default_factory=dict)  # by method, where there are some


def recipe_key(export: Mapping[str, object]) -> str:
    """Return the key of a record, of the components of the `ExportKey` of the model with that recipe alone."""
    return digest_of(["recipe", SCHEMA, export])


def find_recipe(store: Store, key: str) -> RecipeRecord | None:
    value: Any = store.find(key)
    try:
        record: RecipeRecord = decode(RecipeRecord, value, "a recipe record")
    except ProgramError:
        return None
    return record


def has_partitions(store: Store, record: RecipeRecord) -> bool:
    return all(store.has(partition) for partition in record.partitions)


def is_shared(store: Store, key: str) -> bool:
    """Return whether the shared cache has a record and the partitions that it names."""
    record = find_recipe(store, key)
    return record is not None and all(store.is_shared(each) for each in (key, *record.partitions))


def is_whole(store: Store, key: str) -> bool:
    """Return whether a build can find a record and the partitions that it names."""
    record = find_recipe(store, key)
    return record is not None and has_partitions(store, record)


def share_recipe(store: Store, key: str) -> None:
    """Offer the shared cache what it lacks of a record and its partitions."""
    if store.remote is not None and (record := find_recipe(store, key)) is not None:
        for each in (*record.partitions, key):  # the record last: whoever sees it finds what it names
            store.share(each)


def put_recipe(store: Store, key: str, subject: str, export: Mapping[str, object], record: RecipeRecord) -> None:
    store.put(key, {"kind": "recipe", "subject": subject, **export}, encode(record))


def read_cost(store: Store, distribution: str, unit: str) -> float | None:
    """Return how many seconds a recipe of a model (`model/recipe`) took when it was last made, as far as is known."""
    value: Any = store.find(cost_key(distribution, unit))
    seconds = value.get("seconds") if isinstance(value, dict) else None
    # another machine may have written it
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    return float(seconds) if 0 <= seconds < math.inf else None


def put_cost(store: Store, distribution: str, unit: str, seconds: float) -> None:
    components = {"kind": "cost", "subject": unit, "distribution": distribution}
    store.put(cost_key(distribution, unit), components, {"seconds": round(seconds, 3)})


def cost_key(distribution: str, unit: str) -> str:
    return digest_of(["cost", COST_SCHEMA, distribution, unit])
