"""Exact figures of a side: counted from packaged files, so equal on every machine. No program is loaded.

Figures of the side's build are added if the side was built. The largest error against eager needs a run: see `errors`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from packaging.utils import canonicalize_name

from hatch_lower.backends.cuda.cubins import kernels_in
from hatch_lower.backends.reference.run import LENGTH_BYTES, split_blob
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.config.requirements import read_requirement
from hatch_lower.driver.contents import WheelModels
from hatch_lower.errors import ProgramError
from hatch_lower.format.constants import DelegateEntry
from hatch_lower.format.graph import DelegateCall, walk_instructions
from hatch_lower.format.manifest import RecipeEntry
from hatch_lower.format.plan import Plan, read_plan
from hatch_lower.format.weights import Weights, is_aligned, spans_outside

# Prefix of the C function that Inductor writes for each loop nest or group of fused loop nests. The functions are
# exported, because the calling code is compiled separately.
KERNEL = "cpp_"
# backends whose delegates use mapped constants, or no constants
BINDS_IN_PLACE = ("aoti", "null")
MAGIC = b"\x7fELF"
FILE_LIMIT = 1 << 30  # bytes of a library that is read into memory


def exact_figures(side: BenchSide) -> dict[FigureSubject, dict[str, float]]:
    """Return every known exact figure of a side except `error`, and the figures of its build."""
    figures = {
        subject: found
        for contents in side.contents
        for name in contents.models
        for subject, found in model_figures(contents, name, side.build.get(FigureSubject(name), {}))
    }
    if side.wheel is not None:
        figures[FigureSubject()] = {"wheel-bytes": side.wheel.stat().st_size}
    return figures


def model_figures(
    contents: WheelModels, name: str, build: Mapping[str, float]
) -> Iterator[tuple[FigureSubject, dict[str, float]]]:
    model = contents.manifest.models[name]
    yield FigureSubject(name), {"constants-bytes": 0 if model.constants is None else model.constants.size, **build}
    for recipe in model.order:
        for subject, found in recipe_figures(contents, model.recipes[recipe], contents.weights(name)):
            yield FigureSubject(name, recipe, subject.method), found


def recipe_figures(
    contents: WheelModels, recipe: RecipeEntry, weights: Weights | None
) -> Iterator[tuple[FigureSubject, dict[str, float]]]:
    plan = contents.plan(recipe)
    files = {file.path: file for file in recipe.delegates}
    if unlisted := {delegate.file for delegate in plan.delegates} - files.keys():
        raise ProgramError(
            "the plan and the manifest contradict each other",
            where=f"{contents.place}/{recipe.plan.path}",
            found=f"the delegate `{min(unlisted):.80}`, which the manifest does not list",
            hint="build the wheel again",
        )
    data = {path: contents.map(file) for path, file in files.items()}
    native = {path: content for path, content in data.items() if content[: len(MAGIC)] == MAGIC}
    figures: dict[str, float] = {
        "program-bytes": recipe.plan.size + recipe.debug.size,
        "delegate-bytes": sum(file.size for file in files.values()),
        "native-bytes": sum(files[path].size for path in native),
        "requirements": len({required_distribution(text) for text in recipe.requirements}),
    }
    copied = copied_constants(contents, plan, data, weights)
    if copied is not None:
        figures["copied-constants"] = copied
    if recipe.metric is not None:
        figures["metric"] = recipe.metric.value
    yield FigureSubject(), figures
    kernels = kernels_of(plan, native)
    for name, method in recipe.methods.items():
        of_method: dict[str, float] = {"operations": method.nodes, "partitions": method.partitions}
        if method.nodes:
            of_method["delegated"] = method.delegated / method.nodes
        calls = [each for _, each in walk_instructions(plan.methods[name].graph) if isinstance(each, DelegateCall)]
        called = {plan.delegates[call.delegate].file for call in calls} & native.keys()
        if called and called <= kernels.keys():
            of_method |= combined([kernels[file] for file in called])
        yield FigureSubject(method=name), of_method


def combined(libraries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the number of kernels of several libraries, and the most of all other figures."""
    figures = {name: max(each.get(name, 0) for each in libraries) for each in libraries for name in each}
    return {**figures, "kernels": sum(each["kernels"] for each in libraries)}


