"""Run ExecuTorch's own tests of its backend layer against `hatch_lower.exir`, and count.

    python tools/executorch_tests.py [--all] [--failures] [pytest arguments]

The tests are those of the installed `executorch`. Nothing of them is kept: they are copied into a temporary folder
with the prefix `executorch.exir` replaced by `hatch_lower.exir`, also where torch writes it with underscores into the
code of a graph, and nothing else. A module or name that does not exist here is a stand-in that fails when it is used,
so that one missing import does not hide the other tests of a file.

One helper is replaced: `ExecutorBackend`, whose blob is an ExecuTorch program. Here it is the names of the operations,
so that the tests of tagged constants that lower for it are tests of tagged constants.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LAYER = (
    "backend/test/test_*.py",
    "dialects/test/test_*.py",
    "dialects/backend/test/test_*.py",
    "dialects/edge/test/test_*.py",
)
"""Tests of the layer itself."""
MORE = (
    "program/test/test_*.py",
    "_serialize/test/test_named_data_store.py",
    "tests/test_delegate.py",
    "tests/test_joint_graph.py",
    "tests/test_pass_infra.py",
)
"""Tests of what a backend's author calls beside the layer."""
PREFIX = (
    (re.compile(r"\bexecutorch\.exir\b"), "hatch_lower.exir"),
    (re.compile(r"\bexecutorch_exir_"), "hatch_lower_exir_"),
    (re.compile(r"\bfrom executorch import exir\b"), "from hatch_lower import exir"),
)
EMITTER = re.compile(r"processed_bytes=EdgeProgramManager\(.*?\.buffer,", re.DOTALL)
OPERATIONS = "processed_bytes=repr([str(node.target) for node in edge_program.graph.nodes]).encode(),"
LISTED: dict[str, str] = json.loads((HERE / "executorch_tests.json").read_text())
"""Test, or file, to why it is not expected to pass: what it is about (runtime, emitter, wording), what it needs from
outside the prefix (outside), or a deliberate difference that docs/exir.md has a row for."""


def translate(source: Path, target: Path) -> None:
    """Copy the folders of tests, with their helpers, with the prefix replaced."""
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        if {"test", "tests"} & set(relative.parts[:-1]):
            text = path.read_text()
            for pattern, replacement in PREFIX:
                text = pattern.sub(replacement, text)
            if path.name == "executor_backend_preprocess.py":
                text, replaced = EMITTER.subn(OPERATIONS, text)
                assert replaced == 1, "ExecuTorch's ExecutorBackend has changed"
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            (target / relative).write_text(text)


def main() -> int:
    """Run the tests; the status is 0 if all pass but those that are listed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="also the tests beside the layer")
    parser.add_argument("--failures", action="store_true", help="show why tests fail")
    options, rest = parser.parse_known_args()
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        parser.error("executorch is not installed: pip install 'executorch==1.4.1'")
    source = Path(spec.submodule_search_locations[0]) / "exir"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "exir"
        translate(source, target)
        patterns = LAYER + (MORE if options.all else ())
        files = [str(path) for pattern in patterns for path in sorted(target.glob(pattern))]
        report = Path(folder) / "outcomes.json"
        environment = os.environ | {"PORTED_TESTS": str(target), "PORTED_REPORT": str(report)}
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "executorch_tests_plugin", "-p", "no:cacheprovider"]
        command += [
            "--rootdir",
            folder,
            "-c",
            os.devnull,
            "--import-mode=importlib",
            "-W",
            "ignore",
            "--continue-on-collection-errors",
        ]
        command += ["--tb=short" if options.failures else "--tb=no", *rest, *files]
        subprocess.run(command, env=environment, cwd=folder, check=False)
        outcomes: dict[str, list[str]] = json.loads(report.read_text())
    return summary(outcomes)


def summary(outcomes: dict[str, list[str]]) -> int:
    """Print the counts, the tests that fail, and those whose reason no longer holds."""
    counts: collections.Counter[str] = collections.Counter()
    failed = False
    for name, (outcome, detail) in sorted(outcomes.items()):
        reason = LISTED.get(name) or LISTED.get(name.partition("::")[0])
        if outcome == "passed":
            counts["passed"] += 1
            if name in LISTED:
                print(f"PASSES although listed: {name}")
        elif reason is not None:
            counts[f"listed ({reason.partition(':')[0]})"] += 1
        else:
            counts[outcome] += 1
            failed = True
            print(f"{outcome.upper()} {name}: {detail}")
    print(f"{sum(counts.values())} tests: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
