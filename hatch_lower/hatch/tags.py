"""The platform tag of a wheel with native code: the lowest manylinux that its symbol versions allow (PEP 600)."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hatch_lower.cache.store import Store
from hatch_lower.digest import digest_of
from hatch_lower.errors import PackageError

__all__ = ["SYMBOL_VERSIONS", "NativeFile", "platform_tag", "read_native_file", "remembering", "tag_of"]

NATIVE_FILE_SCHEMA = 1

SYMBOL_VERSIONS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "x86_64": {
        "GLIBCXX": {
            "3.4.8": 5,
            "3.4.13": 12,
            "3.4.19": 17,
            "3.4.22": 24,
            "3.4.24": 27,
            "3.4.28": 31,
            "3.4.29": 34,
            "3.4.30": 35,
            "3.4.33": 39,
        },
        "CXXABI": {
            "1.3.1": 5,
            "1.3.3": 12,
            "1.3.7": 17,
            "1.3.10": 24,
            "1.3.11": 27,
            "1.3.12": 31,
            "1.3.13": 34,
            "1.3.15": 39,
        },
        "GCC": {"4.2.0": 5, "4.3.0": 12, "4.8.0": 17, "7.0.0": 27, "12.0.0": 35, "14.0.0": 39},
        "LIBATOMIC": {"1.2": 24},
    },
    "aarch64": {
        "GLIBCXX": {"3.4.19": 17, "3.4.22": 24, "3.4.24": 26, "3.4.28": 31, "3.4.29": 34, "3.4.30": 35, "3.4.33": 39},
        "CXXABI": {"1.3.7": 17, "1.3.10": 24, "1.3.11": 26, "1.3.12": 31, "1.3.13": 34, "1.3.15": 39},
        "GCC": {"4.7.0": 17, "7.0.0": 26, "11.0": 34, "14.0.0": 39},
        "LIBATOMIC": {"1.0": 17, "1.2": 24},
    },
}
"""Machine → symbol family → newest version → minor version of the first glibc 2.x whose manylinux policy has it."""

NAMED_VERSIONS = {"CXXABI_TM_1": 17, "CXXABI_FLOAT128": 24, "GLIBC_ABI_DT_RELR": 36}
FIRST_POLICY = {"x86_64": 5, "aarch64": 17}
SYSTEM_LIBRARIES = frozenset(
    {
        "ld-linux-aarch64.so.1",
        "ld-linux-x86-64.so.2",
        "libatomic.so.1",
        "libc.so.6",
        "libdl.so.2",
        "libgcc_s.so.1",
        "libm.so.6",
        "libpthread.so.0",
        "librt.so.1",
        "libstdc++.so.6",
    }
)
TORCH_LIBRARIES = ("libc10", "libgomp", "libiomp5", "libomp", "libtorch")
"""Prefixes of the libraries that come with torch or are loaded by it."""
ELF_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


@dataclass(frozen=True, slots=True)
class NativeFile:
    """What a native library needs of the system that loads it."""

    machine: str
    """`x86_64` or `aarch64`; another machine's name as ELF has it."""
    libraries: tuple[str, ...]
    """Names of the libraries that it is linked with."""
    versions: Mapping[str, tuple[str, ...]]
    """Library to the symbol versions needed of it."""


def tag_of(native: Sequence[Path], read: Callable[[Path], NativeFile | None] | None = None) -> str:
    """Return the wheel tag for a payload with these native files: `py3-none-any` if there are none.

    Args:
        native: the files.
        read: reads one of them; by default `read_native_file`.

    Raises:
        PackageError: if the files are for different machines.
    """
    if not native:
        return "py3-none-any"
    found = [(read or read_native_file)(path) for path in native]
    files = [file for file in found if file is not None]
    if len(files) < len(found):
        return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    return f"py3-none-{platform_tag(files)}"


