"""Exact figures: what is packaged, counted, and what a loaded model really holds beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.lowered import floats, lowered_model, write_lowered
from support.plans import call, constant, delegate_entry, method, plan_value
from support.scenarios import built_scenario, only, unpack
from support.shared import Shared
from support.venv import run

from hatch_lower.backends.cuda.cubins import PTX, SAME_MAJOR, Image, pack_images
from hatch_lower.cli.measure.exact import exact_figures, loops_in, read
from hatch_lower.cli.measure.figures import METRICS, Figures, FigureSubject
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.driver.contents import find_contents
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.files import PackagedFolder, open_folder

OF_GPUS = {"kernel-registers", "kernel-shared-bytes", "kernel-stack-bytes"}
EXACT = (
    {name for name, metric in METRICS.items() if metric.tier == "exact"} - OF_GPUS - {"metric"}
)  # of models without metrics
ELF = b"\x7fELF" + bytes(60)
# The whole exact tier: of a wheel, and of the folder that it is unpacked to.
SCRIPT = """
import os, sys
from pathlib import Path
from hatch_lower.cli.measure.errors import measure_errors
from hatch_lower.cli.measure.exact import exact_figures
from hatch_lower.cli.measure.json_report import report_text
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.driver.contents import find_contents
from hatch_lower.runtime.files import open_folder

wheel, folder, cores = Path(sys.argv[1]), open_folder(Path(sys.argv[2])), int(sys.argv[3])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
figures = exact_figures(BenchSide(wheel.name, tuple(find_contents(wheel)), {}, wheel))
for subject, found in measure_errors({"mixed": folder}, wheel.name, 300).figures.items():
    figures[subject] |= found
assert "torch" not in sys.modules
print(report_text({}, {"A": figures}, {}, (), wheel.parent))
"""


def side_of(path: Path, build: Figures | None = None) -> BenchSide:
    return BenchSide(
        path.name, tuple(find_contents(path)), {}, path if path.suffix == ".whl" else None, None, build or {}
    )


def delegate(backend: str, file: str) -> dict[str, Any]:
    return delegate_entry(backend, file=file)


def plan_of(*delegates: dict[str, Any], calls: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a plan whose method calls its first delegates, which take and return nothing."""
    forward = method([], [call(index, [], [], index) for index in range(calls)], tree=None)
    return plan_value(forward=forward, delegates=delegates, **fields)


def figures_of(folder: Path, *, tensors: Any = None, **recipe: Any) -> dict[str, dict[str, float]]:
    model = lowered_model(folder, "net", {"default": recipe}, tensors=tensors)
    return {
        str(subject): found for subject, found in exact_figures(side_of(write_lowered(folder, {"net": model}))).items()
    }


# What is counted.


def test_bytes_operations_and_requirements_are_those_of_the_manifest(tmp_path: Path) -> None:
    blobs = {"net/delegates/a.onnx": b"model", "net/delegates/a.blob": b"data"}
    figures = figures_of(
        tmp_path / "_lowered",
        tensors={"w": floats(1, 2)},
        plan=plan_of(delegate("onnxruntime", "net/delegates/a.onnx"), calls=1),
        blobs=blobs,
        requirements=["torch==2.13.*", "Torch>=2", "hatch-lower>=0.1"],
        methods={"forward": {"nodes": 8, "delegated": 6, "partitions": 1}},
    )
    size = {path.name: path.stat().st_size for path in (tmp_path / "_lowered/net").glob("*")}
    assert figures == {
        "net": {"constants-bytes": size["constants.safetensors"]},
        "net/default": {
            "program-bytes": size["default.json"] + size["default.debug.json"],
            "delegate-bytes": 9,
            "native-bytes": 0,
            "requirements": 2,
        },
        "net/default/forward": {"operations": 8, "delegated": 0.75, "partitions": 1},
    }


