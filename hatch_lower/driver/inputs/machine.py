"""Conditions of every stored result beside its inputs: the machine, the interpreter, this package's own code, and
installed distributions, by the names of their folders.

All facts are found without torch. Every build lists the distributions, so the code imports no module and reads no
metadata. Only the process that exports reads RECORDs, to find the owner of a file.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hatch_lower import __version__
from hatch_lower.cache.stats import StatCache
from hatch_lower.canonical import digest_of, sha256_bytes

CPU_INFORMATION = Path("/proc/cpuinfo")
FLAG_ROWS = (b"flags", b"Features")  # row of `/proc/cpuinfo` that names instruction sets: on x86, on aarch64
X86_SETS = ("amx", "avx", "bmi", "f16c", "fma", "sse", "ssse3")
ARM_SETS = ("asimd", "bf16", "fp", "i8mm", "sme", "sve")
PACKAGE = Path(__file__).parents[2]
CODE = (".c", ".json", ".py")


def machine_facts() -> Mapping[str, str]:
    """Return `system`, `machine`, `libc`, `cpu` and `python`, on which every stored result depends."""
    system = os.uname()
    return {
        "system": system.sysname,
        "machine": system.machine,
        "libc": libc_version(),
        "cpu": cpu_capability(),
        "python": " ".join([sys.implementation.name, *sys.version.split()]),
    }


def libc_version() -> str:
    """Return `glibc 2.36`; empty for another C library."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ""


def cpu_capability(path: Path = CPU_INFORMATION) -> str:
    """Return the sorted names of the first processor's instruction sets that numerical code chooses by."""
    for row in first_processor(path).splitlines():
        name, _, value = row.partition(b":")
        if name.strip() in FLAG_ROWS:
            sets = X86_SETS if name.strip() == b"flags" else ARM_SETS
            return " ".join(sorted(flag for flag in value.decode("ascii", "replace").split() if flag.startswith(sets)))
    return ""


# Nodes in `/dev` of GPUs and other accelerators: NVIDIA's driver, AMD's, Microsoft's for WSL, the kernel's own kinds
ACCELERATORS = ("nvidia[0-9]*", "kfd", "dxg", "dri/renderD*", "accel/*", "davinci[0-9]*")


# Files with the kinds of the accelerators and their drivers
ACCELERATOR_FILES = (
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/gpus/*/information",
    "sys/class/drm/renderD*/device/vendor",
    "sys/class/drm/renderD*/device/device",
)
OWN_ROWS = ("GPU UUID", "Bus Location", "Device Minor", "IRQ")  # rows about a single GPU, not about its kind


def find_accelerators(root: Path = Path("/")) -> str:
    """Return the sorted nodes of the machine's accelerators, and a digest of their kinds: `nvidia0 (0a1b2c3d)`."""
    nodes = sorted(str(node.relative_to(root / "dev")) for name in ACCELERATORS for node in root.glob(f"dev/{name}"))
    if not nodes:
        return ""
    rows = []
    for path in sorted(path for pattern in ACCELERATOR_FILES for path in root.glob(pattern)):
        with suppress(OSError):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            rows += [line for line in lines if not line.startswith(OWN_ROWS)]
    return f"{' '.join(nodes)} ({digest_of(rows)[:8]})"


def first_processor(path: Path) -> bytes:
    # the kernel produces a block at each read, and there may be hundreds
    block = b""
    try:
        with path.open("rb", buffering=0) as file:
            while b"\n\n" not in block and (piece := file.read(4096)):
                block += piece
    except OSError:
        return b""
    return block


def own_digest(stats: StatCache, package: Path = PACKAGE) -> str:
    """Return the digest of the installed package: of its RECORD, or of every file in a source tree."""
    try:
        record = stats.digest_of_record(package.parent / f"{package.name}-{__version__}.dist-info" / "RECORD")
    except OSError:
        return digest_of([__version__, package_digests(package, stats)])
    return digest_of([__version__, record])


def package_digests(package: Path, stats: StatCache) -> dict[str, str]:
    digests = {}
    top = f"{package}/"
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name.endswith(CODE) and not name.startswith("."):
                path = f"{folder}/{name}"
                digests[path[len(top) :]] = stats.digest(path)
    return digests


