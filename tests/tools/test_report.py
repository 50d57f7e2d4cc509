"""The report page's data and its HTML, and graphs for other programs: no browser is needed here."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.page_wheels import REASON, page_wheel
from support.venv import REPOSITORY

import hatch_lower
from hatch_lower.cli.main import main
from hatch_lower.cli.page.data import AROUND, WHOLE, Extras, report_data, source_text
from hatch_lower.cli.page.operations import dot_text, model_explorer_json, named_graphs
from hatch_lower.cli.page.page import SCRIPTS, STYLE, data_text, page_text, resource
from hatch_lower.driver.contents import find_contents
from hatch_lower.errors import ProgramError
from hatch_lower.format.debug_map import NO_REASON, DebugMap, Detail, MethodDebug, Origin, write_debug

VENDOR = Path(hatch_lower.__file__).parent / "cli" / "page" / "vendor"
OF_SITE = REPOSITORY / "docs" / "vendor"
ORIGINS = [
    Origin("aten.conv2d.default", "net.0", "digits/model.py:2"),
    Origin("aten.relu.default", "net.1", "digits/model.py:3"),
    Origin("aten.cumsum.default", "", "digits/model.py:4"),
]
SOURCE = "class Net:\n    first = conv(x)\n    second = relu(first)\n    return cumsum(second)\n"
EVIL = "</script><script>run()</script><!--\u2028\u2029&amp;\ud83d"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return page_wheel(tmp_path / "digits-1.0.whl", ORIGINS, delegated=2, members={"digits/model.py": SOURCE})


def run(*args: object) -> Result:
    return CliRunner().invoke(main, list(map(str, args)))


def data_of(wheel: Path, **extras: Any) -> Any:
    return report_data(wheel, find_contents(wheel), Extras(**extras))


class Elements(HTMLParser):
    """The elements of a page, and the text of its data element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data = ""
        self._is_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._is_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self._is_data = False


def test_a_graph_has_the_operations_in_delegates_and_their_edges(wheel: Path) -> None:
    data = data_of(wheel)
    graph = data["models"][0]["recipes"]["default"]["methods"]["forward"]["graph"]
    assert [data["strings"][number] for number in graph["op"]] == [origin.op for origin in ORIGINS]
    assert graph["calls"] == [["0", "aoti"], ["2", ""]]
    assert graph["call"] == [0, 0, 1]
    assert graph["reads"] == [[-1], [0], [1]]
    assert [data["strings"][number] for number in graph["why"]] == ["", "", REASON]
    assert graph["inputs"] == ["image: float32[8]"]
    assert graph["flows"]


def test_a_graph_has_results_and_arguments_of_operations(tmp_path: Path) -> None:
    details = [Detail("float32[8]", ("weight: net.0.weight float32[8]", "stride: [2, 2]")), Detail("float32[4]")]
    data = data_of(page_wheel(tmp_path / "digits-1.0.whl", ORIGINS, delegated=2, details=details))
    graph = data["models"][0]["recipes"]["default"]["methods"]["forward"]["graph"]
    assert [data["strings"][number] for number in graph["result"]] == ["float32[8]", "float32[4]", ""]
    assert [[data["strings"][number] for number in row] for row in graph["arguments"]] == [
        ["weight: net.0.weight float32[8]", "stride: [2, 2]"],
        [],
        [],
    ]


@pytest.mark.parametrize(
    ("delegated", "reason", "shown"),
    [(0, NO_REASON, ""), (2, NO_REASON, NO_REASON), (0, REASON, REASON)],
    ids=["no backend named", "left by all backends", "refused by a backend that took no operation"],
)
def test_a_portable_operation_is_no_refusal(tmp_path: Path, delegated: int, reason: str, shown: str) -> None:
    data = data_of(page_wheel(tmp_path / "digits-1.0.whl", ORIGINS, delegated=delegated, reason=reason))
    graph = data["models"][0]["recipes"]["default"]["methods"]["forward"]["graph"]
    assert {data["strings"][number] for number in graph["why"][delegated:]} == {shown}