def test_native_bytes_are_those_of_elf_files(tmp_path: Path) -> None:
    blobs = {"net/delegates/a.so": ELF, "net/delegates/b.xml": b"<net/>"}
    delegates = (delegate("own", "net/delegates/a.so"), delegate("own", "net/delegates/b.xml"))
    figures = figures_of(tmp_path / "_lowered", plan=plan_of(*delegates, calls=2), blobs=blobs)
    assert figures["net/default"]["native-bytes"] == len(ELF)
    assert figures["net/default"]["delegate-bytes"] == len(ELF) + 6


def test_native_code_of_an_unknown_backend_has_no_number_of_kernels(tmp_path: Path) -> None:
    blobs = {"net/delegates/a.so": ELF}
    figures = figures_of(
        tmp_path / "_lowered", plan=plan_of(delegate("own", "net/delegates/a.so"), calls=1), blobs=blobs
    )
    assert "kernels" not in figures["net/default/forward"]


def test_kernels_for_gpus_are_counted_with_the_most_that_each_needs(tmp_path: Path) -> None:
    tables = [
        kernel_table({80: (13, 0), 90: (18, 8)}, shared=0),
        kernel_table({80: (40, 0), 90: (32, 0)}, shared=4096),
    ]
    blobs = {"net/delegates/a.so": ELF + b"".join(tables), "net/delegates/b.so": ELF + tables[0]}
    delegates = [delegate("cuda", file) for file in blobs]
    figures = figures_of(tmp_path / "_lowered", plan=plan_of(*delegates, calls=2), blobs=blobs)
    found = figures["net/default/forward"]
    assert {name: found[name] for name in ("kernels", *sorted(OF_GPUS))} == {
        "kernels": 3,
        "kernel-registers": 40,
        "kernel-shared-bytes": 4096,
        "kernel-stack-bytes": 8,
    }


def test_a_damaged_table_of_kernels_has_no_figure(tmp_path: Path) -> None:
    table = kernel_table({80: (13, 0)}, shared=0).replace(b".nv.info", b".no.info")
    blobs = {"net/delegates/a.so": ELF + table}
    plan = plan_of(delegate("cuda", "net/delegates/a.so"), calls=1)
    figures = figures_of(tmp_path / "_lowered", plan=plan, blobs=blobs)
    assert "kernels" not in figures["net/default/forward"]


def kernel_table(facts: dict[int, tuple[int, int]], *, shared: int) -> bytes:
    """Return a table of images; `facts` are registers and bytes of stack by compute capability."""
    images = [Image(*divmod(each, 10), SAME_MAJOR, cubin(*values)) for each, values in facts.items()]
    return pack_images([*images, Image(8, 0, PTX, b".target sm_80\0")], shared)


def cubin(registers: int, stack: int) -> bytes:
    """Return machine code's frame: a section `.nv.info` with values without, and with, contents."""
    info = struct.pack("<BBH", 3, 0x1B, 255)
    info += b"".join(struct.pack("<BBHII", 4, name, 8, 6, value) for name, value in ((0x2F, registers), (0x11, stack)))
    names = b"\0.nv.info\0.shstrtab\0"
    sections = [(0, 0, 0, 0), (1, 0x70000000, 64, len(info)), (10, 3, 64 + len(info), len(names))]
    begin = 64 + len(info) + len(names)
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, begin, 0, 64, 0, 0, 64, 3, 2)
    table = [struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, 0, 0, 1, 0) for name, kind, at, size in sections]
    return b"".join([head, info, names, *table])


