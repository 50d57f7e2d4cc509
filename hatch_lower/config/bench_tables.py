"""The tables of `hatch-lower bench`: limits, and the ways in which methods are called.

A field is `None` where its table lacks the setting: then a less specific table decides, and at last the `default` in
the field's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from hatch_lower.frozen import Frozen

SHARE = {"minimum": 0, "maximum": 1}
ANY_FINITE = 1e300
GROWTH = {
    "pattern": r"[0-9]+(\.[0-9]+)?(%| ?(B|kB|MB|GB|KiB|MiB|GiB))",
    "words": "a share such as `5%`, or a size such as `200 kB` or `1.5 MiB`",
}


class MethodLimits(Frozen):
    """Ways of calling methods, and limits of the calls. Of the tables for a method, the last in this order that sets a
    limit decides: `bench`, `bench.recipes.<name>`, `bench.models.<name>`, `bench.models.<name>.recipes.<name>`,
    `bench.models.<name>.methods.<name>`.

    A is the measured side, B the side to compare with. A limit against B judges only where B exists."""

    max_call_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.05})
    """Time of a call of A, divided by the time of B."""
    max_instructions_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.02})
    """Instructions of a call, and of a load, of A, divided by the number of B; where the machine can count
    instructions. In the table of a method the limit is for calls only."""
    max_delegated_loss: float | None = field(default=None, metadata={**SHARE, "default": 0.05})
    """Share of operations in delegates in B, less the share in A: 0.05 allows 90 % where B has 95 %."""
    min_delegated: float | None = field(default=None, metadata=SHARE)
    """Share of A's operations that are in delegates, from 0 to 1."""
    max_kernels: int | None = field(default=None, metadata={"minimum": 0})
    """Kernels in A's native code."""
    max_error: float | None = field(default=None, metadata={"minimum": 0, "default": ANY_FINITE})
    """Largest absolute difference between A's outputs and eager's. The default allows any finite difference. Outputs of
    another shape or dtype, or with NaN where eager has none, are beyond every limit."""
    sizes: tuple[Mapping[str, int], ...] | None = field(default=None, metadata={"minimum": 1})
    """Sizes for the calls, each a table of dynamic dimensions: `[{batch = 1}, {batch = 32}]`. A method takes the
    dimensions that it has, and the sizes of its example inputs for the rest; `{}` is the example inputs. Default: only
    the example inputs."""
    threads: tuple[int, ...] | None = field(default=None, metadata={"minimum": 1, "default": (1,)})
    """Numbers of threads with which each size is called."""


class RecipeLimits(MethodLimits):
    """Limits that do not depend on the method. The same tables can contain these limits, except
    `bench.models.<name>.methods.<name>`."""

    max_load_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.10})
    """Time of a load of A in a fresh process, divided by the time of B. Differences of up to 5 ms are ignored."""
    max_memory_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.10})
    """Memory that loading and calling A takes, divided by the memory of B. Differences of up to 4 MiB are ignored."""


class ModelLimits(RecipeLimits):
    """Settings of a single model. The table can also contain the settings of recipes and of methods."""

    recipes: Mapping[str, RecipeLimits] = field(default_factory=dict)
    """Settings of recipes and of methods, for the model lowered for a recipe."""
    methods: Mapping[str, MethodLimits] = field(default_factory=dict)
    """Settings of methods, for a method of the model in every recipe."""


class BenchTable(RecipeLimits):
    """Measurements of `hatch-lower bench`, and limits for the change of a model. The settings shape no program: a
    change exports and lowers nothing. The table can also contain the settings of recipes and of methods below."""

    max_wheel_growth: str | None = field(default=None, metadata={**GROWTH, "default": "5%"})
    """Growth of A's wheel over B's: a share (`"5%"`) or a size (`"200 kB"`, `"1.5 MiB"`). The units are `B`, `kB`, `MB`
    and `GB` in powers of 1000, `KiB`, `MiB` and `GiB` in powers of 1024."""
    budget: int = field(default=120, metadata={"minimum": 1, "maximum": 86_400})
    """Seconds for timing. A comparison that is open by then is "not decided"."""
    recipes: Mapping[str, RecipeLimits] = field(default_factory=dict)
    """Settings of recipes and of methods, for a recipe in all models."""
    models: Mapping[str, ModelLimits] = field(default_factory=dict)
    """Settings of single models, described below."""
