"""The platform tag of a wheel with native code: the lowest manylinux that its symbol versions allow (PEP 600).

The libraries and symbols of each manylinux come from auditwheel's policy data, copied into this folder. So a version
of hatch-lower always gives the same tag, and installing a model does not install auditwheel. A test derives the copy
again and fails when auditwheel's data has changed.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.errors import PackageError
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.results import BuildResult
from hatch_lower.frozen import Frozen

NATIVE_FILE_SCHEMA = 2

# machine → policies, lowest first: the minor version of glibc 2.x, and the libraries and versions that the policy adds
POLICIES = Path(__file__).with_name("manylinux.json")

LOADERS = "ld-linux"  # prefix of the dynamic loader's names: the loader is part of glibc, and so of every policy
# prefixes of libraries that come with torch or that torch loads; `libcuda` comes with the GPU's driver
TORCH_LIBRARIES = ("libc10", "libcuda.so", "libcudart.so", "libgomp", "libiomp5", "libomp", "libtorch")
# ELF's name of a machine to the name in a wheel's tag
ELF_MACHINES = {
    "EM_AARCH64": "aarch64",
    "EM_LOONGARCH": "loongarch64",
    "EM_PPC64": "ppc64le",
    "EM_RISCV": "riscv64",
    "EM_S390": "s390x",
    "EM_X86_64": "x86_64",
}


class NativeFile(Frozen):
    """The requirements of a native library on the system that loads the library."""

    machine: str  # the name in a wheel's tag: `x86_64`, `aarch64`
    libraries: tuple[str, ...]  # linked libraries
    versions: Mapping[str, tuple[str, ...]]  # library to needed symbol versions


class Policy(Frozen):
    """The libraries and symbols of every system that is at least as new as a certain manylinux."""

    glibc: int  # the minor version of glibc 2.x that gives the policy its name
    libraries: frozenset[str]
    symbols: Mapping[str, frozenset[str]]  # symbol family (`GLIBCXX`) to versions (`3.4.30`)


def choose_wheel_tag(native: Sequence[Path], read: Callable[[Path], NativeFile | None] | None = None) -> str:
    """Return the wheel tag for a payload with the given native files: `py3-none-any` without native files."""
    if not native:
        return "py3-none-any"
    read_files = [(read or read_native_file)(path) for path in native]
    files = [file for file in read_files if file is not None]
    if len(files) < len(read_files):
        return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    return f"py3-none-{platform_tag(files)}"


def tag_of(result: BuildResult, store: Store) -> str:
    """Return the wheel tag for a build's payload; the cache keeps what is known of its native files."""
    digests = {file.source: file.sha256 for file in result.payload}
    return choose_wheel_tag(result.native, remembering(store, digests))


def platform_tag(files: Collection[NativeFile]) -> str:
    """Return the lowest platform on which all `files` can be loaded: `manylinux_2_35_x86_64`."""
    machines = sorted({file.machine for file in files})
    if len(machines) > 1:
        what = "the native code in the payload is for different machines, but a wheel has a single machine"
        raise PackageError(what, found=", ".join(machines), hint="build one wheel for each machine")
    (machine,) = machines
    names = {name for file in files for name in (*file.libraries, *file.versions)}
    libraries = {name for name in names if not name.startswith((LOADERS, *TORCH_LIBRARIES))}
    symbols = {symbol for file in files for version in file.versions.values() for symbol in version}
    for policy in read_policies(machine):  # as `auditwheel show` finds the symbols' tag
        if libraries <= policy.libraries and all(allows(policy, symbol) for symbol in symbols):
            return f"manylinux_2_{policy.glibc}_{machine}"
    # a file needs musl's libc, for instance, or a version that no policy knows: this tag names only the machine
    return f"linux_{machine}"


def allows(policy: Policy, symbol: str) -> bool:
    """Return whether a policy has a symbol version such as `GLIBCXX_3.4.30`."""
    family, _, version = symbol.partition("_")
    # a family that the policy does not know is not part of the system: torch brings OpenMP, for instance
    return family not in policy.symbols or version in policy.symbols[family]


def read_policies(machine: str) -> Iterator[Policy]:
    """Yield the policies for a machine, lowest first; no policies for a machine without manylinux."""
    libraries: frozenset[str] = frozenset()
    symbols: dict[str, frozenset[str]] = {}
    for added in json.loads(POLICIES.read_bytes()).get(machine, []):
        libraries |= frozenset(added["libraries"])
        for family, versions in added["symbols"].items():
            symbols[family] = symbols.get(family, frozenset()) | frozenset(versions)
        yield Policy(added["glibc"], libraries, dict(symbols))


def remembering(store: Store, digests: Mapping[Path, str]) -> Callable[[Path], NativeFile | None]:
    """Return a `read_native_file` that keeps the requirements of a file in the cache, by the digest of the contents."""

    def read(path: Path) -> NativeFile | None:
        if path not in digests:
            return read_native_file(path)
        key = digest_of(["native file", NATIVE_FILE_SCHEMA, digests[path]])
        known = store.find(key)
        if known is None or "needs" not in known:
            file = read_native_file(path)
            store.put(key, {"native file": digests[path]}, {"needs": encode(file)})
            return file
        needs: NativeFile | None = decode(NativeFile | None, known["needs"], "the requirements of a native file")
        return needs

    return read


def read_native_file(path: Path) -> NativeFile | None:
    """Return the requirements of an ELF file; `None` for another format, or for a machine without wheel tags."""
    from elftools.elf.dynamic import DynamicSection  # only builds with native code need elftools
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
        machine = ELF_MACHINES.get(str(file.header.e_machine))
        return NativeFile(machine, tuple(libraries), versions) if machine is not None else None
