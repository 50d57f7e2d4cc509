"""Landlock: what is not declared cannot be read, by whatever reads, and what is declared can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_lower.driver.inputs.preload import built_library, preload_environment
from hatch_lower.driver.inputs.strict import denied_paths, is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="this kernel has no Landlock, or it may not be used here")

RESTRICTED = """
import os, sys
from pathlib import Path
from hatch_lower.driver.inputs.strict import READABLE_SYSTEM, denied_paths, restrict_reads
searched = [Path(entry) for entry in sys.path if entry]
prefixes = [Path(sys.prefix), Path(sys.base_prefix)]
allowed = [*READABLE_SYSTEM, *searched, *prefixes, Path("declared"), Path("own"), Path("absent")]
assert restrict_reads(allowed)
try:
    {code}
except Exception as error:
    log = os.environ.get("HATCH_LOWER_RECORD")
    print("refused", type(error).__name__, *denied_paths(error, Path(log) if log else None))
else:
    print("read")
"""

READERS = {
    "open": "open(path('w.safetensors'), 'rb').read()",
    "listing": "os.listdir(os.path.dirname(path('w.safetensors')))",
    "another process": "import subprocess; subprocess.run(['cat', path('d.db')], check=True, capture_output=True)",
    "safetensors": "from safetensors import safe_open; safe_open(path('w.safetensors'), 'np').get_tensor('w')",
    "sqlite": "import sqlite3; sqlite3.connect(path('d.db')).execute('select * from t')",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the same files in `declared` and in `other`, and one for the library and its log."""
    import sqlite3

    import numpy
    from safetensors.numpy import save_file

    (tmp_path / "own").mkdir()
    for name in ("declared", "other"):
        (tmp_path / name).mkdir()
        save_file({"w": numpy.zeros(3)}, tmp_path / name / "w.safetensors")
        (tmp_path / name / "raw.bin").write_bytes(bytes(16))
        connection = sqlite3.connect(tmp_path / name / "d.db")
        connection.execute("create table t (n)")
        connection.close()
    return tmp_path


def run(folder: Path, code: str, place: str, library: Path | None = None) -> list[str]:
    """Return the words that the restricted process says about code that reads below `place`."""
    code = f"path = lambda name: os.path.abspath(os.path.join({place!r}, name)); {code}"
    log = folder / "own" / "record.log"
    root = str(Path(__file__).parents[2])
    environment = {
        name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "HATCH_LOWER_RECORD")
    }
    environment["PYTHONPATH"] = os.pathsep.join([root, *(entry for entry in sys.path if entry)])
    if library is not None:
        environment |= preload_environment(library, log, environment)
    script = RESTRICTED.replace("{code}", code)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("code", READERS.values(), ids=READERS)
def test_what_is_declared_is_read_and_the_rest_is_refused(folder: Path, code: str) -> None:
    assert run(folder, code, "declared") == ["read"]
    assert run(folder, code, "other")[0] == "refused"


@pytest.mark.torch
def test_a_tensor_over_a_file_is_refused(folder: Path) -> None:
    code = "import torch; torch.from_file(path('raw.bin'), size=4)"
    assert run(folder, code, "declared") == ["read"]
    assert run(folder, code, "other")[0] == "refused"


def test_the_refused_path_is_named_by_pythons_error(folder: Path) -> None:
    assert run(folder, READERS["open"], "other") == ["refused", "PermissionError", str(folder / "other/w.safetensors")]
    assert run(folder, READERS["listing"], "other") == ["refused", "PermissionError", str(folder / "other")]


@pytest.mark.parametrize(
    ("reader", "name"), [("another process", "d.db"), ("sqlite", "d.db"), ("safetensors", "w.safetensors")]
)
def test_the_refused_path_of_what_is_not_python_is_named_by_the_log(folder: Path, reader: str, name: str) -> None:
    library = built_library(folder / "own")
    if library is None:
        pytest.skip("the preloaded library cannot be built here")
    assert str(folder / "other" / name) in run(folder, READERS[reader], "other", library)[2:]


def test_writing_and_looking_are_not_restricted(folder: Path) -> None:
    code = "open(path('made'), 'w').write('text'); assert os.path.getsize(path('made')) == 4"
    assert run(folder, code, "other") == ["read"]
    assert (folder / "other" / "made").read_text() == "text"


def test_a_link_to_what_is_not_declared_is_refused(folder: Path) -> None:
    (folder / "declared" / "link").symlink_to(folder / "other" / "raw.bin")
    assert run(folder, "open(path('link'))", "declared")[0] == "refused"


def test_a_thread_that_starts_later_is_restricted(folder: Path) -> None:
    code = "import concurrent.futures as f; f.ThreadPoolExecutor().submit(lambda: open(path('raw.bin'))).result()"
    assert run(folder, code, "other")[0] == "refused"


def test_this_process_is_not_restricted(folder: Path) -> None:
    run(folder, READERS["open"], "other")
    assert (folder / "other" / "raw.bin").read_bytes() == bytes(16)


def test_refused_paths_are_found_in_what_an_error_came_from(tmp_path: Path) -> None:
    error = ValueError("the weights could not be loaded")
    error.__cause__ = PermissionError(13, "Permission denied", "/data/a.bin")
    error.__cause__.__context__ = error  # a circle ends
    assert denied_paths(error, None) == ("/data/a.bin",)
    assert denied_paths(error, tmp_path / "absent.log") == ("/data/a.bin",)


def test_without_a_path_in_the_error_the_log_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"P/bin/true\0D/data/b.bin\0R/data/c.bin\0")
    assert denied_paths(RuntimeError("no"), log) == ("/data/b.bin",)
    assert denied_paths(FileNotFoundError(2, "absent", "/data/x"), None) == ()
