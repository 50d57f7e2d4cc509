"""The report page in a real browser: it draws, can be used, loads nothing, and runs nothing of what it shows."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.page_wheels import page_wheel

from hatch_lower.cli.main import main
from hatch_lower.format.debug_map import NO_REASON, Detail, Origin

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
]

ORIGINS = [
    Origin("aten.conv2d.default", "net.0", "digits/model.py:2"),
    Origin("aten.relu.default", "net.1", "digits/model.py:3"),
    Origin("aten.linear.default", "net.0", "digits/model.py:2"),
    Origin("aten.cumsum.default", "", "digits/model.py:4"),
]
SOURCE = "class Net:\n    first = conv(x)\n    second = relu(first)\n    return cumsum(second)\n"
EVIL = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\u2028\"'&lt;"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page in a browser, with all that it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, theme: str = "light") -> None:
        self.context = browser.new_context(color_scheme=theme, viewport={"width": 1400, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.asked: list[str] = []
        self.told: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.told.append(message.text))
        self.page.on("pageerror", lambda error: self.told.append(str(error)))
        self.page.goto(path.as_uri())

    def open_tab(self, name: str) -> None:
        self.page.click(f"#tab-{name}")

    def items(self) -> list[str]:
        """Return the labels of what the graph shows."""
        labels: list[str] = self.page.evaluate("hatch.graphView().drawing.scene.boxes.map((box) => box.item.label)")
        return labels

    def colours(self) -> int:
        """Return how many colours the drawing has."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        number: int = self.page.evaluate(
            "() => { const { canvas } = hatch.graphView().drawing; const copy = document.createElement('canvas');"
            " Object.assign(copy, { width: canvas.width, height: canvas.height });"
            " const context = copy.getContext('2d', { willReadFrequently: true }); context.drawImage(canvas, 0, 0);"
            " const { data } = context.getImageData(0, 0, copy.width, copy.height);"
            " return new Set(new Uint32Array(data.buffer)).size; }"
        )
        return number


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Return a function that makes a wheel's page and opens it; none may load anything else or complain."""
    pages: list[Opened] = []

    def open_page(wheel: Path, *options: str, theme: str = "light") -> Opened:
        path = tmp_path / "report.html"
        result = CliRunner().invoke(main, ["report", str(wheel), "-o", str(path), *options])
        assert result.exit_code == 0, result.output
        pages.append(Opened(browser, path, theme))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.told == []
        assert page.asked == [(tmp_path / "report.html").as_uri()]
        page.context.close()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return page_wheel(tmp_path / "digits-1.0.whl", ORIGINS, delegated=3, members={"digits/model.py": SOURCE})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_graph_is_drawn_in_both_themes(opened: Open, wheel: Path, theme: str) -> None:
    page = opened(wheel, theme=theme)
    background = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (theme == "light")
    page.open_tab("graph")
    assert {"image", "partition 0: aoti", "cumsum"} <= set(page.items())
    assert page.colours() > 5
    page.page.select_option("#theme", "dark" if theme == "light" else "light")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != background
    assert page.colours() > 5


def test_a_partition_expands_and_collapses_by_keyboard_and_pointer(opened: Open, wheel: Path) -> None:
    page = opened(wheel)
    page.open_tab("graph")
    page.page.click("#collapse")
    assert page.items() == ["image", "partition 0: aoti", "cumsum"]
    row = page.page.locator('[role="treeitem"]', has_text="partition 0").first
    row.focus()
    page.page.keyboard.press("ArrowRight")
    assert row.get_attribute("aria-expanded") == "true"
    assert "net" in page.items()
    page.page.keyboard.press("ArrowLeft")
    assert page.items() == ["image", "partition 0: aoti", "cumsum"]
    box = page.page.evaluate(
        "() => { const d = hatch.graphView().drawing; const f = d.holder.getBoundingClientRect();"
        " const b = d.scene.boxes.find((box) => box.item.kind === 'partition');"
        " return [f.left + d.view.x + (b.x + b.width / 2) * d.view.scale,"
        " f.top + d.view.y + (b.y + b.height / 2) * d.view.scale]; }"
    )
    page.page.mouse.dblclick(*box)
    assert "net" in page.items()
    assert (
        page.page.evaluate(
            "(() => { const ids = [...document.querySelectorAll('[id]')].map((each) => each.id);"
            " return ids.length - new Set(ids).size; })()"
        )
        == 0
    )