def platform_tag(files: Iterable[NativeFile]) -> str:
    """Return the platform on which all `files` can be loaded: `manylinux_2_35_x86_64`.

    It is `linux_x86_64`, which says no more than the machine, where a file needs a library or a symbol version that no
    known policy has.

    Raises:
        PackageError: if the files are for different machines.
    """
    files = tuple(files)
    machines = sorted({file.machine for file in files})
    if len(machines) > 1:
        what = "the native code in the payload is for different machines, and a wheel can be for one only"
        raise PackageError(what, found=", ".join(machines), hint="build one wheel for each machine")
    minors = [least_glibc(file) for file in files]
    known = [minor for minor in minors if minor is not None]
    return f"manylinux_2_{max(known)}_{machines[0]}" if len(known) == len(minors) else f"linux_{machines[0]}"


def least_glibc(file: NativeFile) -> int | None:
    """Return the minor version of the oldest glibc 2.x whose systems can load `file`, or `None` if none is known."""
    names = {*file.libraries, *file.versions}
    counted = {name for name in names if not name.startswith(TORCH_LIBRARIES)}
    if file.machine not in FIRST_POLICY or not counted <= SYSTEM_LIBRARIES:
        return None
    least = FIRST_POLICY[file.machine]
    for name in sorted(counted):
        for symbol in file.versions.get(name, ()):
            minor = glibc_of(symbol, SYMBOL_VERSIONS[file.machine])
            if minor is None:
                return None
            least = max(least, minor)
    return least


def glibc_of(symbol: str, families: Mapping[str, Mapping[str, int]]) -> int | None:
    """Return the minor version of the first glibc 2.x that goes with a symbol version such as `GLIBCXX_3.4.30`."""
    if symbol in NAMED_VERSIONS:
        return NAMED_VERSIONS[symbol]
    family, _, text = symbol.rpartition("_")
    version = numbers_of(text)
    if family == "GLIBC" and version[:1] == (2,) and len(version) > 1:
        return version[1]
    fitting = [minor for newest, minor in families.get(family, {}).items() if () < version <= numbers_of(newest)]
    return min(fitting, default=None)


def numbers_of(text: str) -> tuple[int, ...]:
    """Return `3.4.30` as numbers; nothing for a text that is not a version."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def remembering(store: Store, digests: Mapping[Path, str]) -> Callable[[Path], NativeFile | None]:
    """Return a `read_native_file` that parses the contents of a file once: what they need is kept in the cache.

    Args:
        store: the cache.
        digests: the sha256 of each file.
    """

    def read(path: Path) -> NativeFile | None:
        if path not in digests:
            return read_native_file(path)
        key = digest_of(["native file", NATIVE_FILE_SCHEMA, digests[path]])
        known = store.find(key)
        if known is None:
            file = read_native_file(path)
            store.put(key, {"native file": digests[path]}, {"needs": None if file is None else asdict(file)})
            return file
        needs = known["needs"]
        if needs is None:
            return None
        versions = {name: tuple(each) for name, each in needs["versions"].items()}
        return NativeFile(needs["machine"], tuple(needs["libraries"]), versions)

    return read


def read_native_file(path: Path) -> NativeFile | None:
    """Return what an ELF file needs, or `None` for a file of another format."""
    from elftools.elf.dynamic import DynamicSection  # only builds with native code need these
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return None
        stream.seek(0)
        file = ELFFile(stream)
        libraries: list[str] = []
        versions: dict[str, tuple[str, ...]] = {}
        for section in file.iter_sections():
            if isinstance(section, DynamicSection):
                tags: Iterable[Any] = section.iter_tags("DT_NEEDED")
                libraries = [tag.needed for tag in tags]
            elif isinstance(section, GNUVerNeedSection):
                for need, symbols in section.iter_versions():
                    versions[str(need.name)] = tuple(symbol.name for symbol in symbols)
        machine = str(file.header.e_machine)
        return NativeFile(ELF_MACHINES.get(machine, machine), tuple(libraries), versions)
