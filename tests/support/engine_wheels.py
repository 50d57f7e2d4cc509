"""A wheel whose recipe runs on an engine that tests invent, and wheels of the engine, right and wrong ones."""

from __future__ import annotations

import base64
import hashlib
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.installed import update_entries
from support.lowered import lowered_model, safetensors_bytes, write_lowered
from support.plans import call, delegate_entry, method, plan_value, python, tensor_input, v

ENGINE = "tiny-engine"
RUN_HALF = """\
from hatch_lower.runtime.delegates import Delegate


class Tiny(Delegate):
    arrays = "numpy"

    @classmethod
    def load(cls, blob, constants):
        return cls()

    def run(self, inputs):
        {body}
"""
DOUBLING, WRONG, CRASHING = "return [inputs[0] * 2]", "return [inputs[0] * 2.5]", "import os; os.abort()"
TORCH_FREE = f"import importlib.util; assert not importlib.util.find_spec('torch'); {DOUBLING}"
REQUIRED = ("hatch-lower>=0.1", "numpy>=1.26", f"{ENGINE}>=1,<3")


def write_distribution(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | str],
    *,
    requires: Iterable[str] = (),
    entry_points: str = "",
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel that installers take."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    contents = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
    contents[f"{info}/METADATA"] = "\n".join([*head, *(f"Requires-Dist: {each}" for each in requires), ""]).encode()
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    contents[f"{info}/entry_points.txt"] = entry_points.encode()
    rows = []
    for path, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    contents[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{package}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in contents.items():
            archive.writestr(path, data)
    return wheel


def write_engine(folder: Path, version: str, body: str = DOUBLING, tag: str = "py3-none-any") -> Path:
    """Write a wheel of the engine, whose run half has a body."""
    points = "[hatch_lower.delegates]\ntiny = tiny_engine:Tiny\n"
    return write_distribution(
        folder, ENGINE, version, {"tiny_engine.py": RUN_HALF.format(body=body)}, entry_points=points, tag=tag
    )


def write_model_wheel(
    folder: Path,
    *,
    requires: Sequence[str] = REQUIRED,
    recipes: Mapping[str, Sequence[str]] | None = None,
    name: str = "digits",
) -> Path:
    """Write a wheel with a model that doubles four numbers, on the engine; with recipes by their requirements."""
    lowered = folder / "_lowered"
    entry = tensor_input(4)
    plan = plan_value(
        forward=method([entry], [call(0, [v(0)], [entry], 1), python("getitem", v(1), 0, out=2)], v(2)),
        delegates=[delegate_entry("tiny")],
    )
    given: dict[str, Any] = {
        recipe: {"plan": plan, "blobs": {"digits/delegates/blob.bin": b"blob"}, "requirements": list(own)}
        for recipe, own in (recipes or {"default": REQUIRED}).items()
    }
    model = lowered_model(lowered, "digits", given)
    values = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", 2, 4, 6, 8)
    check = safetensors_bytes({"forward/input/0": ("F32", 4, values[0]), "forward/output/0": ("F32", 4, values[1])})
    (lowered / "digits/check.safetensors").write_bytes(check)
    update_entries(model, "digits/check.safetensors", check)
    write_lowered(lowered, {"digits": model}, name)
    files = {f"{name}/_lowered/{path.relative_to(lowered)}": path.read_bytes() for path in files_below(lowered)}
    return write_distribution(folder / "dist", name, "1.0", files, requires=requires)


def files_below(folder: Path) -> list[Path]:
    """Return the files of a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