def test_check_data_are_listed_with_dtypes_and_shapes(tmp_path: Path) -> None:
    header = {"forward/input/0": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}}
    text = json.dumps(header).encode()
    path = page_wheel(tmp_path / "a.whl", ORIGINS, check=len(text).to_bytes(8, "little") + text + bytes(32))
    assert data_of(path)["models"][0]["check"] == [{"name": "forward/input/0", "dtype": "float32", "shape": [2, 4]}]
    broken = page_wheel(tmp_path / "b.whl", ORIGINS, check=b"\xff" * 40)
    assert data_of(broken)["models"][0]["check"] == []


def test_constants_have_the_number_of_their_values(tmp_path: Path) -> None:
    path = page_wheel(tmp_path / "a.whl", ORIGINS, shapes={"net.0.weight": (4, 8), "net.0.bias": (4,)})
    rows = data_of(path)["models"][0]["tensors"]
    assert [(row["name"], row["values"], row["size"]) for row in rows] == [
        ("net.0.weight", 32, 128),
        ("net.0.bias", 4, 16),
    ]


STEPS = range(11)  # of the colour of time: `heat` in view.js


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_of_the_page_differ_enough_from_what_is_below(theme: int) -> None:
    rows = re.findall(r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\)", resource(STYLE))
    colours = {name: tuple(bytes.fromhex(pair[theme])) for name, *pair in rows}
    heat = [
        tuple(0.1 * top + 0.09 * step * top + (0.9 - 0.09 * step) * page for top, page in zip(*pair, strict=True))
        for step in STEPS
        for pair in [(colours["heat"], colours["page"])]
    ]
    grounds = [colours[name] for name in ("page", "panel", "group", "plain", "mark")]
    fills = [colour for name, colour in colours.items() if name.startswith("engine-")]
    pairs = [(colours["text"], below) for below in (*grounds, *fills, *heat)]
    pairs += [(colours[name], colours[below]) for name in ("faint", "warn", "accent") for below in ("page", "panel")]
    pairs += [(colours[name], colours["mark"]) for name in ("faint", "warn", "accent")]
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


def contrast(*pair: tuple[float, ...]) -> float:
    """Return the contrast ratio of WCAG 2."""
    channels = [[value / 255 for value in colour] for colour in pair]
    linear = [[v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour] for colour in channels]
    dark, light = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (light + 0.05) / (dark + 0.05)


def test_a_wheel_without_edges_in_its_debug_map_has_those_of_the_plan(tmp_path: Path, wheel: Path) -> None:
    def without_reads(document: Any) -> None:
        document["schema"] = 1
        document.pop("files")
        document["methods"]["forward"].pop("reads")

    graph = data_of(changed(wheel, "m/0.debug.json", without_reads))["models"][0]["recipes"]["default"]["methods"]
    assert graph["forward"]["graph"]["reads"] == [[-1], [], [1]]
    assert not graph["forward"]["graph"]["flows"]


def test_a_method_that_the_debug_map_lacks_is_shown_by_its_instructions(wheel: Path) -> None:
    empty = json.loads(write_debug(DebugMap({"other": MethodDebug({}, {}, {}, ())})))
    data = data_of(changed(wheel, "m/0.debug.json", lambda document: (document.clear(), document.update(empty))))
    graph = data["models"][0]["recipes"]["default"]["methods"]["forward"]["graph"]
    assert [data["strings"][number] for number in graph["op"]] == ["delegate", "aten.relu.default"]
    assert graph["reads"] == [[-1], [0]]
    assert data["sources"] == {}


def changed(wheel: Path, name: str, change: Any) -> Path:
    """Return a wheel of which one document is changed, and the manifest with it."""
    with zipfile.ZipFile(wheel) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    document = json.loads(members[f"digits/_lowered/{name}"])
    change(document)
    data = json.dumps(document).encode()
    members[f"digits/_lowered/{name}"] = data
    manifest = json.loads(members["digits/_lowered/manifest.json"])
    for recipe in next(iter(manifest["models"].values()))["recipes"].values():
        for entry in (recipe["plan"], recipe["debug"]):
            if entry["path"] == name:
                entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    members["digits/_lowered/manifest.json"] = json.dumps(manifest).encode()
    path = wheel.with_name(f"changed-{wheel.name}")
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


