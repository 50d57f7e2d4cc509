"""The pytest plugin: lowered models as fixtures, their limits as a marker, and a test for each method.

Every run of pytest in an environment with hatch-lower imports this module, so other imports happen at use.
The plugin acts for its own fixtures, not for a project's fixtures of the same name.
Calls are timed by the fixture `benchmark` of pytest-benchmark or of a compatible plugin.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from hatch_lower.errors import ConfigError, LowerError

if TYPE_CHECKING:
    from hatch_lower.cli.measure.tested import ExampleInputs, Loaded, MethodCase, ModelsUnderTest

MARKER = "lowered_limits"
FIXTURE = "lowered_model"
NODE = "hatch-lower"
MARKER_HELP = (
    f"{MARKER}(max_error, max_kernels, min_delegated): fail the test if its lowered model breaks a limit of the "
    "marker, or of the project's table `bench`"
)
TIMERS = ("benchmark", "codspeed")  # plugins with a fixture `benchmark`
# calls that change their inputs are timed separately
WARM_UP = 3
SECONDS = 1.0
FEWEST_ROUNDS, MOST_ROUNDS = 5, 1000


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    config.stash[RUN] = PytestModels(config)
    if config.getoption("hatch_lower_bench") and not any(map(config.pluginmanager.hasplugin, TIMERS)):
        raise pytest.UsageError(
            "--hatch-lower-bench times calls with pytest-benchmark, which this run does not have; "
            "install with: pip install hatch-lower[bench]"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    if RUN in config.stash:  # absent if an earlier plugin refused its options
        config.stash[RUN].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not uses_fixture(metafunc) or names_methods(metafunc):
        return
    cases = metafunc.config.stash[RUN].cases()
    metafunc.parametrize(FIXTURE, list(cases), indirect=True, ids=[case.test_id for case in cases.values()])


def uses_fixture(metafunc: pytest.Metafunc) -> bool:
    """Return whether a test uses this plugin's fixture, and not a project's fixture of the same name."""
    definitions = metafunc._arg2fixturedefs.get(FIXTURE, ())
    for definition in reversed(definitions):  # the closest definition comes last
        if definition.func.__module__ == __name__:
            return True
        if FIXTURE not in definition.argnames:  # a definition that does not use the fixture that it overrides
            return False
    return False


def names_methods(metafunc: pytest.Metafunc) -> bool:
    names = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize") if mark.args]
    return any(FIXTURE in (each.replace(",", " ").split() if isinstance(each, str) else each) for each in names)


@pytest.hookimpl(tryfirst=True)  # so that `-k`, `-m` and other plugins see the added tests
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash[RUN]
    if config.getoption("hatch_lower_bench"):
        items += session.genitems(MethodTests.from_parent(session, path=config.rootpath / NODE))
    if run.is_part:  # an error of a marker fails its test
        return
    try:
        run.refuse_to_go_on()
        for item in items:
            if item.get_closest_marker(MARKER) is not None:
                check_marker(item)
    except LowerError as error:
        raise pytest.UsageError(str(error)) from error


def check_marker(item: pytest.Item) -> dict[str, float]:
    """Return the limits of an item's markers; the closest marker wins. Refuse limits without a figure."""
    from hatch_lower.cli.measure.tested import check_limits

    where = f"{item.nodeid}, marker `{MARKER}`"
    limits: dict[str, float] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        limits |= check_limits(mark.args, mark.kwargs, where)
    names = getattr(item, "fixturenames", ())
    if isinstance(item, MethodTest):
        return limits
    if FIXTURE not in names:
        raise ConfigError(f"no figure to judge: the test does not use the fixture `{FIXTURE}`", where=where)
    return limits


@pytest.hookimpl(trylast=True)  # after the test has passed: pytest calls no later hook of a failed test
def pytest_runtest_call(item: pytest.Item) -> None:
    if item.get_closest_marker(MARKER) is None:
        return
    run = item.config.stash[RUN]
    with failures_in_words():
        limits = check_marker(item)
        case = item.case if isinstance(item, MethodTest) else run.find(item)
        broken = run.models().broken_limits(case, limits)
    if broken:
        pytest.fail("\n".join(broken), pytrace=False)


