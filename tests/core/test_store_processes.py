"""The store under several processes at once, and under processes that are killed."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hatch_lower.cache.contents import StoreLimits, repair_store, survey, trim_store
from hatch_lower.cache.store import Store

pytestmark = pytest.mark.processes

KEY = "ab" * 32
START = """
import os, random, sys, time
from pathlib import Path
from hatch_lower.cache.store import Store
directory = Path(sys.argv[1])
def warn(line):
    if not line.startswith("waiting for"):  # on a busy machine that is no fault
        sys.exit(line)
store = Store(directory / "v1", "on", warn)
print("ready", flush=True)
sys.stdin.readline()
"""


def start(code: str, directory: Path, count: int) -> list[subprocess.Popen[str]]:
    """Start processes that all wait at the same place, then let them go."""
    command = [sys.executable, "-c", START + code, str(directory)]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(count)]
    for each in running:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in running:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    return running


def finish(running: list[subprocess.Popen[str]]) -> None:
    ends = [(*each.communicate(timeout=60), each.returncode) for each in running]
    assert [(errors, code) for _, errors, code in ends] == [("", 0)] * len(running)


def test_eight_processes_that_want_one_thing_make_it_once(tmp_path: Path) -> None:
    code = f"""
key = {KEY!r}
assert store.get(key, "x") is None
with open(directory / "arrived", "a") as file:
    file.write("x")
with store.locked([key, "cd" * 32]):
    if store.get(key, "x") is None:
        with open(directory / "made", "a") as file:
            file.write("made\\n")
        while len((directory / "arrived").read_text()) < 8:
            pass
        store.put(key, {{}}, 1, [b"abc"])
assert store.get(key, "x") == 1
"""
    finish(start(code, tmp_path, 8))
    assert (tmp_path / "made").read_text() == "made\n"


def test_no_update_of_eight_processes_is_lost(tmp_path: Path) -> None:
    code = f"""
for _ in range(10):
    store.update({KEY!r}, {{}}, lambda value: (value or 0) + 1)
"""
    finish(start(code, tmp_path, 8))
    assert Store(tmp_path / "v1", "on", pytest.fail).find(KEY) == 80


def test_builds_that_take_locks_level_by_level_do_not_wait_for_each_other_in_a_circle(tmp_path: Path) -> None:
    code = """
keys = [f"{number:064x}" for number in range(64)]
for _ in range(5):
    random.shuffle(keys)
    with store.locked(keys[:1], "manifest"), store.locked(keys[1:8], "export"), store.locked(keys[8:40]):
        store.update(keys[0], {}, lambda value: 1)
"""
    finish(start(code, tmp_path, 4))


def test_who_waits_for_another_build_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.cache.locks.MOMENT", 0.01)
    code = f"""
with store.locked([{KEY!r}, "cd" * 32]):
    print("held", flush=True)
    sys.stdin.readline()
"""
    (holder,) = start(code, tmp_path, 1)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()

    with Store(tmp_path / "v1", "on", say).locked([KEY, "cd" * 32]):
        assert lines == ["waiting for another build that is making the same result"]
    finish([holder])


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = f"""
with store.locked([{KEY!r}]):
    print("held", flush=True)
    time.sleep(600)
"""
    (holder,) = start(code, tmp_path, 1)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    with Store(tmp_path / "v1", "on", pytest.fail).locked([KEY]):
        pass
    assert holder.communicate()[1] == ""


WRITER = """
number = random.Random(int(os.getpid()))
for count in range(1000000):
    key = f"{number.randrange(40):064x}"
    with store.locked([key]):
        value = store.get(key, "x")
        assert value is None or all(store.read_blob(each) is not None for each in value)
        blobs = [number.randbytes(number.choice([100, 100_000, 3_000_000])) for _ in range(2)]
        digests = [store.put_blob(each) for each in blobs]
        store.put(key, {"kind": "test"}, digests, digests)
    if count == 0:
        print("wrote", flush=True)
"""
KILLED_BEFORE_THE_RENAME = """
os.replace = lambda source, path: os.kill(os.getpid(), 9)
store.put("ff" * 32, {}, 1, [b"never finished"])
"""


def test_killed_writers_leave_nothing_that_a_trim_does_not_remove(tmp_path: Path) -> None:
    directory = tmp_path / "v1"
    chance = random.Random(0)
    for round_ in range(6):
        running = start(WRITER if round_ else KILLED_BEFORE_THE_RENAME, tmp_path, 2)
        if round_:
            for each in running:
                assert each.stdout is not None
                assert each.stdout.readline() == "wrote\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(chance.uniform(0, 0.1))
            for each in running:
                each.kill()
        for each in running:
            assert (each.communicate()[1], each.returncode) == ("", -signal.SIGKILL)
    found = survey(directory)
    assert found.entries
    assert all(entry.whole for entry in found.entries)
    assert found.leftovers >= 2
    assert repair_store(directory) == {}
    store = Store(directory, "read-only", pytest.fail)
    assert all(store.find(entry.key) is not None for entry in found.entries)
    trim_store(directory, StoreLimits(10**12, 10**9), time.time() + 2 * 3600)
    after = survey(directory)
    assert (after.leftovers, after.unreferenced) == (0, 0)
    assert len(after.entries) == len(found.entries)


def test_a_trim_does_not_disturb_builds(tmp_path: Path) -> None:
    code = """
from hatch_lower.cache import contents as module
from hatch_lower.cache.contents import StoreLimits, trim_store
number = random.Random(int(os.getpid()))
module.KEPT = -60.0  # a record may go as soon as it is written
until, removed, found = time.monotonic() + 2, 0, 0
while time.monotonic() < until:
    key = f"{number.randrange(20):064x}"
    if number.random() < 0.1:
        removed += trim_store(store.directory, StoreLimits(0, 1e9), time.time()).records
    value = store.get(key, "x")
    if value is not None:
        found += 1
        assert store.read_blob(value) == key.encode()
    store.put(key, {}, store.put_blob(key.encode()), [key.encode()])
assert removed and found
"""
    finish(start(code, tmp_path, 4))
