"""Counted instructions: perf on a machine, its output, and the reasons why instructions cannot be counted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.lowered import file_entry, floats, lowered_model, safetensors_bytes, write_lowered
from support.plans import c, constant, method, op, plan_value, tensor_input, v
from support.processes import is_running, wait_for

import hatch_lower.cli.measure.counted as counted
from hatch_lower.cli.measure.counted import CALL, LOAD, NOTHING, Counter, count_instructions, count_part, find_counter
from hatch_lower.cli.measure.figures import METRICS, ChildFigures, FigureSubject
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.files import PackagedFolder, open_folder

pytestmark = pytest.mark.torch

VECTOR = tensor_input(4)
FORWARD, EMBED = f"{CALL}forward", f"{CALL}embed"
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
part = json.loads((work / "request.json").read_text())["part"]
numbers = {table}.get(part, [])
if part in {table} or part in {reasons}:
    answer = {{"ranges": len(numbers), "reason": {reasons}.get(part, "")}}
    (work / "answer.json").write_text(json.dumps(answer))
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


def test_perf_counts(tmp_path: Path) -> None:
    assert find_counter({"PATH": str(tmp_path)}) == "perf is not installed"
    fake_perf(tmp_path, "1234,,instructions:u,600,100.00,,")
    assert find_counter({"PATH": str(tmp_path)}) == Counter(str(tmp_path / "perf"), {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("<not supported>,,instructions:u,0,100.00,,", "not supported"),
        ("<not counted>,,instructions:u,0,0.00,,", "not counted"),
        ("0,,instructions:u,600,100.00,,", "the count is 0"),
        ("", "the count is 0"),
        ("1234,,instructions:u,600,50.00,,", "another process uses the counter at the same time"),
    ],
)
def test_no_number_of_perf_is_a_reason(tmp_path: Path, rows: str, reason: str) -> None:
    fake_perf(tmp_path, rows)
    assert find_counter({"PATH": str(tmp_path)}) == f"perf: {reason}"


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
    assert find_counter({"PATH": str(tmp_path)}) == "perf: not permitted (perf_event_paranoid = 4)"


def test_a_perf_for_another_kernel_is_told_in_its_words(tmp_path: Path) -> None:
    fake_perf(tmp_path, "", said="WARNING: perf not found for kernel 6.8", status=2)
    assert find_counter({"PATH": str(tmp_path)}) == "perf: WARNING: perf not found for kernel 6.8"


def test_a_program_that_cannot_be_started_is_a_reason(tmp_path: Path) -> None:
    write_program(tmp_path, "perf", "no program")
    found = find_counter({"PATH": str(tmp_path)})
    assert isinstance(found, str)
    assert "OSError: [Errno 8] Exec format error" in found


def test_a_perf_that_cannot_be_controlled_is_too_old(tmp_path: Path) -> None:
    fake_perf(tmp_path, "1234,,instructions:u,600,100.00,,", usage="--control fd:")
    found = find_counter({"PATH": str(tmp_path)})
    assert found == "perf is too old: `perf stat` has no option `--control=fifo:…`"


def test_addresses_are_fixed_where_the_system_allows_it(tmp_path: Path) -> None:
    fake_perf(tmp_path, "1234,,instructions:u,600,100.00,,")
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
    path: Path, table: dict[str, list[int]], reasons: dict[str, str] | None = None, end: str = ""
) -> Counter:
    text = COUNTS.format(python=sys.executable, table=table, reasons=reasons or {}, end=end)
    return Counter(str(write_program(path / "bin", "counts", text)), os.environ)


def run_count(counter: Counter, folder: PackagedFolder) -> ChildFigures:
    return count_instructions(counter, folder, FigureSubject("digits", "portable"), ())


def test_the_cost_of_counting_is_subtracted(tmp_path: Path, folder: PackagedFolder) -> None:
    table = {NOTHING: [100, 100, 118], LOAD: [5000], FORWARD: [1000, 1100, 1500], EMBED: [90]}
    counts = run_count(fake_counts(tmp_path, table), folder)
    assert counts == ChildFigures(
        {
            FigureSubject("digits", "portable"): {"load-instructions": 5000 - 106},
            FigureSubject("digits", "portable", "forward"): {"call-instructions": 1200 - 106},
            FigureSubject("digits", "portable", "embed"): {"call-instructions": 0},
        },
        {},
    )
    assert {name for figures in counts.figures.values() for name in figures} == {
        name for name, metric in METRICS.items() if metric.tier == "counted"
    }


def test_the_counts_of_other_parts_stay_when_a_process_dies(tmp_path: Path, folder: PackagedFolder) -> None:
    end = f"import os; os.kill(os.getpid(), 4) if part not in {[NOTHING, LOAD]} else None"
    counter = fake_counts(tmp_path, {NOTHING: [10], LOAD: [30]}, end=end)
    why = "the process was ended by signal 4"
    assert run_count(counter, folder) == ChildFigures(
        {FigureSubject("digits", "portable"): {"load-instructions": 20}},
        {FigureSubject("digits", "portable", name): why for name in ("forward", "embed")},
    )


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the process was ended by signal 9"),
        ("sys.exit('no memory')", "no memory"),
        ("sys.exit(3)", "the process ended with status 3"),
        ("import time; time.sleep(60)", "the process took longer than 0.5 seconds"),
    ],
)
def test_a_process_that_ends_early_is_a_reason(
    end: str, reason: str, tmp_path: Path, folder: PackagedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "LIMIT_SECONDS", 0.5 if "sleep" in end else 60.0)
    counts = run_count(fake_counts(tmp_path, {}, end=end), folder)
    assert counts.figures == {}
    assert set(counts.reasons.values()) == {reason}
    assert len(counts.reasons) == 3


def test_nothing_stays_of_what_was_counted(tmp_path: Path, folder: PackagedFolder) -> None:
    pids = tmp_path / "pids"
    end = (
        "import subprocess; other = subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3)\n"  # to nowhere
        f"print(other.pid, file=open({str(pids)!r}, 'a'))"
    )
    counter = fake_counts(tmp_path, {NOTHING: [10], LOAD: [30], FORWARD: [20], EMBED: [20]}, end=end)
    assert run_count(counter, folder).reasons == {}
    running = [int(pid) for pid in pids.read_text().split()]
    wait_for(lambda: not any(map(is_running, running)), "what was started ends")


def test_a_reason_of_the_child_is_that_of_its_part(tmp_path: Path, folder: PackagedFolder) -> None:
    table = {NOTHING: [10], LOAD: [30], FORWARD: [20]}
    counts = run_count(fake_counts(tmp_path, table, {EMBED: "no inputs"}), folder)
    assert counts.reasons == {FigureSubject("digits", "portable", "embed"): "no inputs"}


def test_a_counter_that_leaves_no_numbers_is_a_reason(tmp_path: Path, folder: PackagedFolder) -> None:
    end = "(work / 'perf.csv').unlink()"
    counts = run_count(fake_counts(tmp_path, {NOTHING: [10], LOAD: [30]}, end=end), folder)
    assert counts.figures == {}
    assert counts.reasons[FigureSubject("digits", "portable")].startswith("perf left no numbers: ")


def test_a_damaged_plan_is_a_reason(tmp_path: Path, folder: PackagedFolder) -> None:
    (folder.path / "digits" / "portable.json").write_text("{}")
    reason = "a packaged program file is not the one that the manifest lists"
    assert run_count(fake_counts(tmp_path, {}), folder).reasons == {FigureSubject("digits", "portable"): reason}


class Noting:
    """A counter that notes its commands."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self) -> None:
        self.told.append("begin")

    def end(self) -> None:
        self.told.append("end")


