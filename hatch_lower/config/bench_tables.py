"""The tables of `hatch-lower bench`: limits, and the ways in which methods are called.

A field is `None` where its table says nothing: a less specific table speaks then, and in the end the `default` in the
field's metadata.
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
    """How the methods are called, and limits of what their calls are and cost. Of the tables that speak of a method,
    the last in this order that sets a limit decides: `bench`, `bench.recipes.<name>`, `bench.models.<name>`,
    `bench.models.<name>.recipes.<name>`, `bench.models.<name>.methods.<name>`.

    A is what is measured, B what it is compared with; a limit against B judges nothing where there is no B."""

    max_call_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.05})
    """Time of a call of A, divided by that of B."""
    max_instructions_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.02})
    """Instructions of a call, and of a load, of A, divided by those of B; where the machine can count them. The table
    of a method sets it for calls only."""
    max_delegated_loss: float | None = field(default=None, metadata={**SHARE, "default": 0.05})
    """The share of operations in delegates in B, less that in A: 0.05 allows 90 % where B has 95 %."""
    min_delegated: float | None = field(default=None, metadata=SHARE)
    """The share of A's operations that are in delegates, from 0 to 1."""
    max_kernels: int | None = field(default=None, metadata={"minimum": 0})
    """Kernels in A's native code."""
    max_error: float | None = field(default=None, metadata={"minimum": 0, "default": ANY_FINITE})
    """The largest absolute difference between A's outputs and eager's. The default lets any finite one pass: outputs of
    another shape or dtype, or with NaN where eager's have none, are beyond every limit."""
    sizes: tuple[Mapping[str, int], ...] | None = field(default=None, metadata={"minimum": 1})
    """Sizes with which methods are called, each a table of dynamic dimensions: `[{batch = 1}, {batch = 32}]`. A method
    takes of each what it has, and the sizes of its example inputs for the rest; `{}` is the example inputs as they are.
    Default: only these."""
    threads: tuple[int, ...] | None = field(default=None, metadata={"minimum": 1, "default": (1,)})
    """Numbers of threads with which each size is called."""


class RecipeLimits(MethodLimits):
    """Limits of what does not depend on the method. They stand in the same tables, but not in
    `bench.models.<name>.methods.<name>`."""

    max_load_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.10})
    """Time of a load of A in a fresh process, divided by that of B. A difference of up to 5 ms is none."""
    max_memory_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.10})
    """Memory that loading and calling A takes, divided by that of B. A difference of up to 4 MiB is none."""


class ModelLimits(RecipeLimits):
    """What differs for one model. The settings of recipes and of methods may stand here, too."""

    recipes: Mapping[str, RecipeLimits] = field(default_factory=dict)
    """What differs for the model lowered for one recipe: the settings of recipes and of methods."""
    methods: Mapping[str, MethodLimits] = field(default_factory=dict)
    """What differs for one method of the model, whatever the recipe: the settings of methods."""


class BenchTable(RecipeLimits):
    """What `hatch-lower bench` measures, and how much worse a model may become. It shapes no program: a change of it
    exports and lowers nothing. Beside these settings, those of recipes and of methods below may stand here."""

    max_wheel_growth: str | None = field(default=None, metadata={**GROWTH, "default": "5%"})
    """By how much A's wheel may be larger than B's: a share (`"5%"`) or a size (`"200 kB"`, `"1.5 MiB"`). The units are
    `B`, `kB`, `MB` and `GB` in powers of 1000, `KiB`, `MiB` and `GiB` in powers of 1024."""
    budget: int = field(default=120, metadata={"minimum": 1, "maximum": 86_400})
    """Seconds that may be spent on timing. What cannot be told from chance by then is "not decided"."""
    recipes: Mapping[str, RecipeLimits] = field(default_factory=dict)
    """What differs for one recipe, in all models: the settings of recipes and of methods below."""
    models: Mapping[str, ModelLimits] = field(default_factory=dict)
    """What differs for one model, described below."""