def test_the_page_is_the_same_for_the_same_wheel_wherever_it_is(tmp_path: Path, wheel: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = elsewhere / wheel.name
    other.write_bytes(wheel.read_bytes())
    pages = []
    for number, path in enumerate((wheel, other)):
        result = run("report", path, "-o", tmp_path / f"{number}.html")
        assert result.exit_code == 0, result.output
        pages.append((tmp_path / f"{number}.html").read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    assert str(tmp_path) not in pages[0]


def test_nothing_of_the_data_ends_its_element(wheel: Path) -> None:
    data = {**data_of(wheel), "place": EVIL, "version": EVIL}
    text = data_text(data)
    assert re.search("[<>&\u2028\u2029]", text) is None
    assert json.loads(text)["place"] == EVIL
    page = Elements(page_text(data))
    assert page.tags.count("script") == len(SCRIPTS) + 1
    assert json.loads(page.data)["version"] == EVIL


def test_the_page_allows_its_own_scripts_alone_and_no_connection(wheel: Path) -> None:
    page = Elements(page_text(data_of(wheel)))
    (policy,) = (value for name, value in page.attributes if name == "content" and "default-src" in str(value))
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert len(rules["script-src"].split()) == len(SCRIPTS)
    assert all(source.startswith("'sha256-") for source in f"{rules['script-src']} {rules['style-src']}".split())
    linked = [value for name, value in page.attributes if name in ("src", "href") and value and value[0] != "#"]
    assert linked == ["data:,"]
    own = "".join(resource(name) for name in SCRIPTS[1:])
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|import\(", own)
    assert "url(" not in resource(STYLE)


def test_the_licence_of_what_the_page_brings_is_in_it(wheel: Path) -> None:
    comments = re.findall("<!--(.*?)-->", page_text(data_of(wheel)), re.DOTALL)
    assert (VENDOR / "dagre.LICENSE").read_text().strip() in comments[0]


@pytest.mark.parametrize("folder", [VENDOR, OF_SITE], ids=["page", "site"])
def test_a_file_is_vendored_as_its_table_says(folder: Path) -> None:
    if not folder.exists():
        pytest.skip("a source distribution has no script for the documentation's site")
    table = json.loads((folder / "vendor.json").read_text())
    files = {name: file["sha256"] for entry in table for name, file in entry["files"].items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert files == {name: digest for name, digest in found.items() if name != "vendor.json"}
    for entry in table:
        assert entry["version"]
        assert entry["licence"]
        assert any(name.endswith(".LICENSE") for name in entry["files"])


@pytest.mark.parametrize(
    ("digest", "state"),
    [(hashlib.sha256(SOURCE.encode()).hexdigest(), "same"), ("0" * 64, "changed"), (None, "unknown")],
)
def test_the_page_says_whether_a_source_is_that_of_the_build(tmp_path: Path, digest: str | None, state: str) -> None:
    digests = {} if digest is None else {"digits/model.py": digest}
    wheel = page_wheel(tmp_path / "digits-1.0.whl", ORIGINS, members={"digits/model.py": SOURCE}, digests=digests)
    source = data_of(wheel)["sources"]["digits/model.py"]
    assert source == {"state": state, "place": "the wheel", "parts": ((1, SOURCE),)}


def test_a_given_folder_has_the_sources_that_the_wheel_lacks(tmp_path: Path) -> None:
    wheel = page_wheel(tmp_path / "digits-1.0.whl", ORIGINS)
    assert data_of(wheel)["sources"]["digits/model.py"]["state"] == "missing"
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "model.py").write_text(SOURCE)
    source = data_of(wheel, sources=tmp_path)["sources"]["digits/model.py"]
    assert source["parts"] == ((1, SOURCE),)


@pytest.mark.parametrize("path", ["../secret.py", "/etc/passwd", "a/../../secret.py", "secret.txt", "C:\\secret.py"])
def test_a_wheel_cannot_bring_other_files_of_the_machine_into_the_page(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.py").write_text("secret")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "secret.txt").write_text("secret")
    wheel = page_wheel(tmp_path / "digits-1.0.whl", [Origin("aten.relu.default", "", f"{path}:1")])
    sources = data_of(wheel, sources=tmp_path / "inner")["sources"]
    assert sources == {path: {"state": "missing", "place": "", "parts": ()}}


def test_of_a_long_source_the_lines_around_operations_are_in_the_page() -> None:
    text = "\n".join(f"line {number}" for number in range(1, 2 * WHOLE)).encode()
    source = source_text("a.py", {500, 510, 1900}, None, [("here", lambda _: text)])
    assert [first for first, _ in source.parts] == [500 - AROUND, 1900 - AROUND]
    assert source.parts[0][1].split("\n")[0] == f"line {500 - AROUND}"
    assert source.parts[0][1].split("\n")[-1] == f"line {510 + AROUND}"


def test_changes_against_another_wheel_are_in_the_page(tmp_path: Path, wheel: Path) -> None:
    other = page_wheel(tmp_path / "digits-0.9.whl", ORIGINS[:2], delegated=2, version="0.9")
    result = run("report", wheel, "-o", tmp_path / "page.html", "--against", other)
    assert result.exit_code == 0, result.output
    changes = json.loads(Elements((tmp_path / "page.html").read_text(encoding="utf-8")).data)["changes"]
    assert (changes["first"], changes["second"]) == ("digits-0.9.whl", "digits-1.0.whl")
    assert {"place": [], "text": "distribution version: 0.9 → 1.0", "lines": []} in changes["rows"]


PROFILE = {
    "schema": 1,
    "model": "digits",
    "method": "forward",
    "calls": 3,
    "recipes": {"default": {"seconds": 0.1, "rows": [], "unattributed": 0.0, "overhead": 0.0}},
}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"schema": 2}, "schema 2; this hatch-lower reads schema 1"),
        ({"recipes": []}, "no object `recipes`"),
        ({"recipes": {"default": {"seconds": -1, "rows": []}}}, "-1 instead of a number of seconds"),
        ({"recipes": {"default": {"seconds": 1, "rows": [3]}}}, "no list `rows`"),
        ({"recipes": {"default": {"seconds": 1, "rows": [{"source": 3, "seconds": 1}]}}}, "instead of a text"),
        ({"model": "other"}, "method `forward` of model `other`"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(tmp_path: Path, wheel: Path, change: Any, found: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**PROFILE, **change}))
    result = run("report", wheel, "-o", tmp_path / "page.html", "--profile", path)
    assert result.exit_code == 1
    assert found in result.output
    assert "where: profile.json" in result.output
    assert not (tmp_path / "page.html").exists()


def test_a_profile_of_another_form_is_refused(tmp_path: Path, wheel: Path) -> None:
    path = tmp_path / "profile.json"
    for text in ("[]", "{", '{"schema": 1, "model": "digits", "x": NaN}', "\ud83d".encode("utf-8", "replace").decode()):
        path.write_text(text)
        result = run("report", wheel, "-o", tmp_path / "page.html", "--profile", path)
        assert (result.exit_code, "the profile cannot be read" in result.output) == (1, True)


def test_a_damaged_or_newer_wheel_is_one_error_and_no_page(tmp_path: Path, wheel: Path) -> None:
    page = tmp_path / "page.html"
    newer = changed(wheel, "m/0.debug.json", lambda document: document.update(schema=99))
    cases = {newer: "a packaged program needs a newer hatch-lower"}
    torn = tmp_path / "torn.whl"
    torn.write_bytes(wheel.read_bytes()[:200])
    cases[torn] = "the wheel cannot be read"
    for path, message in cases.items():
        for command in (["report", path, "-o", page], ["report", path, "--format", "dot", "-o", page]):
            result = run(*command)
            assert result.exit_code == 1
            assert message in result.output
    assert not page.exists()


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path, wheel: Path) -> None:
    result = run("report", wheel, "-o", tmp_path / "none" / "page.html")
    assert result.exit_code == 1
    assert "the page cannot be written" in result.output


