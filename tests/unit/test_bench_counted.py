"""Counted instructions: which counter a machine has, what is read from it, and why something cannot be counted."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.lowered import file_entry, floats, lowered_model, safetensors_bytes, write_lowered
from support.plans import c, constant, method, op, plan_value, tensor_input, v
from support.processes import is_running, wait_for

import hatch_lower.cli.measure.counted as counted
from hatch_lower.cli.measure.counted import CALL, LOAD, NOTHING, Counter, count, count_parts, find_counter
from hatch_lower.cli.measure.figures import METRICS, Found, Subject
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.runtime.files import PackagedFolder, open_folder

pytestmark = pytest.mark.torch

VECTOR = tensor_input(4)
FORWARD, EMBED = f"{CALL}forward", f"{CALL}embed"
NONE = "perf: not installed; valgrind: not installed"
# Write what `perf stat -x,` writes, and know `--control`
PERF = """#!/bin/sh
while [ $# -gt 0 ]; do
  [ "$1" = -h ] && echo "{usage}" && exit 129
  [ "$1" = -o ] && output=$2
  shift
done
echo "{said}" >&2
echo "# started on a day

{rows}" > "$output"
exit {status}
"""
# Answers as the child does, with the numbers of ranges from a table
COUNTS = """#!{python}
import json, pathlib, sys
work = pathlib.Path()
parts = json.loads((work / "request.json").read_text())["parts"]
table = {table}
ranges, numbers, reasons = {{}}, [], {reasons}
for part in parts:
    if part in table:
        ranges[part] = [len(numbers) + 1 + index for index in range(len(table[part]))]
        numbers += table[part]
(work / "answer.json").write_text(json.dumps({{"ranges": ranges, "reasons": reasons}}))
for index, number in enumerate(numbers):
    (work / f"dump.{{index + 1}}").write_text(f"events: Ir\\nsummary: 1\\n\\ntotals: {{number}}\\n")
(work / "perf.csv").write_text(f"\\n{{sum(numbers)}},,instructions:u,5,100.00,,\\n")
{end}
"""


def write_program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_perf(folder: Path, rows: str, *, said: str = "", status: int = 0, usage: str = "--control fifo:") -> None:
    write_program(folder, "perf", PERF.format(rows=rows, said=said, status=status, usage=usage))


def fake_valgrind(folder: Path, script: str = "exit 0") -> None:
    write_program(folder, "valgrind", f"#!/bin/sh\n{script}\n")
    write_program(folder, "vgdb", "#!/bin/sh\n")


def test_perf_comes_first(tmp_path: Path) -> None:
    fake_perf(tmp_path, "1234,,instructions:u,600,100.00,,")
    fake_valgrind(tmp_path)
    assert find_counter({"PATH": str(tmp_path)}) == Counter("perf", str(tmp_path / "perf"))


def test_valgrind_counts_where_perf_does_not(tmp_path: Path) -> None:
    fake_perf(tmp_path, "<not supported>,,instructions:u,0,100.00,,")
    fake_valgrind(tmp_path)
    expected = Counter("callgrind", str(tmp_path / "valgrind"), str(tmp_path / "vgdb"))
    assert find_counter({"PATH": str(tmp_path)}) == expected


def test_a_machine_without_either_says_so(tmp_path: Path) -> None:
    assert find_counter({"PATH": str(tmp_path)}) == NONE


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("<not supported>,,instructions:u,0,100.00,,", "not supported"),
        ("<not counted>,,instructions:u,0,0.00,,", "not counted"),
        ("0,,instructions:u,600,100.00,,", "it counts nothing"),
        ("", "it counts nothing"),
        ("1234,,instructions:u,600,50.00,,", "others use the counter at the same time"),
    ],
)
def test_no_number_of_perf_is_a_reason(tmp_path: Path, rows: str, reason: str) -> None:
    fake_perf(tmp_path, rows)
    assert find_counter({"PATH": str(tmp_path)}) == NONE.replace("not installed;", f"{reason};")


def test_cores_of_two_kinds_are_added(tmp_path: Path) -> None:
    rows = "<not counted>,,cpu_atom/instructions/u,0,0.00,,\n1234,,cpu_core/instructions/u,600,100.00,,"
    fake_perf(tmp_path, rows)
    assert isinstance(find_counter({"PATH": str(tmp_path)}), Counter)


def test_a_kernel_that_permits_nothing_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paranoid").write_text("4\n")
    monkeypatch.setattr(counted, "PARANOID", tmp_path / "paranoid")
    said = "Error:\nConsider adjusting /proc/sys/kernel/perf_event_paranoid setting to open access"
    fake_perf(tmp_path, "", said=said, status=255)
    assert find_counter({"PATH": str(tmp_path)}) == (
        "perf: not permitted (perf_event_paranoid = 4); valgrind: not installed"
    )


def test_a_perf_for_another_kernel_is_told_in_its_words(tmp_path: Path) -> None:
    fake_perf(tmp_path, "", said="WARNING: perf not found for kernel 6.8", status=2)
    assert find_counter({"PATH": str(tmp_path)}) == (
        "perf: WARNING: perf not found for kernel 6.8; valgrind: not installed"
    )


def test_a_program_that_cannot_be_started_is_a_reason(tmp_path: Path) -> None:
    for name in ("perf", "valgrind", "vgdb"):
        write_program(tmp_path, name, "no program")
    found = find_counter({"PATH": str(tmp_path)})
    assert isinstance(found, str)
    assert found.count("OSError: [Errno 8] Exec format error") == 2


def test_a_perf_that_cannot_be_controlled_is_too_old(tmp_path: Path) -> None:
    fake_perf(tmp_path, "1234,,instructions:u,600,100.00,,", usage="--control fd:")
    assert find_counter({"PATH": str(tmp_path)}) == (
        "perf: too old: `perf stat` has no option `--control=fifo:…`; valgrind: not installed"
    )


def test_a_valgrind_that_fails_or_is_incomplete_is_a_reason(tmp_path: Path) -> None:
    fake_valgrind(tmp_path, "echo 'valgrind: no such tool' >&2; exit 1")
    assert find_counter({"PATH": str(tmp_path)}) == "perf: not installed; valgrind: valgrind: no such tool"
    (tmp_path / "vgdb").unlink()
    expected = "perf: not installed; valgrind: its program `vgdb` is not installed"
    assert find_counter({"PATH": str(tmp_path)}) == expected


def test_addresses_are_fixed_where_the_system_allows_it(tmp_path: Path) -> None:
    fake_valgrind(tmp_path)
    setarch = write_program(tmp_path, "setarch", "#!/bin/sh\nexit 0\n")
    found = find_counter({"PATH": str(tmp_path)})
    assert isinstance(found, Counter)
    assert found.prefix == (str(setarch), "-R")
    write_program(tmp_path, "setarch", "#!/bin/sh\nexit 1\n")
    found = find_counter({"PATH": str(tmp_path)})
    assert isinstance(found, Counter)
    assert found.prefix == ()


@pytest.fixture
def folder(tmp_path: Path) -> PackagedFolder:
    """A model whose method `forward` counts its calls; `embed` is packaged without check inputs."""
    place = tmp_path / "digits" / "_lowered"
    counting = [op("aten.add.Tensor", c("count"), v(0), out=1)]
    plan = plan_value(
        {
            "forward": method([VECTOR], counting, v(1), mutations=[("count", v(1))]),
            "embed": method([VECTOR], [op("aten.relu.default", v(0), out=1)], v(1)),
        },
        storages=[("count", "float32", 4)],
        constants={"count": constant(0, 4, mutable=True)},
    )
    model = lowered_model(place, "digits", {"portable": {"plan": plan}}, tensors={"count": floats(0, 0, 0, 0)})
    check = safetensors_bytes({"forward/input/0": floats(1, 1, 1, 1), "forward/output/0": floats(1, 1, 1, 1)})
    model["check"] = file_entry(place, "digits/check.safetensors", check)
    return open_folder(write_lowered(place, {"digits": model}))


def fake_counts(
    path: Path, tool: Any, table: dict[str, list[int]], reasons: dict[str, str] | None = None, end: str = ""
) -> Counter:
    text = COUNTS.format(python=sys.executable, table=table, reasons=reasons or {}, end=end)
    return Counter(tool, str(write_program(path / "bin", "counts", text)))


def run_count(counter: Counter, folder: PackagedFolder, limit_seconds: float = 60.0) -> Found:
    return count(counter, folder, "digits", "portable", os.environ, limit_seconds)


@pytest.mark.parametrize(
    ("tool", "load", "call"),
    [("perf", 5000 - 106, (1000 + 1100 + 1500) / 3 - 106), ("callgrind", 5000 - 100, 1100 - 100)],
)
def test_what_counting_costs_is_taken_off(
    tool: str, load: float, call: float, tmp_path: Path, folder: PackagedFolder
) -> None:
    table = {NOTHING: [100, 100, 118], LOAD: [5000], FORWARD: [1000, 1100, 1500], EMBED: [90]}
    counts = run_count(fake_counts(tmp_path, tool, table), folder)
    assert counts == Found(
        {
            Subject("digits", "portable"): {"load-instructions": load},
            Subject("digits", "portable", "forward"): {"call-instructions": call},
            Subject("digits", "portable", "embed"): {"call-instructions": 0},
        },
        {},
    )
    assert {name for figures in counts.figures.values() for name in figures} == {
        name for name, metric in METRICS.items() if metric.tier == "counted"
    }


def test_what_was_counted_before_the_process_died_stays(tmp_path: Path, folder: PackagedFolder) -> None:
    counter = fake_counts(tmp_path, "callgrind", {NOTHING: [10], LOAD: [30]}, end="import os; os.kill(os.getpid(), 4)")
    why = "valgrind does not know an instruction that it needs (it has no AVX-512)"
    assert run_count(counter, folder) == Found(
        {Subject("digits", "portable"): {"load-instructions": 20}},
        {Subject("digits", "portable", name): why for name in ("forward", "embed")},
    )


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the process was ended by signal 9"),
        ("sys.exit('no memory')", "no memory"),
        ("sys.exit(3)", "the process ended with status 3"),
        ("import time; time.sleep(60)", "it took longer than 0.5 seconds"),
    ],
)
def test_a_process_that_ends_early_is_a_reason(end: str, reason: str, tmp_path: Path, folder: PackagedFolder) -> None:
    counts = run_count(fake_counts(tmp_path, "callgrind", {}, end=end), folder, 0.5 if "sleep" in end else 60.0)
    assert counts.figures == {}
    assert set(counts.reasons.values()) == {reason}
    assert len(counts.reasons) == 3


def test_nothing_stays_of_what_was_counted(tmp_path: Path, folder: PackagedFolder) -> None:
    pids = tmp_path / "pids"
    end = (
        "import subprocess; other = subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3)\n"  # to nowhere
        f"print(other.pid, file=open({str(pids)!r}, 'a'))"
    )
    counter = fake_counts(tmp_path, "callgrind", {NOTHING: [10], LOAD: [30], FORWARD: [20], EMBED: [20]}, end=end)
    assert run_count(counter, folder).reasons == {}
    running = [int(pid) for pid in pids.read_text().split()]
    wait_for(lambda: not any(map(is_running, running)), "what was started ends")


def test_a_reason_of_the_child_is_that_of_its_part(tmp_path: Path, folder: PackagedFolder) -> None:
    table = {NOTHING: [10], LOAD: [30], FORWARD: [20]}
    counts = run_count(fake_counts(tmp_path, "perf", table, {EMBED: "no inputs"}), folder)
    assert counts.reasons == {Subject("digits", "portable", "embed"): "no inputs"}


def test_a_counter_that_leaves_no_numbers_is_a_reason(tmp_path: Path, folder: PackagedFolder) -> None:
    end = "[path.write_text('cut') for path in work.glob('dump.*')]"
    counts = run_count(fake_counts(tmp_path, "callgrind", {NOTHING: [10], LOAD: [30]}, end=end), folder)
    assert counts.figures == {}
    assert counts.reasons[Subject("digits", "portable")].startswith("callgrind left no numbers: ")


def test_a_damaged_plan_is_a_reason(tmp_path: Path, folder: PackagedFolder) -> None:
    (folder.path / "digits" / "portable.json").write_text("{}")
    reason = "a packaged program file is not the one that the manifest lists"
    assert run_count(fake_counts(tmp_path, "perf", {}), folder).reasons == {Subject("digits", "portable"): reason}


class Noting:
    """A counter that notes what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def begin(self) -> None:
        self.told.append("begin")

    def end(self) -> int:
        self.told.append("end")
        return self.told.count("end")


@pytest.fixture
def answered(folder: PackagedFolder, tmp_path: Path) -> Callable[[list[str]], tuple[dict[str, Any], list[str]]]:
    """Counts parts in this process; returns the answer, and what the counter was told."""

    def run(parts: list[str]) -> tuple[dict[str, Any], list[str]]:
        from hatch_lower.cli.measure.counted_child import Answer, Run

        request = {
            "installed": False,
            "imports": [],
            "model": "digits",
            "recipe": "portable",
            "parts": parts,
        }
        counter = Noting()
        Run(request, folder.path, counter, Answer(tmp_path / "answer.json")).count()
        return json.loads((tmp_path / "answer.json").read_text()), counter.told

    return run


def test_each_range_belongs_to_a_part(
    answered: Callable[[list[str]], tuple[dict[str, Any], list[str]]],
) -> None:
    answer, told = answered([NOTHING, LOAD, FORWARD])
    numbers = list(range(1, 20))
    assert answer == {
        "ranges": {NOTHING: numbers[:9], LOAD: numbers[9:10], FORWARD: numbers[10:]},
        "reasons": {},
    }
    assert " ".join(told) == " ".join(["start", *["begin end"] * 19])


def test_perf_is_asked_for_one_part_and_counts_nothing_else(
    answered: Callable[[list[str]], tuple[dict[str, Any], list[str]]],
) -> None:
    for part, ranges in ((NOTHING, 9), (LOAD, 1), (FORWARD, 9)):
        answer, told = answered([part])
        assert answer["ranges"] == {part: list(range(1, ranges + 1))}
        assert told.count("begin") == ranges


def test_a_method_without_check_inputs_is_a_reason_and_the_others_are_counted(
    answered: Callable[[list[str]], tuple[dict[str, Any], list[str]]],
) -> None:
    answer, _ = answered([EMBED, FORWARD])
    assert answer == {"ranges": {FORWARD: list(range(1, 10))}, "reasons": {EMBED: "its input 1 is not packaged"}}


def test_a_call_that_fails_leaves_the_counter_as_it_was(folder: PackagedFolder, tmp_path: Path) -> None:
    from hatch_lower.cli.measure.counted_child import Answer, Run

    counter, failing = Noting(), functools.partial(int, "none")
    run = Run(
        {"parts": [], "installed": False, "imports": [], "model": "", "recipe": ""},
        folder.path,
        counter,
        Answer(tmp_path / "a"),
    )
    with pytest.raises(ValueError, match="none"):
        run._range(FORWARD, failing)
    assert counter.told == ["begin", "end"]


def test_every_call_finds_the_state_that_was_packaged(folder: PackagedFolder) -> None:
    import torch

    from hatch_lower.cli.measure.counted_child import MethodCall
    from hatch_lower.format.plan import read_plan
    from hatch_lower.runtime.load import load_folder

    plan = read_plan((folder.path / "digits" / "portable.json").read_bytes(), "portable.json")
    for stateful in (False, True):
        loaded = load_folder(folder.path)
        call = MethodCall(loaded, "forward", plan.methods["forward"], [torch.ones(4)], stateful)
        call.warm_up()
        # a delegate with state is made anew, so a call comes first that is not counted
        assert [call.prepared()()[0].item() for _ in range(3)] == [2.0 if stateful else 1.0] * 3


CONTROLLED = """#!{python}
# What `perf stat --delay=-1 --control=fifo:…` does, with a count of 1000 for each range
import os, subprocess, sys
option = next(word for word in sys.argv if word.startswith("--control=fifo:"))
control, answers = (os.open(name, os.O_RDWR) for name in option.removeprefix("--control=fifo:").split(","))
child = subprocess.Popen(sys.argv[sys.argv.index("--") + 1 :])
told = b""
while child.poll() is None:
    os.set_blocking(control, False)
    try:
        told += os.read(control, 16)
        os.write(answers, b"ack\\n\\0")
    except BlockingIOError:
        pass
output = sys.argv[sys.argv.index("-o") + 1]
open(output, "w").write(f"{{1000 * told.count(b'enable')}},,instructions:u,5,100.00,,\\n")
sys.exit(child.returncode or told.count(b"enable") != told.count(b"disable"))
"""


def test_the_child_switches_perf_around_each_call(tmp_path: Path, folder: PackagedFolder) -> None:
    perf = write_program(tmp_path / "bin", "perf", CONTROLLED.format(python=sys.executable))
    request = {"installed": False, "imports": [], "model": "digits", "recipe": "portable"}
    counts = count_parts(Counter("perf", str(perf)), folder.path, request, [FORWARD], os.environ, 120.0)
    assert counts == ({FORWARD: 1000.0}, {})


def test_what_counts_ends_with_who_asked_for_it_and_its_folder_goes(
    tmp_path: Path, folder: PackagedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without a perf that answers, the child waits for ever
    script = f'echo $$ > {tmp_path}/pid; while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    perf = write_program(tmp_path / "bin", "perf", f"#!/bin/sh\n{script}\n")
    request = {"installed": False, "imports": [], "model": "digits", "recipe": "portable"}
    code = (
        "import os; from pathlib import Path; from hatch_lower.cli.measure.counted import Counter, count_parts\n"
        f"counter, folder = Counter('perf', {str(perf)!r}), Path({str(folder.path)!r})\n"
        f"count_parts(counter, folder, {request}, [{LOAD!r}], os.environ, 600)"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)}) as parent:
        wait_for(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()), "it counts", parent)
        pid = int((tmp_path / "pid").read_text())
        assert is_running(pid)
        parent.kill()
    wait_for(lambda: not is_running(pid), "it ends")
    assert len(list(temporary.iterdir())) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with work_folder() as work:  # as the next benchmark does
        assert list(temporary.iterdir()) == [work]


@pytest.mark.long  # valgrind takes half a minute to import torch
def test_callgrind_counts_a_load_and_a_call(folder: PackagedFolder) -> None:
    counter = counted.find_callgrind(os.environ)
    if isinstance(counter, str):
        pytest.skip(f"valgrind: {counter}")
    counts = run_count(counter, folder, 300.0)
    load = counts.figures[Subject("digits", "portable")]["load-instructions"]
    call = counts.figures[Subject("digits", "portable", "forward")]["call-instructions"]
    assert counts.reasons == {Subject("digits", "portable", "embed"): "its input 1 is not packaged"}
    assert load > 10 * call > 10_000