@pytest.mark.parametrize(("part", "ranges"), [(NOTHING, 9), (LOAD, 1), (FORWARD, 9)])
def test_perf_counts_the_ranges_of_a_part_only(folder: PackagedFolder, part: str, ranges: int) -> None:
    assert counted_here(folder, part) == (ranges, ["begin", "end"] * ranges)


def test_a_method_without_check_inputs_is_refused(folder: PackagedFolder) -> None:
    with pytest.raises(ProgramError, match="its input 1 is not packaged"):
        counted_here(folder, EMBED)


def counted_here(folder: PackagedFolder, part: str) -> tuple[int, list[str]]:
    """Count a part in this process; return the number of ranges, and the counter's commands."""
    from hatch_lower.cli.measure.counted_child import CountedRun

    counter: Any = Noting()
    request = {"installed": False, "imports": [], "model": "digits", "recipe": "portable", "part": part}
    return CountedRun(request, folder.path, counter).count(), counter.told


def test_every_call_finds_the_state_that_was_packaged(folder: PackagedFolder) -> None:
    import torch
    from support.loading import load_folder

    from hatch_lower.cli.measure.counted_child import MethodCall
    from hatch_lower.format.plan import read_plan

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
    request = {"installed": False, "imports": [], "model": "digits", "recipe": "portable", "part": FORWARD}
    assert count_part(Counter(str(perf), os.environ), folder.path, request) == 1000.0


def test_what_counts_ends_with_who_asked_for_it_and_its_folder_goes(
    tmp_path: Path, folder: PackagedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without a perf that answers, the child waits for ever
    script = f'echo $$ > {tmp_path}/pid; while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    perf = write_program(tmp_path / "bin", "perf", f"#!/bin/sh\n{script}\n")
    request = {"installed": False, "imports": [], "model": "digits", "recipe": "portable", "part": LOAD}
    code = (
        "import os; from pathlib import Path; from hatch_lower.cli.measure.counted import Counter, count_part\n"
        f"counter, folder = Counter({str(perf)!r}, os.environ), Path({str(folder.path)!r})\n"
        f"count_part(counter, folder, {request})"
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
