"""The pytest plugin: `-p hatch_lower.backends.testing.plugin --hatch-lower-backend ID` runs the kit on a backend.

No entry point declares it. pytest would import it in every run of an environment in which hatch-lower is installed, and
rewrite the assertions of all modules of the distribution.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hatch_lower.backends.testing.kit import Kit

SUITE = Path(__file__).with_name("suite.py")
ARGUMENT = "hatch_lower_trial"
FACTS = ("variations", "computes", "checks_inputs", "packed_copies", "keeps_files", "flushes_subnormals")
"""Arguments of `check_backend` that a command line may give."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("hatch-lower")
    group.addoption("--hatch-lower-backend", metavar="ID", help="run the kit of hatch-lower on an installed backend")
    group.addoption(
        "--hatch-lower-options",
        metavar="JSON",
        type=json_object,
        default={},
        help="options of that backend, as a recipe gives them: '{\"fuse\": false}'",
    )
    group.addoption(
        "--hatch-lower-facts",
        metavar="JSON",
        type=json_object,
        default={},
        help=f"what else there is to say of it ({', '.join(FACTS)}): '{{\"packed_copies\": 1}}'",
    )
    group.addoption(
        "--hatch-lower-only", metavar="PATTERN", default="*", help="run those programs and checks that the pattern fits"
    )


def json_object(text: str) -> dict[str, Any]:
    """Return what a command line gives as JSON; the parser of the command line reports a ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(text)
    return found


def pytest_configure(config: pytest.Config) -> None:
    """Collect the kit instead of this project's tests, or beside the files that the command line names.

    Raises:
        pytest.UsageError: if there is no such backend or fact, or the pattern fits nothing.
    """
    backend_id = config.getoption("hatch_lower_backend")
    if not backend_id:
        return
    from hatch_lower.backends.testing.kit import trial_names
    from hatch_lower.errors import LowerError
    from hatch_lower.exir.backend.registry import find_backend

    try:
        find_backend(backend_id)
        trial_names(config.getoption("hatch_lower_only"))
    except LowerError as error:
        raise pytest.UsageError(str(error)) from error
    unknown = sorted(set(config.getoption("hatch_lower_facts")) - set(FACTS))
    if unknown:
        raise pytest.UsageError(f"--hatch-lower-facts: there is no `{unknown[0]}`; there are {', '.join(FACTS)}")
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    config.args = [*(config.args if named else []), str(SUITE)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each program and check."""
    if ARGUMENT in metafunc.fixturenames:
        from hatch_lower.backends.testing.kit import trial_names

        metafunc.parametrize(ARGUMENT, trial_names(metafunc.config.getoption("hatch_lower_only")))


@pytest.fixture(scope="session")
def hatch_lower_kit(request: pytest.FixtureRequest) -> Any:
    """The kit for the backend that the command line names."""
    from hatch_lower.backends.testing.bench import Subject
    from hatch_lower.backends.testing.kit import Kit

    option = request.config.getoption
    facts = option("hatch_lower_facts")
    subject = Subject(option("hatch_lower_backend"), option("hatch_lower_options"), **facts)
    kit: Kit
    with Kit(subject, option("hatch_lower_only")) as kit:
        kit.prepare()
        yield kit
