"""Options of backends in files: `{ file = "kernels.json" }` stands for the contents of a JSON file of the project.

The contents are the option's value from here on, so every key holds the contents, and no later step reads the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatch_lower.config.tables import CARD, BackendChoice, quote_key

KEY = "file"
LIMIT = 1 << 24  # bytes


def option_files(choices: Iterable[BackendChoice]) -> Iterator[str]:
    for choice in choices:
        yield from (value[KEY] for value in choice.options.values() if is_file(value))


def with_contents(
    choices: Iterable[BackendChoice], root: Path, path: str, problems: list[str]
) -> tuple[BackendChoice, ...]:
    """Return backends with the contents of the files that options name; append a sentence for each wrong file."""
    return tuple(
        replace(
            choice,
            options={
                name: read_file(root, value[KEY], f"{path}.backends[{i}].{quote_key(name)}", problems)
                if is_file(value)
                else value
                for name, value in choice.options.items()
            },
        )
        for i, choice in enumerate(choices)
    )


def is_file(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {KEY} and isinstance(value[KEY], str)


def read_file(root: Path, name: str, path: str, problems: list[str]) -> object:
    if not re.fullmatch(str(CARD["pattern"]), name):
        problems.append(f'`{path}.file` must be {CARD["words"]}, found "{name}"')
        return {}
    try:
        if (root / name).stat().st_size > LIMIT:
            problems.append(f"`{path}.file` must have at most {LIMIT >> 20} MiB, found `{name}` with more")
            return {}
        return json.loads((root / name).read_bytes())
    except OSError as error:
        problems.append(f"`{path}.file` names a file that cannot be read, found `{name}`: {error.strerror}")
    except (ValueError, RecursionError) as error:
        problems.append(f"`{path}.file` names a file that is no JSON, found `{name}`: {error}")
    return {}