def test_a_broken_sbom_is_said_to_be_broken(tmp_path: Path) -> None:
    wheel = page_wheel(
        tmp_path / "a.whl", ORIGINS, members={"a.dist-info/sboms/hatch-lower.cdx.json": '{"components": 3}'}
    )
    data = data_of(wheel)
    assert data["sbom"]["rows"] == []
    assert "TypeError" in data["sbom"]["fault"] or "KeyError" in data["sbom"]["fault"]


def test_model_explorer_gets_nodes_in_groups_with_edges(wheel: Path) -> None:
    collection = model_explorer_json("digits", named_graphs(find_contents(wheel)))
    (graph,) = collection["graphs"]
    assert graph["id"] == "digits/default/forward"
    image, conv, relu, cumsum = graph["nodes"]
    assert (image["id"], image["label"]) == ("input 0", "image")
    assert (conv["label"], conv["namespace"]) == ("conv2d", "partition 0: aoti/net/0")
    assert [edge["sourceNodeId"] for edge in conv["incomingEdges"]] == ["input 0"]
    assert [edge["sourceNodeId"] for edge in relu["incomingEdges"]] == ["0"]
    assert {"key": "not delegated because", "value": REASON} in cumsum["attrs"]
    assert cumsum["namespace"] == ""
    assert graph["groupNodeAttributes"] == {"partition 0: aoti": {"engine": "aoti", "instruction of the plan": "0"}}


