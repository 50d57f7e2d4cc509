"""Build without a GPU the files that `check.sh` needs on a machine with a GPU, and compare their size with the limit.

    PYTHONPATH=tools python -m device.prepare [--into .device] [--only NAME …] [--jobs N]

Needs the version of torch of the machine with the GPU, the extras `build` and `cuda` of hatch-lower, hatchling, and an
index for the wheels that the other machine lacks.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from device.cases import CASES, MEGABYTE
from device.projects import REPOSITORY, build_wheel, write_project, write_weights

LIMIT = 64 << 20  # bytes that travel: the working tree and the folder
# distributions that hatch-lower and hatchling need for a build, and that the other machine lacks
NEEDED = (
    *("hatchling", "trove-classifiers", "pyelftools", "platformdirs", "tomlkit", "cyclonedx-python-lib"),
    *("py-serializable", "defusedxml", "license-expression", "boolean.py", "packageurl-python"),
)
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
SECONDS = 1200.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=REPOSITORY / ".device")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--jobs", type=int, default=1, help="builds at the same time")
    parser.add_argument("--without-index", action="store_true", help="keep the wheels of other distributions")
    given = parser.parse_args()
    into: Path = given.into.resolve()
    models, wheels = into / "models", into / "wheels"
    models.mkdir(parents=True, exist_ok=True)
    collect_wheels(wheels, with_index=not given.without_index)
    with tempfile.TemporaryDirectory(prefix="hatch-lower-site-") as site:
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", site]
        subprocess.run([*install, *map(str, wheels.glob("hatch_lower-*.whl"))], check=True)
        with ThreadPoolExecutor(given.jobs) as pool:
            built = pool.map(partial(build_model, models=models, site=site), given.only)
            failed = [name for name, is_built in zip(given.only, built, strict=True) if not is_built]
    travels = size_of(into) + size_of_tree()
    print(f"{travels / MEGABYTE:.1f} MB travel, of them {size_of(into) / MEGABYTE:.1f} MB in {into}", flush=True)
    if travels > LIMIT:
        sys.exit(f"the working tree and {into} have {travels:,} bytes, and {LIMIT:,} can travel")
    if failed:
        sys.exit(f"no wheel of {', '.join(failed)}")


def build_model(name: str, models: Path, site: str) -> bool:
    """Build the wheel of a model with the hatch-lower in `site`, and return whether the build has succeeded."""
    for old in models.glob(f"device_{name}-*.whl"):
        old.unlink()  # a wheel of older code must not travel
    with tempfile.TemporaryDirectory(prefix=f"hatch-lower-{name}-") as scratch:
        folder = Path(scratch)
        weights = folder / "weights" / f"{name}.safetensors"
        if CASES[name].is_large():
            write_weights(weights, CASES[name])
        project = folder / "project"
        write_project(project, name, weights)
        # as on the machine with the GPU: a GPU of this machine is hidden
        built = build_wheel(project, folder / "cache", SECONDS, CUDA_VISIBLE_DEVICES="", PYTHONPATH=site)
        (models / f"{name}.log").write_text(built.log)
        if built.wheel is None:
            print(f"{name}: no wheel after {built.seconds} s; {models / name}.log has the reason", flush=True)
            return False
        shutil.copy(built.wheel, models)
        print(f"{name}: {built.seconds} s, {built.wheel.stat().st_size / MEGABYTE:.2f} MB", flush=True)
        return True


def collect_wheels(folder: Path, *, with_index: bool) -> None:
    """Build hatch-lower's wheel, and download the distributions that the other machine lacks, in these versions."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl" if with_index else "hatch_lower-*.whl"):
        old.unlink()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    if not with_index:
        return
    pins = [f"{name}=={importlib.metadata.version(name)}" for name in NEEDED]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    subprocess.run([*download, "--python-version", PYTHON, *platforms, *pins], check=True)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def size_of_tree() -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


if __name__ == "__main__":
    began = time.perf_counter()
    main()
    print(f"prepared in {time.perf_counter() - began:.0f} s")
