"""Progress events: what crosses to the parent, and what the reporters show."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from support.kept_events import Events

from hatch_lower.events import CollapsedOutput, Event, LineReporter, LiveReporter, NullReporter, stage
from hatch_lower.format.codec import decode

CLEAR = "\r\x1b[2K"


@pytest.mark.parametrize(
    ("event", "subject"),
    [
        (Event("export", "start", "digits"), "digits"),
        (Event("export", "start", "digits", method="embed"), "digits.embed"),
        (Event("lower", "start", "digits", "default"), "digits/default"),
        (Event("lower", "start", "digits", "default", "embed"), "digits/default.embed"),
    ],
)
def test_a_subject_names_what_is_there(event: Event, subject: str) -> None:
    assert event.subject() == subject


def test_an_event_survives_json() -> None:
    event = Event("verify", "end", "digits", "default", "embed", 0.25, "4 cases")
    assert decode(Event, json.loads(json.dumps(event.to_json())), "an event") == event


def test_a_stage_reports_its_start_and_its_end() -> None:
    recorder = Events()
    with stage(recorder, "edge", "digits", "default", "embed") as detail:
        detail("12 nodes")
    start, end = recorder.seen
    assert start == Event("edge", "start", "digits", "default", "embed")
    assert (end.state, end.detail, end.subject()) == ("end", "12 nodes", "digits/default.embed")
    assert end.seconds >= 0
    assert start.ends_with(end)


def test_a_stage_that_raises_has_no_end() -> None:
    recorder = Events()
    with pytest.raises(ValueError, match="no"), stage(recorder, "edge", "digits"):
        raise ValueError("no")
    assert [event.state for event in recorder.seen] == ["start"]


def test_the_line_reporter_writes_finished_stages_and_notes() -> None:
    lines: list[str] = []
    reporter = LineReporter(lines.append)
    reporter.report(Event("edge", "start", "digits", "default"))
    reporter.report(Event("edge", "end", "digits", "default", "", 1.5, "12 nodes"))
    reporter.report(Event("cache", "note", "digits", detail="a damaged entry was replaced"))
    reporter.close()
    assert lines == [
        "lower  digits/default                   edge         1.50 s  12 nodes",
        "lower  digits: a damaged entry was replaced",
    ]


def test_the_line_reporter_says_how_long_a_stage_has_taken() -> None:
    lines: list[str] = []
    LineReporter(lines.append).report(Event("lower", "going", "digits", "default", "", 20.4))
    assert lines == ["lower  digits/default                   lower       20 s so far"]


def test_lines_of_the_models_code_are_counted_and_kept(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "logs" / "last.log"
    reporter = CollapsedOutput(LineReporter(lines.append), log)
    for text in ("UserWarning: old", "UserWarning: old", "loading"):
        reporter.report(Event("output", "note", "digits", detail=text))
    reporter.report(Event("cache", "note", "digits", detail="a damaged entry was replaced"))
    reporter.report(Event("output", "note", "words", detail="loading"))
    reporter.close()
    assert lines == [
        "lower  digits: a damaged entry was replaced",
        f"lower  digits: 3 lines of output by the model's code (HATCH_VERBOSE=1 shows them, kept in {log})",
        f"lower  words: 1 line of output by the model's code (HATCH_VERBOSE=1 shows them, kept in {log})",
    ]
    assert log.read_text().splitlines() == [
        "digits: UserWarning: old",
        "digits: UserWarning: old",
        "digits: loading",
        "words: loading",
    ]


def test_lines_of_the_models_code_are_counted_where_none_can_be_kept(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "file").touch()
    for path in (None, tmp_path / "file" / "last.log"):
        reporter = CollapsedOutput(LineReporter(lines.append), path)
        reporter.report(Event("output", "note", "digits", detail="loading"))
        reporter.close()
    assert lines == ["lower  digits: 1 line of output by the model's code (HATCH_VERBOSE=1 shows them)"] * 2


def test_a_build_that_prints_nothing_keeps_what_the_last_one_printed(tmp_path: Path) -> None:
    (tmp_path / "last.log").write_text("digits: loading\n")
    reporter = CollapsedOutput(LineReporter([].append), tmp_path / "last.log")
    reporter.report(Event("edge", "end", "digits"))
    reporter.close()
    assert (tmp_path / "last.log").read_text() == "digits: loading\n"


def live(columns: int = 80) -> tuple[io.StringIO, LiveReporter]:
    """Return a terminal and a reporter that writes its lines to the same."""
    stream = io.StringIO()
    return stream, LiveReporter(stream, lambda line: stream.write(f"{line}\n") and None, columns)


def test_the_live_line_is_cleared_for_a_finished_one() -> None:
    stream, reporter = live()
    reporter.report(Event("edge", "start", "digits"))
    reporter.report(Event("edge", "end", "digits", seconds=0.5))
    reporter.close()
    finished = "lower  digits                           edge         0.50 s"
    assert stream.getvalue() == f"{CLEAR}  lower  digits: edge …{CLEAR}{finished}\n"


def test_the_live_line_goes_back_to_a_stage_that_is_still_under_way() -> None:
    stream, reporter = live()
    reporter.report(Event("edge", "start", "one"))
    reporter.report(Event("edge", "start", "two"))
    reporter.report(Event("edge", "end", "two"))
    assert stream.getvalue().endswith(f"{CLEAR}  lower  one: edge …")
    reporter.report(Event("output", "note", "one", detail="loading"))
    assert stream.getvalue().endswith(f"{CLEAR}lower  one: loading\n{CLEAR}  lower  one: edge …")
    reporter.close()
    assert stream.getvalue().endswith(CLEAR)


def test_the_live_line_stays_while_a_stage_goes_on() -> None:
    stream, reporter = live()
    reporter.report(Event("edge", "start", "digits"))
    reporter.report(Event("edge", "going", "digits", seconds=10.0))
    assert stream.getvalue() == f"{CLEAR}  lower  digits: edge …" * 2


def test_a_live_view_of_several_lines_is_drawn_over() -> None:
    stream, reporter = live()
    reporter.report(Event("edge", "start", "digits"))
    reporter.report(Event("units", "live", "net", detail="1 of 3 units made\n 9 s  digits/default"))
    reporter.report(Event("units", "live", "net", detail="2 of 3 units made"))
    reporter.report(Event("units", "live", "net"))
    assert stream.getvalue() == (
        f"{CLEAR}  lower  digits: edge …"
        f"{CLEAR}  lower  1 of 3 units made\n  lower   9 s  digits/default"
        f"{CLEAR}\x1b[1A\x1b[2K  lower  2 of 3 units made"
        f"{CLEAR}  lower  digits: edge …"
    )


def test_lines_are_no_live_view() -> None:
    lines: list[str] = []
    reporter = LineReporter(lines.append)
    reporter.report(Event("units", "live", "net", detail="1 of 3 units made"))
    reporter.report(Event("units", "going", "net", seconds=30.0, detail="1 of 3 units made"))
    assert lines == ["lower  net                              units       30 s so far  1 of 3 units made"]


def test_the_live_line_never_wraps() -> None:
    stream, reporter = live(columns=12)
    reporter.report(Event("edge", "start", "a-long-name"))
    assert len(stream.getvalue()) == len(CLEAR) + 11


def test_a_reporter_without_a_live_line_clears_nothing() -> None:
    stream, reporter = live()
    reporter.close()
    assert stream.getvalue() == ""


def test_a_terminal_obeys_nothing_in_an_event() -> None:
    evil = "\x1b]0;pwned\x07\x9b31m"
    lines: list[str] = []
    for state in ("note", "end", "going"):
        LineReporter(lines.append).report(Event(evil, state, evil, detail=f"first\n{evil}"))
    assert all(line.replace("\n", "").isprintable() and "first\n\\u001b]0;pwned" in line for line in lines)
    stream, reporter = live()
    reporter.report(Event("units", "live", "net", detail=f"first {evil}"))
    assert stream.getvalue() == CLEAR + "  lower  first \\u001b]0;pwned\\u0007\\u009b31m"


def test_the_null_reporter_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = NullReporter()
    reporter.report(Event("edge", "end", "digits"))
    assert capsys.readouterr() == ("", "")