def test_the_adapter_is_one_for_model_explorer(wheel: Path) -> None:
    pytest.importorskip("model_explorer", reason="Model Explorer is not installed")
    from hatch_lower.cli.page.model_explorer.main import HatchLowerAdapter

    (graph,) = HatchLowerAdapter().convert(str(wheel), {})["graphs"]
    assert [node.label for node in graph.nodes] == ["image", "conv2d", "relu", "cumsum"]


def test_dot_has_no_text_that_ends_a_string(tmp_path: Path) -> None:
    evil = 'a"];\n\\"x'
    wheel = page_wheel(tmp_path / "a.whl", [Origin(evil, evil, evil)], delegated=1)
    text = dot_text(named_graphs(find_contents(wheel)))
    assert re.sub(r'"(?:[^"\\]|\\.)*"', "S", text).count('"') == 0
    assert text.count("\n") == len(text.splitlines())


def test_report_writes_the_graphs_that_match(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    explorer = ("report", wheel, "--format", "model-explorer")
    assert run(*explorer, "--only", "*/forward").output.startswith("report.json: ")
    assert json.loads(Path("report.json").read_text())["graphs"][0]["id"] == "digits/default/forward"
    text = run("report", wheel, "--format", "dot", "--only", "digits/default/forward", "-o", "-").output
    assert text.startswith('digraph "digits/default/forward" {')
    missing = run(*explorer, "--only", "digits/default/forwart").output
    assert "there is no such graph" in missing
    assert "did you mean `digits/default/forward`?" in missing


def test_a_profile_of_this_wheel_is_in_the_page(tmp_path: Path, wheel: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    assert run("report", wheel, "-o", tmp_path / "page.html", "--profile", path).exit_code == 0
    data = json.loads(Elements((tmp_path / "page.html").read_text(encoding="utf-8")).data)
    assert data["profiles"][0]["recipes"]["default"] == {"seconds": 0.1, "rows": []}
    assert data["checks"] is None


def test_nothing_is_run_unless_it_is_asked_for(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ProgramError("it was run")

    monkeypatch.setattr("hatch_lower.cli.report.check_all", refuse)
    assert run("report", wheel, "-o", tmp_path / "page.html").exit_code == 0
    assert "it was run" in run("report", wheel, "-o", tmp_path / "page.html", "--check").output