@pytest.fixture
def lowered_model(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """A lowered method: a test for each model, recipe and method of the project's wheel."""
    run = request.config.stash[RUN]
    case = run.find(request.node)
    with loaded(run.models(), case) as found:
        yield found.model.methods[case.subject.method]


@pytest.fixture
def example_inputs(request: pytest.FixtureRequest, lowered_model: Callable[..., Any]) -> ExampleInputs:
    """Inputs of `lowered_model`: `.args` and `.kwargs`; `.renew()` resets the model and returns new inputs."""
    run = request.config.stash[RUN]
    case = run.find(request.node)
    with loaded(run.models(), case) as found:
        return found.inputs(case)


class PytestModels:
    """The lowered models of a run of pytest, opened at first use."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._stack = ExitStack()
        self._models: ModelsUnderTest | None = None
        self._refusal: LowerError | None = None

    def models(self) -> ModelsUnderTest:
        """Return the models, and build the wheel at first use."""
        from hatch_lower.cli.measure.tested import open_models

        if self._models is None:
            root: Path | None = self._config.getoption("hatch_lower_root")
            wheel: Path | None = self._config.getoption("hatch_lower_wheel")
            here = self._config.invocation_params.dir
            # the processes of pytest-xdist share a run
            name = getattr(self._config, "workerinput", {}).get("testrunuid") or os.urandom(16).hex()
            self._models = open_models(
                self._config.rootpath if root is None else here / root,
                root is not None,
                None if wheel is None else here / wheel,
                name,
                self._stack,
            )
        return self._models

    @property
    def is_part(self) -> bool:
        """Whether this is a worker of pytest-xdist, where a usage error does not end the run."""
        return hasattr(self._config, "workerinput")

    def cases(self) -> Mapping[str, MethodCase]:
        """Return the methods to test; empty after an error, which ends the run after collection."""
        if self._refusal is None:
            try:
                return self.models().cases
            except LowerError as error:
                self._refusal = error
        if self.is_part:
            raise pytest.Collector.CollectError(str(self._refusal))
        return {}

    def refuse_to_go_on(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def find(self, item: pytest.Item) -> MethodCase:
        parameters: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        if FIXTURE not in parameters:
            pytest.fail(f"`{FIXTURE}` must be an argument of the test, or of a fixture of the test", pytrace=False)
        with failures_in_words():
            return self.models().find(parameters[FIXTURE])

    def close(self) -> None:
        self._models = None
        self._stack.close()


RUN = pytest.StashKey[PytestModels]()


@contextmanager
def failures_in_words() -> Iterator[None]:
    """Fail a test with the message of an error of hatch-lower, without a traceback."""
    try:
        yield
    except LowerError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@contextmanager
def loaded(models: ModelsUnderTest, case: MethodCase) -> Iterator[Loaded]:
    """Load a method's recipe; skip the test if the recipe cannot run here."""
    with failures_in_words():
        if reason := models.refusal(case):
            pytest.skip(f"{case.subject.model}/{case.subject.recipe} cannot run here: {reason}")
        with models.loaded(case) as found:
            yield found


class MethodTests(pytest.Module):
    """The tests of `pytest --hatch-lower-bench`: a test for each lowered method, below a file that does not exist."""

    def _getobj(self) -> ModuleType:
        return sys.modules[__name__]

    def collect(self) -> Iterator[pytest.Item]:
        for name, case in self.config.stash[RUN].cases().items():
            yield MethodTest.from_parent(self, name=name, case=case)


class MethodTest(pytest.Function):
    def __init__(self, case: MethodCase, **options: Any) -> None:
        def timed(benchmark: Any) -> None:
            models = self.config.stash[RUN].models()
            with loaded(models, case) as found:
                benchmark.group = case.group
                benchmark.extra_info.update(models.facts(case))
                time_calls(benchmark, found.method(case.subject.method), found.inputs(case))

        super().__init__(callobj=timed, **options)
        self.case = case
        self.add_marker(MARKER)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


def time_calls(benchmark: Any, function: Callable[..., Any], inputs: ExampleInputs) -> None:
    if not inputs.changes:
        benchmark(function, *inputs.args, **inputs.kwargs)
        return
    seconds = []
    for _ in range(WARM_UP):
        args, kwargs = inputs.renew()
        begin = time.perf_counter()
        function(*args, **kwargs)
        seconds.append(time.perf_counter() - begin)
    rounds = min(max(FEWEST_ROUNDS, int(SECONDS / min(seconds))), MOST_ROUNDS)
    benchmark.pedantic(function, setup=inputs.renew, rounds=rounds)
