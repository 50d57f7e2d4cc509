"""Lowered models and wheels for tests of benchmarks, written by hand; and git repositories with a project."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hatch_lower.canonical import recorded_digest, sha256_bytes
from support.lowered import lowered_model, write_lowered
from support.plans import method, plan_value, tensor_input, v

# recipe to its methods, and a method's to the size of its one input
Recipes = Mapping[str, Mapping[str, int]]
PLAIN: Recipes = {"default": {"forward": 4}}


def write_models(folder: Path, models: Mapping[str, Recipes]) -> Path:
    """Write a folder whose models compute nothing."""
    entries = {}
    for name, recipes in models.items():
        plans = {
            recipe: {
                "plan": plan_value({each: method([tensor_input(size)], [], v(0)) for each, size in methods.items()})
            }
            for recipe, methods in recipes.items()
        }
        entries[name] = lowered_model(folder, name, plans)
    return write_lowered(folder, entries)


def write_wheel(path: Path, models: Mapping[str, Recipes], package: str = "digits", version: str = "1.0") -> Path:
    """Write a wheel with models in a package."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, zipfile.ZipFile(path, "w") as archive:
        if models:
            write_models(Path(made) / package / "_lowered", models)
        for file in sorted(Path(made).rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(made))
        metadata = {
            "METADATA": f"Metadata-Version: 2.1\nName: digits\nVersion: {version}\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }
        for name, text in metadata.items():
            archive.writestr(f"digits-{version}.dist-info/{name}", text)
    return path


def record_members(wheel: Path, more: Mapping[str, bytes]) -> Path:
    """Add files to a wheel, and write its RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()} | dict(more)
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    rows = [
        f"{name},{recorded_digest(sha256_bytes(data))},{len(data)}"
        for name, data in sorted(files.items())
        if name != record
    ]
    files[record] = "\n".join([*rows, f"{record},,"]).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in sorted(files.items()):
            archive.writestr(name, data)
    return wheel


def rewrite_schema(folder: Path, schema: int) -> None:
    """Let a folder's manifest be of another schema."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": schema}))


def git(folder: Path, *arguments: str | Path) -> str:
    """Run git as somebody without any settings; return what it prints."""
    fixed = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    names = [f"GIT_{role}_{what}" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    done = subprocess.run(
        ["git", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **fixed, **dict.fromkeys(names, "tests")},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def commit(folder: Path, subject: str) -> str:
    """Commit all that is not ignored; return the hash."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


def worktrees(folder: Path) -> Sequence[str]:
    """Return the folders of all worktrees that git knows, the repository's own first."""
    lines = git(folder, "worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]
