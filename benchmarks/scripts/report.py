"""The report page in a browser: `python benchmarks/scripts/report.py PAGE.html [--browser /usr/bin/chromium]`.

Prints JSON: the page's size; seconds until the page is there, until its graph is drawn, and until all of it is expanded
and drawn; frames a second while the expanded graph is moved at several scales, and the work for one in milliseconds.
`idle` is the same with nothing to do, and `empty` with a drawing of nothing that is moved: what the machine gives a
browser at that time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PAINTED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
# moves the drawing as a pointer does, a step for each frame, and returns the times of the frames
PAN = """([seconds, moves]) => new Promise((done) => {
  const drawing = hatch.graphView().drawing;
  const times = [];
  const work = [];
  const frame = drawing.frame;
  drawing.frame = function () {
    const start = performance.now();
    frame.call(this);
    work.push(performance.now() - start);
  };
  const step = (now) => {
    times.push(now);
    if (moves) drawing.move(7 * Math.cos(now / 700), 9 * Math.sin(now / 500));
    if (now - times[0] < seconds * 1000) return requestAnimationFrame(step);
    delete drawing.frame;
    done([times, work]);
  };
  requestAnimationFrame(step);
})"""


def seconds_of(page: Page, what: str) -> float:
    start = time.perf_counter()
    page.evaluate(what)
    page.evaluate(PAINTED)
    return round(time.perf_counter() - start, 3)


def frames_of(page: Page, seconds: float, *, moves: bool = True) -> dict[str, float]:
    times, work = page.evaluate(PAN, [seconds, moves])
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    return {
        "frames_per_second": round(1000 * len(gaps) / (times[-1] - times[0]), 1),
        "longest_gap_ms": round(gaps[-1], 1),
        "late_frames": sum(gap > 25 for gap in gaps),
        "mean_work_ms": round(sum(work) / max(1, len(work)), 2),
        "longest_work_ms": round(max(work, default=0.0), 1),
    }


def measure(path: Path, browser: str, seconds: float) -> dict[str, object]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1500, "height": 950})
        start = time.perf_counter()
        page.goto(path.resolve().as_uri())
        there = round(time.perf_counter() - start, 3)
        drawn = seconds_of(page, "hatch.openTab('graph')")
        expanded = seconds_of(page, "hatch.graphView().openAll(true)")
        view = "Object.assign(hatch.graphView().drawing.view, {scale: %s}); hatch.graphView().drawing.redraw()"
        result: dict[str, object] = {
            "bytes": path.stat().st_size,
            "page_seconds": there,
            "graph_seconds": drawn,
            "expand_seconds": expanded,
            "boxes": page.evaluate("hatch.graphView().drawing.scene.boxes.length"),
            "idle": frames_of(page, seconds, moves=False),
            "whole_graph": frames_of(page, seconds),
        }
        for scale in (0.2, 1):
            page.evaluate(view % scale)
            result[f"scale_{scale}"] = frames_of(page, seconds)
        page.evaluate("hatch.graphView().drawing.show({ boxes: [], lines: [], width: 1, height: 1 })")
        result["empty"] = frames_of(page, seconds)
        chromium.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--seconds", type=float, default=4.0, help="of moving the drawing")
    given = parser.parse_args()
    print(json.dumps(measure(given.page, given.browser, given.seconds), indent=2))


if __name__ == "__main__":
    main()
