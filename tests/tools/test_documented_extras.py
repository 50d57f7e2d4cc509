"""Guides name what their commands need: the first command of each installs the extras, and none is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.console import Step, steps_of

from hatch_lower.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ["tutorial.md", "testing.md", *sorted(f"guides/{path.name}" for path in (DOCS / "guides").glob("*.md"))]
PAGES = [*GUIDES, *sorted(path.name for path in DOCS.glob("*.md") if "```console" in path.read_text())]
ENGINES = ("executorch", "onnxruntime", "openvino")
EXTRAS = {  # of commands that do more than read wheels
    **dict.fromkeys(("localize", "lower", "new-backend", "precision", "profile", "reproduce"), "build"),
    "bench": "bench",
    "fetch": "fetch",
}
HOLDS = {"build": {"cli"}, "bench": {"cli"}}  # extras that bring what reading wheels needs


def is_installing(step: Step) -> bool:
    return step.command.startswith("pip install ") and "dist/" not in step.command


def named(commands: list[Step]) -> set[str]:
    """Return the extras that these commands install, and distributions without an extra by their names."""
    found: set[str] = set()
    for step in commands:
        for word in step.command.replace('"', "").split()[2:]:
            extras = re.fullmatch(r"hatch-lower\[(.*)\]", word)
            found |= set(extras[1].split(",")) if extras else {word}
    return found | {more for name in found for more in HOLDS.get(name, ())}


def needed(page: str) -> Iterator[tuple[str, str]]:
    """Yield what the commands and the hook's tables of a page need, each with the text that needs it."""
    steps = list(steps_of(page))
    for step in steps:
        for command in re.findall(r"(?:^|[ &|;])hatch-lower ([\w-]+)", step.command):
            yield EXTRAS.get(command, "cli"), step.command
            if step.command.startswith("hatch-lower cache keygen"):
                yield "remote", step.command
        yield from ((name, step.command) for name in re.findall(r"--backend (\w+)", step.command) if name in ENGINES)
        if "hatch-lower init --transformers" in step.command:
            yield "transformers", step.command
        if re.search(r" --(?:sigstore|identity)\b", step.command):
            yield "sigstore", step.command
        if re.search(r"(?:^| )hatch build\b", step.command):
            yield "hatch", step.command
        if "HATCH_LOWER_REMOTE_CACHE" in step.command:
            yield "remote", step.command
        if re.match(r"pytest\b", step.command):
            yield "pytest", step.command
        if re.match(r"auditwheel\b", step.command):
            yield "auditwheel", step.command
        if step.path.endswith("pyproject.toml") and 'precision = "int' in step.text:
            yield "quantize", step.text
        for engine in ENGINES:
            if step.path.endswith("pyproject.toml") and re.search(rf'backends = \[.*"{engine}"', step.text):
                yield engine, step.text


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_needs_is_installed_by_its_own_line(name: str) -> None:
    page = (DOCS / name).read_text()
    installed = named([step for step in steps_of(page) if is_installing(step)])
    assert {extra: line for extra, line in needed(page) if extra not in installed} == {}


@pytest.mark.parametrize("name", GUIDES)
def test_the_first_command_of_a_guide_installs_what_it_needs_and_no_more(name: str) -> None:
    page = (DOCS / name).read_text()
    commands = [step for step in steps_of(page) if step.command]
    assert is_installing(commands[0])
    wanted = {extra for extra, _ in needed(page)}
    scripts = any(re.match(r"python (?!-m)", step.command) for step in commands)
    own = named(commands[:1])
    spare = own - wanted - {more for name in own for more in HOLDS.get(name, ())}
    # scripts of the page import torch: the extra `build` has all that these need, `numpy` is for torch's own warning
    assert spare <= ({"build", "numpy"} if scripts else set())
    if scripts:
        assert own & {"build", "numpy"}


@pytest.mark.parametrize(("name", "extra"), [("report.md", "cli"), ("without-torch.md", "onnxruntime")])
def test_the_first_block_of_a_page_without_a_session_installs_what_it_needs(name: str, extra: str) -> None:
    (first, *_) = re.findall(r"^```sh\n(.*?)^```$", (DOCS / name).read_text(), re.DOTALL | re.MULTILINE)
    assert first.startswith("pip install ")
    assert f'"hatch-lower[{extra}]"' in first.splitlines()[0]


def test_every_command_of_the_pages_exists() -> None:
    shown = {
        command
        for name in PAGES
        for step in steps_of((DOCS / name).read_text())
        for command in re.findall(r"(?:^|[ &|;])hatch-lower ([\w-]+)", step.command)
    }
    assert len(shown) > 5
    assert shown <= main.commands.keys()
    assert main.commands.keys() >= EXTRAS.keys()