def test_a_search_finds_a_line_and_shows_its_operation(opened: Open, wheel: Path) -> None:
    page = opened(wheel)
    page.open_tab("graph")
    page.page.click("#collapse")
    page.page.fill("#search", "model.py:3")
    assert page.page.inner_text("#found") == "1 operation found"
    page.page.press("#search", "Enter")
    details = page.page.inner_text("#details")
    assert "aten.relu.default" in details
    assert "aoti, partition 0" in details
    assert any("relu" in label for label in page.items())
    assert page.page.evaluate("document.querySelectorAll('[aria-selected=true]').length") >= 1


def test_a_line_of_the_source_has_its_engine_and_why_it_has_none(opened: Open, wheel: Path) -> None:
    page = opened(wheel)
    page.open_tab("source")
    text = page.page.inner_text("#lines")
    assert "second = relu(first)" in text
    assert "1 operation not delegated: it has no kernel for this" in text
    page.page.click("#line-3 button")
    assert page.page.input_value("#search") == "digits/model.py:3"
    assert "aten.relu.default" in page.page.inner_text("#details")
    page.page.click("#details button.link")
    assert "chosen" in (page.page.get_attribute("#line-3", "class") or "")


def test_times_are_on_the_lines_and_colour_the_graph(opened: Open, wheel: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(
        '{"schema": 1, "model": "digits", "method": "forward", "calls": 3, "recipes": {"default": {"seconds": 0.004,'
        '"rows": [{"source": "digits/model.py:2", "module": "net.0", "op": "aten.conv2d.default", "engine": "aoti",'
        '"seconds": 0.003, "calls": 3}], "unattributed": 0.001, "overhead": 0.01}}}'
    )
    page = opened(wheel, "--profile", str(profile))
    page.open_tab("source")
    assert "3 ms" in page.page.inner_text("#line-2")
    assert page.page.get_attribute("#line-2 meter", "aria-label") == "100 percent of the slowest line"
    page.open_tab("graph")
    page.page.select_option("#colouring", "time")
    assert "slowest operation: 3 ms" in page.page.inner_text("#legend")


def test_hostile_names_are_shown_and_do_not_run(opened: Open, tmp_path: Path) -> None:
    origins = [Origin(EVIL, f"{EVIL}.a", f"{EVIL}.py:1"), Origin(f"aten.x{EVIL}", EVIL, "digits/model.py:1")]
    wheel = page_wheel(
        tmp_path / "evil.whl",
        [*origins, *ORIGINS],
        delegated=1,
        reason=EVIL,
        model=EVIL,
        version=EVIL,
        members={"digits/model.py": EVIL, "evil.dist-info/sboms/hatch-lower.cdx.json": sbom(EVIL)},
        recipes=[EVIL],
        details=[Detail(EVIL, (EVIL, f"weight: {EVIL}"))] * 2,
        shapes={f"{EVIL}.weight": (4,)},
        check=check_file(f"forward/input/{EVIL}"),
    )
    page = opened(wheel)
    for tab in ("graph", "source", "errors", "constants", "sbom", "changes", "summary"):
        page.open_tab(tab)
    page.open_tab("graph")
    page.page.click("#expand")
    page.page.fill("#search", "onerror")
    page.page.press("#search", "Enter")
    page.page.wait_for_timeout(200)
    assert page.page.evaluate("typeof window.ran") == "undefined"
    assert page.page.evaluate("document.querySelectorAll('img').length") == 0
    assert "<img src=x onerror=" in page.page.inner_text("#details")
    assert EVIL.partition("\u2028")[0] in page.page.title()


def check_file(name: str) -> bytes:
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def test_an_operation_has_its_result_its_arguments_and_those_of_its_neighbours(opened: Open, tmp_path: Path) -> None:
    details = [Detail("float32[2, 4, 7, 7]", ("weight: net.0.weight float32[4, 3, 3, 3]", "stride: [2, 2]"))]
    wheel = page_wheel(tmp_path / "digits-1.0.whl", ORIGINS, delegated=3, details=details)
    page = opened(wheel)
    page.open_tab("graph")
    page.page.fill("#search", "stride: [2, 2]")
    page.page.press("#search", "Enter")
    shown = page.page.inner_text("#details")
    assert all(text in shown for text in ("float32[2, 4, 7, 7]", *details[0].arguments))
    page.page.fill("#search", "relu")
    page.page.press("#search", "Enter")
    assert "conv2d (digits/model.py:2): float32[2, 4, 7, 7]" in page.page.inner_text("#details").replace("net.0: ", "")


def test_a_portable_recipe_marks_no_operation(opened: Open, tmp_path: Path) -> None:
    page = opened(page_wheel(tmp_path / "digits-1.0.whl", ORIGINS, reason=NO_REASON))
    page.open_tab("graph")
    assert "no engine took it" not in page.page.inner_text("#legend")
    page.open_tab("source")
    assert page.page.locator("tr.refused").count() == 0
    page.open_tab("summary")
    assert "operations that no engine took" not in page.page.inner_text("#summary")


def test_modules_have_the_total_of_what_is_below(opened: Open, tmp_path: Path) -> None:
    shapes = {"net.10.weight": (4, 8), "net.2.weight": (8,), "net.2.bias": (2,), "scale": (1,)}
    page = opened(page_wheel(tmp_path / "digits-1.0.whl", ORIGINS, shapes=shapes))
    page.open_tab("constants")
    assert "43 numbers in parameters and buffers" in page.page.inner_text("#constants")
    rows = page.page.locator("#constants table").first.locator("tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["net", "42", "168", "B", "97.7", "%"],
        ["net.2", "10", "40", "B", "23.3", "%"],
        ["net.10", "32", "128", "B", "74.4", "%"],
    ]


def sbom(text: str) -> str:
    component = {"type": "library", "name": text, "version": text, "licenses": [{"expression": text}]}
    return json.dumps({"components": [component], "metadata": {}})


def test_ten_thousand_operations_are_drawn_and_moved(opened: Open, tmp_path: Path) -> None:
    origins = [Origin("aten.relu.default", "", f"digits/model.py:{at % 90 + 1}") for at in range(10_000)]
    page = opened(page_wheel(tmp_path / "large.whl", origins, delegated=9_000))
    page.open_tab("graph")
    page.page.evaluate("hatch.graphView().openAll(true)")
    assert page.page.inner_text("#note") == ""
    assert len(page.items()) > 10_000
    before = page.page.evaluate("document.getElementById('canvas').style.transform")
    page.page.focus("#canvas")
    page.page.keyboard.press("ArrowRight")
    page.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    moved = page.page.evaluate("document.getElementById('canvas').style.transform")
    assert moved != before
    assert re.fullmatch(r"translate\(-60px, 0px\)", moved)
    # the tree does not get an element for each of them
    assert page.page.locator('[role="treeitem"]').count() < 2_000


def test_measured_recipes_are_points_and_rows(opened: Open, wheel: Path, tmp_path: Path) -> None:
    file = tmp_path / "lowering-times.json"
    value = {
        "model": "digits",
        "digest": "0" * 64,
        "level": "x86-64-v3",
        "threads": 1,
        "versions": {},
        "load_seconds": 0.1,
        "memory_bytes": 10,
        "wheel_bytes": 10,
        "accuracy": {"kind": "error", "value": 1e-6},
    }
    rows = [("openvino", 0.001, 300), (EVIL, 0.002, 100), ("aoti", 0.003, 400)]
    measurements = [
        {
            **value,
            "recipe": name,
            "settings": {"backends": [{"name": name}]},
            "installed_bytes": size,
            "calls": [{"method": "forward", "sizes": {}, "median": call, "low": call, "high": call}],
        }
        for name, call, size in rows
    ]
    choice = {"model": "digits", "level": "x86-64-v3", "aim": "latency", "recipe": "openvino"}
    file.write_text(json.dumps({"schema": 1, "measurements": measurements, "choices": [choice]}))
    shown = opened(wheel, "--times", str(file))
    shown.open_tab("times")
    assert shown.page.locator("#times svg").count() == 2
    assert shown.page.locator("#times svg").first.locator("circle").count() == 3
    assert shown.page.locator("#times circle.chosen").count() == 2
    assert shown.page.locator("#times svg").first.locator("circle.best").count() == 2
    assert shown.page.locator("#times table").first.locator("tbody tr").count() == 3
    fill = "getComputedStyle(document.querySelector('#times circle')).fill"
    assert shown.page.evaluate(fill) == "rgb(255, 208, 158)"
    assert shown.page.evaluate("window.ran") is None


def test_parts_of_the_page_are_reached_by_keyboard(opened: Open, wheel: Path) -> None:
    page = opened(wheel)
    page.page.focus("#tab-summary")
    page.page.keyboard.press("ArrowRight")
    assert page.page.evaluate("document.activeElement.id") == "tab-graph"
    assert page.page.is_visible("#canvas")
    unnamed = page.page.evaluate(
        "[...document.querySelectorAll('button, select, input, canvas, [role=tree], [role=tabpanel]')]"
        ".filter((each) => !(each.textContent.trim() || each.labels?.length || each.getAttribute('aria-label')"
        " || each.getAttribute('aria-labelledby'))).map((each) => each.outerHTML)"
    )
    assert unnamed == []
