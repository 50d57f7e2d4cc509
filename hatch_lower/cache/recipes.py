"""Recipe records: the fact that a model was lowered for a recipe and verified, without the files.

```text
record of a recipe key   digests of the plan and of the delegates' files, keys of the partitions, compared outputs
record of a cost key     the seconds that lowering took when a partition was compiled
```

A machine that makes a recipe stores a record and the partitions. The build that joins the recipes assembles the same
program from the partitions. If the digests equal the record's, the program counts as verified. No constants are sent.
A recipe that no machine has compared yet, for want of a device, is compared as soon as a machine with the device joins
or makes the recipe.
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
from hatch_lower.format.record import VerifiedMethod
from hatch_lower.format.values import Digest
from hatch_lower.frozen import Frozen

SCHEMA = 1
COST_SCHEMA = 1


class UsedVersions(Frozen):
    """A backend that lowered a partition, with options and versions at that time."""

    backend: str
    specs: tuple[tuple[str, str], ...]  # the options, values in hexadecimal
    versions: object  # JSON of everything beside the partition that the backend's result depends on


class RecipeRecord(Frozen):
    """The result of lowering an exported model for a recipe."""

    plan: Digest
    files: tuple[Digest, ...]  # of the delegates and their data, in the manifest's order
    requirements: tuple[str, ...]  # of the delegates' files
    partitions: tuple[Digest, ...]  # keys of the partitions' results
    used: tuple[UsedVersions, ...]
    verified: tuple[VerifiedMethod, ...]  # empty for a recipe that is not compared
    left_out: Mapping[str, tuple[LeftOut, ...]] = field(default_factory=dict)  # by method, without empty entries
    not_compared: str = ""  # as in the recipe's `RecipeEntry`


def recipe_key(export: Mapping[str, object]) -> str:
    """Return the key of a recipe record; `export` has the components of the `ExportKey` with this recipe alone."""
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


def is_recipe_shared(store: Store, key: str) -> bool:
    """Return whether the shared cache has a record and the record's partitions."""
    record = find_recipe(store, key)
    return record is not None and all(store.is_shared(each) for each in (key, *record.partitions))


def is_recipe_whole(store: Store, key: str) -> bool:
    """Return whether a build can find a record and the record's partitions."""
    record = find_recipe(store, key)
    return record is not None and has_partitions(store, record)


def share_recipe(store: Store, key: str) -> None:
    """Offer a record and its partitions to the shared cache, except entries that the cache has already."""
    if store.remote is not None and (record := find_recipe(store, key)) is not None:
        for each in (*record.partitions, key):  # the record last: a reader of the record finds all partitions
            store.share(each)


def put_recipe(store: Store, key: str, subject: str, export: Mapping[str, object], record: RecipeRecord) -> None:
    store.put(key, {"kind": "recipe", "subject": subject, **export}, encode(record))


def read_cost(store: Store, distribution: str, unit: str) -> float | None:
    """Return the seconds that the last lowering of a recipe (`model/recipe`) took, or `None` if unknown."""
    value: Any = store.find(cost_key(distribution, unit))
    seconds = value.get("seconds") if isinstance(value, dict) else None
    # the value may come from another machine
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    return float(seconds) if 0 <= seconds < math.inf else None


def put_cost(store: Store, distribution: str, unit: str, seconds: float) -> None:
    components = {"kind": "cost", "subject": unit, "distribution": distribution}
    store.put(cost_key(distribution, unit), components, {"seconds": round(seconds, 3)})


def cost_key(distribution: str, unit: str) -> str:
    return digest_of(["cost", COST_SCHEMA, distribution, unit])