@pytest.mark.parametrize(("backend", "copied"), [("aoti", 1), ("null", 1), ("onnxruntime", None), ("own", None)])
def test_constants_that_an_engine_may_copy_have_no_figure(tmp_path: Path, backend: str, copied: int | None) -> None:
    tensors = {"a": floats(1, 2), "b": floats(3, 4)}
    figures = figures_of(
        tmp_path / "_lowered",
        tensors=tensors,
        plan=plan_of(
            delegate(backend, "net/delegates/a.bin"),
            storages=[(key, "float32", 2) for key in tensors],
            constants={"weight": constant(0, 2), "state": constant(1, 2, mutable=True), "tied": constant(1, 2)},
        ),
        blobs={"net/delegates/a.bin": b"blob"},
    )
    assert figures["net/default"].get("copied-constants") == copied


@pytest.mark.parametrize("data", [b"\x7fELF", b"\x7fELF\2\1\1" + b"\xff" * 57, b"\x7fELF\1\2\1" + b"\x7f" * 4096])
def test_a_damaged_library_has_no_number_of_kernels(data: bytes) -> None:
    assert read(loops_in, memoryview(data)) is None


def test_a_method_without_operations_has_no_share(tmp_path: Path) -> None:
    counts = {"forward": {"nodes": 0, "delegated": 0, "partitions": 0}}
    figures = figures_of(tmp_path / "_lowered", plan=plan_of(), methods=counts)
    assert figures["net/default/forward"] == {"operations": 0, "partitions": 0}


def test_a_build_that_is_known_gives_its_level_and_compilations(tmp_path: Path) -> None:
    folder = tmp_path / "_lowered"
    models = {name: lowered_model(folder, name, {"default": {"plan": plan_of()}}) for name in ("net", "other")}
    build = {FigureSubject("net"): {"level": 0, "compilations": 3}}
    figures = exact_figures(side_of(write_lowered(folder, models), build))
    assert figures[FigureSubject("net")] == {"constants-bytes": 0, "compilations": 3, "level": 0}
    assert figures[FigureSubject("other")] == {"constants-bytes": 0}


def test_a_delegate_that_the_manifest_does_not_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError) as caught:
        figures_of(tmp_path / "_lowered", plan=plan_of(delegate("null", "net/delegates/a.null")))
    assert caught.value.found == "the delegate `net/delegates/a.null`, which the manifest does not list"


def test_a_damaged_delegate_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "_lowered"
    recipe = {"plan": plan_of(delegate("null", "net/a.null")), "blobs": {"net/a.null": b"blob"}}
    write_lowered(folder, {"net": lowered_model(folder, "net", {"default": recipe})})
    (folder / "net/a.null").write_bytes(b"bleb")
    with pytest.raises(ProgramError, match="not the one that the manifest lists"):
        exact_figures(side_of(folder))


# Wheels that builds made.


@pytest.fixture(scope="module")
def built(shared: Shared) -> Callable[[str], Path]:
    return lambda name: only(built_scenario(shared, name) / "dist", "*.whl")


@pytest.mark.processes
def test_every_exact_metric_of_a_wheel_has_a_figure(built: Callable[[str], Path]) -> None:
    figures = exact_figures(side_of(built("mixed")))
    assert {metric for found in figures.values() for metric in found} == EXACT - {"error"}
    assert figures[FigureSubject()] == {"wheel-bytes": built("mixed").stat().st_size}


@pytest.mark.processes
def test_a_wheel_and_what_is_installed_from_it_have_equal_figures(built: Callable[[str], Path], tmp_path: Path) -> None:
    packed = exact_figures(side_of(built("mixed")))
    del packed[FigureSubject()]
    assert exact_figures(side_of(unpack(built("mixed"), tmp_path))) == packed


@pytest.mark.processes
def test_kernels_are_those_that_the_debug_map_names(built: Callable[[str], Path]) -> None:
    side = side_of(built("mixed"))
    (contents,) = side.contents
    debug = contents.model("mixed").recipes["default"].method_debug("forward")
    named = {
        (path, name.rpartition(":")[0])
        for path, called in debug.delegates.items()
        for name in called.map or ()
        if name.startswith("cpp_")
    }
    figures = exact_figures(side)
    assert figures[FigureSubject("mixed", "default", "forward")]["kernels"] == len(named) > 0
    assert "kernels" not in figures[FigureSubject("mixed", "portable", "forward")]


