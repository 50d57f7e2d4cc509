"""Wheels built with the GPU in sight, and with the GPU hidden, beside the wheels of a machine without a GPU."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from device.cases import CASES
from device.projects import Built, build_wheel, write_project, write_weights
from device.stand import Stand, open_stand

MODELS = ("mlp", "unet", "attention_fp16")
ELF, CUDA = b"\x7fELF\x02\x01", 190  # a 64-bit object; the machine number of NVIDIA's GPUs
SECTION = 64  # bytes of an entry in the table of sections


@dataclass(frozen=True, slots=True)
class Wheel:
    digest: str
    members: dict[str, str]  # name to digest
    code: tuple[str, ...]  # digests of the GPU's machine code in all libraries


def read_wheel(path: Path) -> Wheel:
    members, code = {}, []
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            content = archive.read(name)
            members[name] = digest_of(content)
            if name.endswith(".so"):
                code += [digest_of(part) for part in machine_code(content)]
    return Wheel(digest_of(path.read_bytes()), members, tuple(sorted(code)))


def machine_code(library: bytes) -> Iterator[bytes]:
    """Yield the objects for GPUs inside of a library: each ends with its table of sections, or of segments."""
    place = library.find(ELF, 1)
    while place > 0:
        machine = int.from_bytes(library[place + 18 : place + 20], "little")
        if machine == CUDA:
            sections = int.from_bytes(library[place + 40 : place + 48], "little")
            count = int.from_bytes(library[place + 60 : place + 62], "little")
            yield library[place : place + sections + count * SECTION]
        place = library.find(ELF, place + 1)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def build_there(name: str, folder: Path, seconds: float, **variables: str) -> Built:
    weights = folder / "weights" / f"{name}.safetensors"
    if CASES[name].is_large():
        write_weights(weights, CASES[name])
    write_project(folder / "project", name, weights)
    return build_wheel(folder / "project", folder / "cache", seconds, **variables)


def compare_wheels(stand: Stand, name: str, built: list[Built], carried: Path) -> None:
    if lost := [one for one in built if one.wheel is None]:
        stand.record(name, ok=False, error=lost[0].log[-1500:])
        return
    seen, hidden = (read_wheel(one.wheel) for one in built if one.wheel is not None)
    facts: dict[str, object] = {
        "seconds": [one.seconds for one in built],
        "seen_equals_hidden": seen.digest == hidden.digest,
        "seen_differs_from_hidden": differing(seen, hidden),
    }
    brought = sorted(carried.glob(f"device_{name}-*.whl"))
    if brought:
        here = read_wheel(brought[0])
        # other versions of Python, the compiler and the C library make other members than the GPU's code
        facts |= {
            "equals_brought": seen.digest == here.digest,
            "code_equals_brought": bool(seen.code) and seen.code == here.code,
            "kernels": len(seen.code),
            "differs_from_brought": differing(seen, here),
        }
    is_right = seen.members.keys() == hidden.members.keys() and seen.code == hidden.code
    is_right = is_right and (not brought or seen.code == read_wheel(brought[0]).code)
    stand.record(name, ok=is_right, **facts)


def differing(one: Wheel, other: Wheel) -> list[str]:
    names = one.members.keys() | other.members.keys()
    return sorted(name for name in names if one.members.get(name) != other.members.get(name))[:12]


def main() -> None:
    stand = open_stand("rebuild")
    carried, seconds = Path(sys.argv[1]), float(sys.argv[2])
    names = [name for name in MODELS if list(carried.glob(f"device_{name}-*.whl"))]
    scratch = Path(tempfile.mkdtemp(prefix="hatch-lower-rebuild-"))
    try:
        with ThreadPoolExecutor(2 * len(MODELS)) as pool:
            waiting = {
                name: [
                    pool.submit(build_there, name, scratch / name / "seen", seconds),
                    pool.submit(build_there, name, scratch / name / "hidden", seconds, CUDA_VISIBLE_DEVICES=""),
                ]
                for name in names
            }
            for name, built in waiting.items():
                with stand.attempt(name):
                    compare_wheels(stand, name, [one.result() for one in built], carried)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
