"""Execution providers of ONNX Runtime, with options from a recipe's table to a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from hatch_lower.backends.onnxruntime.library import CPU, DISTRIBUTIONS
from hatch_lower.errors import nearest

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
SUFFIX = "ExecutionProvider"
NUMBER, FLAG, BYTES = "a number from 0", "true or false", "a number of bytes from 1"
# a provider's options in a recipe's table, with the valid values in words
OPTIONS: Mapping[str, Mapping[str, str]] = {
    CUDA: {"device-id": NUMBER, "use-tf32": FLAG},
    TENSORRT: {"device-id": NUMBER, "workspace": BYTES, "engine-cache": FLAG},
}
LEAST = {NUMBER: 0, BYTES: 1}


class Provider(NamedTuple):
    name: str
    options: Mapping[str, Any] = MappingProxyType({})

    def to_json(self) -> object:
        return {"name": self.name, **self.options} if self.options else self.name


CPU_ALONE = (Provider(CPU),)


def read_provider(value: Any) -> Provider:
    """Return the provider in a recipe's table, or in the facts of a partition."""
    if isinstance(value, str):
        return Provider(value)
    return Provider(str(value["name"]), {key: option for key, option in value.items() if key != "name"})


def provider_problems(values: object) -> Iterator[str]:
    """Yield the faults of the option `providers` in a recipe's table."""
    if not isinstance(values, (list, tuple)) or not values:
        yield f"`providers` must be a list of names such as `{CPU}`, or of tables with a `name`, but is {values!r}"
        return
    found = []
    for value in values:
        name = value.get("name") if isinstance(value, Mapping) else value
        if not isinstance(name, str) or not name.endswith(SUFFIX):
            yield f"`providers` holds {value!r}, but ONNX Runtime's names are like `{CPU}`"
            continue
        found.append(name)
        if isinstance(value, Mapping):
            yield from option_problems(name, {key: option for key, option in value.items() if key != "name"})
    if again := next((name for name in found if found.count(name) > 1), None):
        yield f"`providers` names `{again}` twice"
    chosen = [value.get("device-id") for value in values if isinstance(value, Mapping)]
    gpus = {number for number in chosen if isinstance(number, int)}
    if len(gpus) > 1:
        yield f"`device-id` is {' and '.join(map(str, sorted(gpus)))}: a recipe computes on one GPU"
    builds = {DISTRIBUTIONS[name]: name for name in found if name in DISTRIBUTIONS}
    if len(builds) > 1:
        yield f"no build of ONNX Runtime has {' and '.join(f'`{name}`' for name in builds.values())}: take two recipes"


def option_problems(provider: str, options: Mapping[str, object]) -> Iterator[str]:
    known = OPTIONS.get(provider, {})
    for key, value in options.items():
        wanted = known.get(key)
        if wanted is None:
            names = ", ".join(f"`{name}`" for name in known) or "none"
            yield f"`{key}` is no option of `{provider}`: {nearest(key, known)}; its options are {names}"
        elif not fits(value, wanted):
            yield f"`{key}` of `{provider}` must be {wanted}, but is {value!r}"


def fits(value: object, wanted: str) -> bool:
    if wanted == FLAG:
        return isinstance(value, bool)
    # Python takes true and false for numbers
    return isinstance(value, int) and not isinstance(value, bool) and value >= LEAST[wanted]


def on_cuda(providers: Sequence[Provider]) -> bool:
    return any(provider.name in OPTIONS for provider in providers)


def session_providers(
    providers: Sequence[Provider], device: str, cache: Callable[[], str]
) -> list[str | tuple[str, dict[str, str]]]:
    """Return the providers as a session takes them.

    Args:
        device: `cuda:1` for the GPU 1. Without a number, as in a wheel of an earlier hatch-lower, the GPU is 0.
        cache: gives the folder for TensorRT's engines.
    """
    _, _, number = device.partition(":")
    found: list[str | tuple[str, dict[str, str]]] = []
    for name, options in providers:
        if name not in OPTIONS:
            found.append(name)
            continue
        given = {"device_id": number or "0"}
        if name == CUDA:
            # ONNX Runtime would compute products of float32 with 10 bits of mantissa
            given["use_tf32"] = "1" if options.get("use-tf32", False) else "0"
        else:
            if "workspace" in options:
                given["trt_max_workspace_size"] = str(options["workspace"])
            if options.get("engine-cache", False):
                given |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": cache()}
        found.append((name, given))
    return found
