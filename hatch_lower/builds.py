"""Distributions that install one importable package, each with another build of a library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# By the distribution whose contents each other build has: ONNX Runtime's builds all have the CPU's provider. Two of
# the builds in one environment overwrite each other's files.
BUILDS: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": (
        *("onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-qnn", "onnxruntime-rocm"),
        *("onnxruntime-migraphx", "onnxruntime-cann", "onnxruntime-vitisai", "onnxruntime-webgpu"),
        *("onnxruntime-training", "onnxruntime-silicon"),
    )
}
PLAIN: Mapping[str, str] = {build: plain for plain, builds in BUILDS.items() for build in (plain, *builds)}


def builds_of(name: str) -> tuple[str, ...]:
    """Return the distributions with a build of a distribution's library, the named distribution first."""
    plain = PLAIN.get(name)
    if plain is None:
        return (name,)
    return (name, *(build for build in (plain, *BUILDS[plain]) if build != name))


def contains(build: str, name: str) -> bool:
    """Return whether a distribution has all that a distribution called `name` has."""
    return name in (build, PLAIN.get(build))


def clashing_builds(names: Iterable[str]) -> tuple[str, ...]:
    """Return several distributions with builds of one library; empty if no two of the names clash."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if name in PLAIN:
            found.setdefault(PLAIN[name], []).append(name)
    return next((tuple(builds) for builds in found.values() if len(builds) > 1), ())
