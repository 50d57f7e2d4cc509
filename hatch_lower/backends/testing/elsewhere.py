"""`python -m hatch_lower.backends.testing.elsewhere`: lowers programs in a process of its own, for `determinism`."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatch_lower.backends.testing.bench import Bench, Exports, Subject
from hatch_lower.backends.testing.determinism import digests_of
from hatch_lower.backends.testing.programs import all_cases


def main() -> None:
    """Read which backend lowers which programs; write the digests of partitions and results, all as JSON."""
    question: dict[str, Any] = json.load(sys.stdin)
    importlib.import_module(question["module"])  # a backend that no entry point declares is known once it is defined
    wanted = set(question["programs"])
    with tempfile.TemporaryDirectory(prefix="hatch-lower-kit-") as folder:
        bench = Bench(Subject(question["backend"], question["options"]), Path(folder), Exports())
        found = digests_of(bench, [case for case in all_cases() if case.name in wanted])
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
