"""Files of a project that `hatch-lower init` reads and writes: the import package, and an entry point."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen

OTHERS = frozenset(["benchmarks", "build", "dist", "doc", "docs", "examples", "scripts", "test", "tests", "tools"])
WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")  # suffixes of files that an export reads
FUNCTION = "export"
MODULES = ("model", "model_export")  # names of the entry point's module: the first that is free, or has the function
DEPTH = 3  # folders of a namespace package above the package

STUB = '''\
"""The model that `hatch build` lowers."""

import torch

import hatch_lower


def export() -> hatch_lower.Model:
    # A stand-in: return your own module in eval mode, with an example of its inputs.
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    batch = torch.export.Dim("batch", min=1, max=1024)
    forward = hatch_lower.Method(args=(torch.zeros(2, 16),), dynamic_shapes=({0: batch},))
    return hatch_lower.Model(net, methods={"forward": forward})
'''


class Package(Frozen):
    """An import package on the disk: dotted name, and its folder, which may have to be made."""

    name: str
    folder: Path
    source: Path  # the folder for `sys.path`


def find_package(root: Path, project: str) -> Package:
    """Return the package of a project, or the package to make; raise `ConfigError` where several could be meant."""
    plain = plain_name(project)
    found = [package for source in (root / "src", root) for package in packages_below(source, source)]
    own = [package for package in found if plain_name(package.name) == plain]
    if own or len(found) == 1:
        return (own or found)[0]
    if found:
        names = ", ".join(f"`{package.name}`" for package in found)
        raise ConfigError(
            "the project has several packages, and no package has its name",
            where=str(root),
            found=names,
            hint="name the function that returns the model: `--export PACKAGE.model:export`",
        )
    name = re.sub(r"[-_.]+", "_", project).lower()
    source = root if not (root / "src").is_dir() and (root / f"{name}.py").exists() else root / "src"
    if (source / f"{name}.py").exists():
        raise ConfigError(
            "the project is a single module, and lowered programs need a package",
            where=str(source / f"{name}.py"),
            hint=f"move the module to `{name}/__init__.py`",
        )
    return Package(name, source / name, source)


def plain_name(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()


def packages_below(folder: Path, source: Path, depth: int = 0) -> Iterator[Package]:
    """Yield the outermost packages with an `__init__.py`, by name."""
    if not folder.is_dir() or depth > DEPTH:
        return
    for child in sorted(folder.iterdir()):
        if not child.is_dir() or not child.name.isidentifier() or (not depth and child.name in {*OTHERS, "src"}):
            continue
        if (child / "__init__.py").is_file():
            yield Package(".".join(child.relative_to(source).parts), child, source)
        else:
            yield from packages_below(child, source, depth + 1)


def module_package(root: Path, module: str) -> Package | None:
    """Return the outermost package of a dotted module name, if the package is in the project."""
    parts = module.split(".")
    for source in (root / "src", root):
        for count in range(1, len(parts) + 1):
            folder = source.joinpath(*parts[:count])
            if (folder / "__init__.py").is_file():
                return Package(".".join(parts[:count]), folder, source)
    return None


def write_package(package: Package) -> list[Path]:
    """Make a package without modules; return the files that were written."""
    package.folder.mkdir(parents=True, exist_ok=True)
    file = package.folder / "__init__.py"
    if file.exists():
        return []
    file.touch()
    return [file]


def write_stub(package: Package) -> tuple[str, list[Path]]:
    """Return the module of the entry point, and the files that were written; no file is written over."""
    for name in MODULES:
        path = package.folder / f"{name}.py"
        if path.exists() and not has_function(path):
            continue
        written = write_package(package)
        if not path.exists():
            path.write_text(STUB, encoding="utf-8")
            written.append(path)
        return f"{package.name}.{name}", written
    raise ConfigError(
        "the project has modules of the names that an entry point would have",
        where=str(package.folder),
        found=f"{' and '.join(f'`{name}.py`' for name in MODULES)}, without a function `{FUNCTION}`",
        hint="name the function that returns the model with `--export`",
    )


def has_function(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == FUNCTION for node in tree.body)


def weights_globs(root: Path, package: Package) -> list[str]:
    """Return globs of the files of weights, relative to the project: a glob for each folder and suffix."""
    found = set()
    for folder in (package.folder, *(child for child in root.iterdir() if child.name in ("models", "weights"))):
        for path in folder.rglob("*") if folder.is_dir() else ():
            if path.suffix in WEIGHTS and path.is_file() and not any(part.startswith(".") for part in path.parts):
                found.add((path.parent / f"*{path.suffix}").relative_to(root).as_posix())
    return sorted(found)