SEPARATORS = re.compile(r"[-_.]+")
PYTHON_TAG = re.compile(r"-py\d[\d.]*$")
# Files that represent a distribution's contents: the first that exists. An `.egg-info` can be a file itself.
RECORDS = ("RECORD", "METADATA", "PKG-INFO")


class Distribution(NamedTuple):
    """An installed distribution, from the name of its folder."""

    name: str
    version: str
    entry: str
    information: str


def find_distributions(listings: Iterable[tuple[str, Sequence[str]]]) -> Mapping[str, Distribution]:
    """Return the installed distributions by normalized name; the first on the search path wins."""
    installed: dict[str, Distribution] = {}
    for entry, names in listings:
        for name in sorted(names):
            distribution = distribution_in(entry, name)
            if distribution is not None:
                installed.setdefault(distribution.name, distribution)
    return installed


def distribution_in(entry: str, name: str) -> Distribution | None:
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("dist-info", "egg-info") or not stem:
        return None
    if suffix == "egg-info":
        stem = PYTHON_TAG.sub("", stem)
    title, _, version = stem.rpartition("-") if "-" in stem else (stem, "", "")
    return Distribution(SEPARATORS.sub("-", title).lower(), version, entry, f"{entry}/{name}")


def mark_of_distribution(distribution: Distribution | None, stats: StatCache) -> str:
    """Return `<version> <digest of RECORD>`, equal wherever the same wheel is installed; empty if not installed."""
    if distribution is None:
        return ""
    paths = (*(f"{distribution.information}/{name}" for name in RECORDS), distribution.information)
    path = next((path for path in paths if os.path.isfile(path)), None)
    if path is None:
        return f"{distribution.version} "
    digest = stats.digest_of_record(path) if path == paths[0] else stats.digest(path)
    return f"{distribution.version} {digest}"


def marks_of_project(name: str, version: str, metadata: str) -> Mapping[str, str]:
    """Return the project's own normalized name, and the mark that is recorded when its metadata is read."""
    return {SEPARATORS.sub("-", name).lower(): f"{version} {sha256_bytes(metadata.encode())}"}


def installed_files(distributions: Iterable[Distribution]) -> Mapping[str, str]:
    """Return, for each installed file's absolute path, the name of its distribution."""
    # Every RECORD is read: too slow for a build of known models, so only the process of an export calls this function.
    owners: dict[str, str] = {}
    for distribution in distributions:
        paths: list[str] = []
        record = f"{distribution.information}/RECORD"
        with suppress(OSError, UnicodeDecodeError, csv.Error), open(record, encoding="utf-8", newline="") as file:
            paths = [row[0] for row in csv.reader(file) if row]
        for path in paths:
            if path.startswith((".", "/")):
                path = os.path.normpath(os.path.join(distribution.entry, path))
            else:
                path = f"{distribution.entry}/{path}"
            owners.setdefault(path, distribution.name)
    return owners


class Owners:
    """The owners of installed files; the lists are read when the first file is asked for."""

    # An editable install owns only its metadata: its source files are read where they are edited.

    def __init__(self, distributions: Mapping[str, Distribution], entries: Sequence[str]) -> None:
        self._distributions = distributions
        self._spellings = [(f"{os.path.realpath(entry)}/", f"{entry}/") for entry in entries if entry]

    def owner(self, path: str) -> str | None:
        files = self._files
        return next((files[spelling] for spelling in self._spelled(path) if spelling in files), None)

    def below(self, folder: str) -> frozenset[str]:
        owners = (self._folders.get(spelling, ()) for spelling in self._spelled(folder))
        return frozenset(name for names in owners for name in names)

    @cached_property
    def _files(self) -> Mapping[str, str]:
        return installed_files(self._distributions.values())

    @cached_property
    def _folders(self) -> Mapping[str, set[str]]:
        folders: dict[str, set[str]] = {}
        for folder, name in {(path.rpartition("/")[0], name) for path, name in self._files.items()}:
            entry = self._distributions[name].entry
            while folder.startswith(entry) and name not in folders.get(folder, ()):
                folders.setdefault(folder, set()).add(name)
                folder = folder.rpartition("/")[0]
        return folders

    def _spelled(self, path: str) -> list[str]:
        """Return a path, and its spellings through links among the search path's entries."""
        others = [entry + path[len(real) :] for real, entry in self._spellings if path.startswith(real)]
        return [path, *others]
