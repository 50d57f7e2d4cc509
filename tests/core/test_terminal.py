"""The summary table and the choice of a reporter."""

from __future__ import annotations

from pathlib import Path

import pytest
from hatchling.bridge.app import Application

from hatch_lower.events import CollapsedOutput, LineReporter, LiveReporter, Reporter
from hatch_lower.format.results import MethodRow, PayloadFile
from hatch_lower.hatch.terminal import LARGE, method_table_lines, reporter_for, total_line, writing_line


def reporter_of(app: Application) -> Reporter:
    return reporter_for(app.display_info, app.verbosity, None)


def test_the_table_is_aligned() -> None:
    rows = [
        MethodRow("digits", "default", "forward", 12, 12, 3, 1_234_567, 10.5, 0),
        MethodRow("digits", "default", "embed", 8, 7, 3, 1000, 0.25, 1),
        MethodRow("digits", "portable", "forward", 12, 0, 0, 0, 0.0, 0),
        MethodRow("digits", "other", "forward", 12, 12, 3, 5, 0.0, 3, level=3),
        MethodRow("digits", "same", "forward", 12, 12, 3, 5, 0.0, 3, level=2),
        MethodRow("digits", "known", "forward", 12, 12, 3, 5, 0.0, 3, level=1),
    ]
    assert method_table_lines(rows) == [
        "model   method   recipe    nodes  delegated  partitions      bytes  seconds",
        "digits  forward  default      12         12           3  1,234,567    10.50  built",
        "digits  embed    default       8          7           3      1,000     0.25  1 reused, 2 built",
        "digits  forward  portable     12          0           0          0     0.00  nothing to lower",
        "digits  forward  other        12         12           3          5     0.00  reused",
        "digits  forward  same         12         12           3          5     0.00  same graph",
        "digits  forward  known        12         12           3          5     0.00  unchanged",
    ]


def test_a_reason_is_said_once_for_all_rows_that_it_explains() -> None:
    def row(model: str, recipe: str, method: str, note: str) -> MethodRow:
        return MethodRow(model, recipe, method, 1, 1, 1, 1, 0.0, 0, note)

    alike = [
        row("a", recipe, method, "first build") for recipe in ("default", "more") for method in ("forward", "embed")
    ]
    other = [row("b", recipe, "forward", "weights only: 1 of 2 tensors") for recipe in ("default", "more")]
    other += [row("b", recipe, "embed", "") for recipe in ("default", "more")]
    lines = method_table_lines([*alike, *other])
    assert lines[9:] == ["why a: first build", "why b.forward: weights only: 1 of 2 tensors"]


def test_nothing_lowered_is_no_table() -> None:
    assert method_table_lines([]) == []


def test_a_live_line_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_VERBOSE", "1")
    assert isinstance(reporter_of(Application()), LineReporter)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert isinstance(reporter_of(Application()), LiveReporter)


def test_what_models_print_is_collapsed_unless_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(reporter_of(Application()), CollapsedOutput)
    monkeypatch.setenv("HATCH_QUIET", "1")
    assert isinstance(reporter_of(Application()), CollapsedOutput)


def test_a_large_payload_is_announced_before_it_is_written() -> None:
    small, large = (PayloadFile("a", Path("a"), size, "") for size in (LARGE // 2 - 1, LARGE // 2))
    assert list(writing_line([small, large])) == []
    assert list(writing_line([large, large])) == ["lower  writing 64.0 MiB of programs and weights into the wheel"]


def test_the_last_line_has_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(bytes(5000))
    assert total_line(tmp_path / "a.whl", 393.04) == "wheel of 4.88 KiB in 393.0 s"