@pytest.mark.torch
@pytest.mark.processes
def test_the_exact_tier_is_equal_in_another_environment(built: Callable[[str], Path], tmp_path: Path) -> None:
    variables = [
        {"LC_ALL": "C", "PYTHONHASHSEED": "1", "HOME": str(tmp_path), "TZ": "UTC", "OMP_NUM_THREADS": "2"},
        {
            "LC_ALL": "C.UTF-8",
            "PYTHONHASHSEED": "2",
            "HOME": "/",
            "TZ": "NPT-5:45",
            "USER": "x",
            "OMP_NUM_THREADS": "1",
        },
    ]
    documents = []
    for cores, environment in zip((len(os.sched_getaffinity(0)), 1), variables, strict=True):
        place = tmp_path / f"on {cores} cores" / "below"
        place.mkdir(parents=True)
        wheel = Path(shutil.copy(built("mixed"), place))
        folder = unpack(wheel, place / "unpacked") / "mixed/_lowered"
        command = [sys.executable, "-c", SCRIPT, wheel, folder, str(cores)]
        documents.append(run(command, cwd=place, environment=environment).check().stdout)
    assert documents[0] == documents[1]
    rows = json.loads(documents[0])["hatch_lower"]["figures"]
    assert {metric for row in rows for metric in row["figures"]["A"]} == EXACT


# What a loaded model holds.


@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.parametrize(
    ("scenario", "recipe", "copied", "mapped"),
    [
        ("mixed", "default", 1, 8),  # the library holds those that are bound to it again
        ("mixed", "portable", 1, 4),
        ("two_methods", "default", 7, 0),
        ("two_methods", "portable", 1, 3),
    ],
)
def test_copied_constants_are_those_that_lie_outside_the_mapped_file(
    built: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scenario: str,
    recipe: str,
    copied: int,
    mapped: int,
) -> None:
    unpack(built(scenario), tmp_path)
    (manifest,) = tmp_path.rglob("_lowered/manifest.json")
    folder = open_folder(manifest.parent)
    counted = exact_figures(side_of(folder.path))[FigureSubject(scenario, recipe)]["copied-constants"]
    held = held_tensors(folder, scenario, recipe, monkeypatch)
    maps = list(mapped_ranges("constants.safetensors"))
    outside = [each for each in held if not any(begin <= each.data_ptr() < end for begin, end in maps)]
    assert counted == len({each.untyped_storage().data_ptr() for each in outside}) == copied
    assert len(held) - len(outside) == mapped


def held_tensors(folder: PackagedFolder, model: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Load a recipe; return every constant that it holds, those inside delegates as they are there."""
    from hatch_lower.backends.aoti.run import AotiDelegate
    from hatch_lower.runtime import executor
    from hatch_lower.runtime.load import load_in_folder
    from hatch_lower.runtime.selection import DelegateKinds

    made: list[executor.Executor] = []
    initialize = executor.Executor.__init__

    def record(self: executor.Executor, *arguments: Any) -> None:
        initialize(self, *arguments)
        made.append(self)

    monkeypatch.setattr(executor.Executor, "__init__", record)
    loaded = load_in_folder(folder, model, recipe, DelegateKinds(), verify=False)
    monkeypatch.setattr(made[-1], "loaded", loaded, raising=False)  # as long as the tensors
    held = [tensor for each in made for tensor in each._constants.values()]
    for each in made:
        for delegate in each._delegates:
            if isinstance(delegate, AotiDelegate):
                held += delegate._runner.extract_constants_map(False).values()
    return held


def mapped_ranges(name: str) -> Iterator[tuple[int, int]]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(f"/{name}"):
            begin, end = re.split("[- ]", line)[:2]
            yield int(begin, 16), int(end, 16)
