"""The configurations of kernels that a machine with a GPU has measured: block sizes, warps and stages.

```text
{"format": 1, "measured": {"sm_90": "NVIDIA H100 80GB HBM3, torch 2.13.0, triton 3.7.1"},
 "kernels": {"<digest of the kernel>": {"sm_90": {"XBLOCK": 256, "num_warps": 4, "num_stages": 1}}}}
```

A kernel has one configuration in a library for several architectures, because the launch is shared: of the oldest of
the architectures that the table has a configuration for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

FORMAT = 1
LEAST_GAIN = 0.02  # a smaller gain is noise: the first configuration is kept

Config: TypeAlias = Mapping[str, int]
# by kernel, configurations with their nanoseconds, in inductor's order
Times: TypeAlias = Iterable[tuple[str, Sequence[tuple[Config, int]]]]
# digest and configuration of each kernel, in order
Chosen: TypeAlias = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


def is_table(value: Any) -> bool:
    is_known = isinstance(value, Mapping) and value.get("format") == FORMAT
    return is_known and isinstance(value.get("kernels"), Mapping) and all(map(is_choice, value["kernels"].values()))


def is_choice(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(config, Mapping)
        and all(isinstance(number, int) and not isinstance(number, bool) for number in config.values())
        for config in value.values()
    )


def choose(table: Mapping[str, Any], arch: Sequence[str]) -> Chosen:
    """Return the configurations of a table for a library with code for `arch`, the oldest first."""
    return tuple(sorted(chosen(table.get("kernels", {}), arch)))


def chosen(kernels: Mapping[str, Mapping[str, Config]], arch: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for digest, configs in kernels.items():
        named = next((name for name in arch if name in configs), None)
        if named is not None:
            yield digest, tuple(sorted(configs[named].items()))


def table_of(choices: Chosen, arch: str) -> dict[str, object]:
    """Return choices as a table, from which `choose` makes the same choices."""
    return {"format": FORMAT, "kernels": {digest: {arch: dict(config)} for digest, config in choices}}


def fastest(times: Times) -> dict[str, Config]:
    """Return the fastest configuration of each kernel, or the first where none is clearly faster."""
    added: dict[str, list[tuple[Config, int]]] = {}
    for digest, measured in times:
        before = added.get(digest)
        if before is None:
            added[digest] = list(measured)
        elif [config for config, _ in before] == [config for config, _ in measured]:
            added[digest] = [(config, one + more) for (config, one), (_, more) in zip(before, measured, strict=True)]
    best: dict[str, Config] = {}
    for digest, measured in added.items():
        if not measured:
            continue
        first = measured[0]
        least = min(measured, key=lambda row: row[1])
        best[digest] = least[0] if least[1] < first[1] * (1 - LEAST_GAIN) else first[0]
    return best


def with_measured(table: Mapping[str, Any], arch: str, machine: str, best: Mapping[str, Config]) -> dict[str, object]:
    """Return a table with the choices that were measured for an architecture; those of others stay."""
    kernels: dict[str, dict[str, Config]] = {
        digest: {name: config for name, config in configs.items() if name != arch}
        for digest, configs in table.get("kernels", {}).items()
    }
    for digest, config in best.items():
        kernels.setdefault(digest, {})[arch] = config
    return {
        "format": FORMAT,
        "measured": {**table.get("measured", {}), arch: machine},
        "kernels": {digest: dict(sorted(kernels[digest].items())) for digest in sorted(kernels) if kernels[digest]},
    }