def required_distribution(requirement: str) -> str:
    known = read_requirement(requirement)
    return requirement if known is None else canonicalize_name(known.name)


def copied_constants(
    contents: WheelModels, plan: Plan, data: Mapping[str, memoryview], weights: Weights | None
) -> int | None:
    """Return the number of constants that a load copies into memory instead of mapping the file; `None` if unknown.

    Constants that share memory count once, and empty constants not at all. A recipe copies

    - its state, the constants that a method changes: each loaded instance has its own state;
    - weights outside of the wheel whose elements are not aligned in the file;
    - all weights of a `reference` delegate, whose file is read, not mapped.

    All other constants are views of the mapped constants file, for any dtype and layout, and `aoti` computes on these
    views: its libraries hold, fold and move no constants. Other engines may pack weights, and so may backends that are
    not shipped: a recipe with a delegate of another engine has no figure.
    """
    if not set(plan.backends) <= {*BINDS_IN_PLACE, "reference"}:
        return None
    state = mutable_storages(plan)
    count = len(state)
    if weights is not None:
        outside = spans_outside(plan.storages, weights, contents.place)
        count += sum(not is_aligned(plan.storages[at], span) for at, span in outside.items() if at not in state)
    for delegate in plan.delegates:
        if delegate.backend == "reference":
            inner = inner_plan(contents, delegate, data[delegate.file])
            own = mutable_storages(inner)
            held = {each.key for at, each in enumerate(inner.storages) if each.length and at not in own}
            count += len(own) + len(held)
    return count


def mutable_storages(plan: Plan) -> set[int]:
    indices = {constant.storage for constant in plan.constants.values() if constant.mutable}
    return {index for index in indices if plan.storages[index].length}


def inner_plan(contents: WheelModels, delegate: DelegateEntry, blob: memoryview) -> Plan:
    where = f"{contents.place}/{delegate.file}"
    end = LENGTH_BYTES + int.from_bytes(blob[:LENGTH_BYTES], "little")
    text, _ = split_blob(bytes(blob[:end]), where)
    return read_plan(text, where)


def kernels_of(plan: Plan, native: Mapping[str, memoryview]) -> dict[str, Mapping[str, float]]:
    """Return the figures of the kernels in each library of `aoti` and `cuda`."""
    readers = {"aoti": loops_in, "cuda": gpu_kernels_in}
    known = {delegate.file: readers[delegate.backend] for delegate in plan.delegates if delegate.backend in readers}
    return {
        file: found
        for file in known.keys() & native.keys()
        if len(native[file]) <= FILE_LIMIT and (found := read(known[file], native[file])) is not None
    }


Reader: TypeAlias = Callable[[memoryview], dict[str, float]]


def read(reader: Reader, library: memoryview) -> dict[str, float] | None:
    try:
        return reader(library)
    except Exception:  # the parser raises any exception for a damaged file
        return None


def loops_in(library: memoryview) -> dict[str, float]:
    from elftools.elf.elffile import ELFFile  # needed for native code only

    file = ELFFile(io.BytesIO(library))
    table: Any = file.get_section_by_name(".symtab") or file.get_section_by_name(".dynsym")
    symbols = () if table is None else table.iter_symbols()
    names = (str(symbol.name) for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF")
    return {"kernels": sum(name.startswith(KERNEL) for name in names)}


def gpu_kernels_in(library: memoryview) -> dict[str, float]:
    kernels = kernels_in(library)
    most = {
        "kernel-registers": [kernel.registers for kernel in kernels],
        "kernel-shared-bytes": [kernel.shared for kernel in kernels],
        "kernel-stack-bytes": [kernel.stack for kernel in kernels],
    }
    return {"kernels": len(kernels), **{name: max(values) for name, values in most.items() if values}}
