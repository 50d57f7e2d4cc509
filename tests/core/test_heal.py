"""A build leaves out what a backend gets wrong: which operations, what it says, and that it finds the same again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exports import Workshop, files_of, settings_of
from support.faulty import declare, faulty
from support.kept_events import Events

from hatch_lower import Method, Model
from hatch_lower.cache.store import open_store
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, EdgeError, VerificationError
from hatch_lower.events import NullReporter
from hatch_lower.format.debug_map import read_debug
from hatch_lower.format.manifest import LeftOut
from hatch_lower.format.record import ModelReport
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.heal import FAILED, MOST_TIMES, REFUSED, ROUNDINGS, WRONG
from hatch_lower.pipeline.lower import check_sizes, symbols_of_sizes
from hatch_lower.pipeline.lower_model import make_recipes, start_build

pytestmark = pytest.mark.torch

SOURCE = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        hidden = torch.tanh(self.linear(x))
        other = torch.sin(hidden)
        return torch.cos(other) + hidden * 2.0


def export():
    torch.manual_seed(3)
    return Model(Net().eval(), {"forward": Method((torch.linspace(-1, 1, 12).reshape(3, 4),))})
"""
SINE, COSINE = "net.py:12", "net.py:13"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    declare(monkeypatch)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HATCH_LOWER_CACHE", raising=False)
    return Workshop(tmp_path)


def recipe(name: str = "default", *backends: str, **given: Any) -> Recipe:
    return Recipe(name, tuple(map(BackendChoice, backends or ("faulty",))), **given)


def build(shop: Workshop, settings: Settings | None = None, source: str = SOURCE) -> tuple[ModelReport, Events]:
    return shop.build(shop.capture(source), settings or settings_of(recipe()))


def left_out(report: ModelReport, name: str = "default") -> list[tuple[str, str, str]]:
    """Return backend, operator and reason of each operation that is left out."""
    entry = report.manifest.recipes[name]
    files = files_of(report)
    debug = read_debug(files[entry.debug.path], entry.debug.path)
    found = []
    for method, each in entry.methods.items():
        handles = debug.methods[method].handles
        found += [(known.backend, handles[known.handle].op, known.reason) for known in each.left_out]
    return found


def test_a_wrong_operation_is_left_out(shop: Workshop) -> None:
    with faulty(wrong=("sin",)):
        report, events = build(shop)
    assert left_out(report) == [("faulty", "aten.sin.default", WRONG)]
    (line,) = [note for note in events.notes() if "computed by torch" in note]
    assert line.startswith(f"sin at {SINE}: `faulty` computes the operation wrongly on example inputs, largest error ")
    assert line.endswith("; computed by torch instead; report it to the authors of the backend `faulty`")
    (verified,) = report.verified
    assert verified.calls == 3


def test_an_operation_that_is_left_out_has_its_reason_in_the_debug_map(shop: Workshop) -> None:
    with faulty(wrong=("sin",)):
        report, _ = build(shop)
    entry = report.manifest.recipes["default"]
    debug = read_debug(files_of(report)[entry.debug.path], entry.debug.path).methods["forward"]
    (node,) = [each for each in debug.undelegated if each.op == "aten.sin.default"]
    assert node.reason == f"faulty: {WRONG}"
    assert debug.handles[node.handle].source == SINE
    (row,) = report.rows
    assert (row.nodes - row.delegated, row.partitions) == (1, 2)


@pytest.mark.parametrize(("part", "searched"), [("0.02", False), ("1.0", True)])
def test_no_operation_is_searched_for_where_roundings_to_integers_may_add_up(
    shop: Workshop, part: str, searched: bool
) -> None:
    pytest.importorskip("torchao")
    source = SOURCE.replace("Linear(4, 4)", "Linear(64, 64)").replace("reshape(3, 4)", "reshape(3, 64)")
    source = source.replace("(-1, 1, 12)", "(-1, 1, 192)").replace("torch.cos(other)", f"torch.cos(other) * {part}")
    settings = settings_of(recipe(precision="int8"))
    with faulty(wrong=("cos",)):
        if searched:
            report, _ = build(shop, settings, source)
            assert left_out(report) == [("faulty", "aten.cos.default", WRONG)]
        else:
            with pytest.raises(VerificationError) as raised:
                build(shop, settings, source)
            assert (raised.value.found or "").endswith(ROUNDINGS)
            assert "give the model a `metric`" in (raised.value.hint or "")


def test_each_of_two_wrong_operations_is_left_out(shop: Workshop) -> None:
    with faulty(wrong=("sin", "cos")):
        report, _ = build(shop)
    assert left_out(report) == [("faulty", f"aten.{name}.default", WRONG) for name in ("sin", "cos")]


def test_of_operations_that_are_wrong_together_the_last_is_left_out(shop: Workshop) -> None:
    with faulty(wrong_pairs=(("cos", "sin"),)):
        report, events = build(shop)
    assert left_out(report) == [("faulty", "aten.cos.default", WRONG)]
    assert any(": `faulty` computes the operation wrongly beside 1 other on " in note for note in events.notes())


def test_an_operation_that_a_backend_refuses_is_left_out(shop: Workshop) -> None:
    with faulty(refused=("cos",)):
        report, events = build(shop)
    assert left_out(report) == [("faulty", "aten.cos.default", REFUSED)]
    line = f"cos at {COSINE}: `faulty` refuses to lower the operation: ValueError: no kernel for cos; computed by torch"
    assert any(note.startswith(line) for note in events.notes())


def test_of_operations_that_a_backend_refuses_together_the_last_is_left_out(shop: Workshop) -> None:
    with faulty(refused_pairs=(("sin", "tanh"),)):
        report, _ = build(shop)
    assert left_out(report) == [("faulty", "aten.sin.default", REFUSED)]


FOLDED = SOURCE.replace("torch.sin(hidden)", "hidden @ torch.sin(self.linear.weight)")


@pytest.mark.parametrize("fault", ["refused", "not_loaded"])
def test_an_operation_on_weights_alone_is_left_out_without_its_users(shop: Workshop, fault: str) -> None:
    with faulty(**{fault: ("sin",)}):
        report, _ = build(shop, source=FOLDED)
    assert [operator for _, operator, _ in left_out(report)] == ["aten.sin.default"]


@pytest.mark.parametrize("fault", ["not_loaded", "not_run"])
def test_an_operation_with_which_a_delegate_fails_is_left_out(shop: Workshop, fault: str) -> None:
    with faulty(**{fault: ("sin",)}):
        report, events = build(shop)
    assert left_out(report) == [("faulty", "aten.sin.default", FAILED)]
    line = f"sin at {SINE}: `faulty` fails when the operation runs: "
    assert any(note.startswith(line) for note in events.notes())


def test_faults_of_several_kinds_are_left_out_one_by_one(shop: Workshop) -> None:
    with faulty(wrong=("sin",), refused=("tanh",), not_run=("cos",)):
        report, _ = build(shop)
    reasons = {"tanh": REFUSED, "sin": WRONG, "cos": FAILED}
    assert left_out(report) == [("faulty", f"aten.{name}.default", reason) for name, reason in reasons.items()]


def test_another_backend_takes_what_one_leaves_out(shop: Workshop) -> None:
    with faulty(wrong=("sin",)):
        report, _ = build(shop, settings_of(recipe("default", "faulty", "reference")))
    assert left_out(report) == [("faulty", "aten.sin.default", WRONG)]
    (row,) = report.rows
    assert (row.delegated, row.partitions) == (row.nodes, 3)


def test_a_backend_that_refuses_everything_fails_the_build(shop: Workshop) -> None:
    with faulty(refuses_all=True), pytest.raises(BackendError) as caught:
        build(shop)
    assert caught.value.what == "the backend `faulty` failed"
    assert caught.value.found == "ValueError: no kernel for anything"


def test_a_backend_without_its_libraries_fails_the_build(shop: Workshop) -> None:
    with faulty(incomplete=True), pytest.raises(BackendError, match="OSError: no compiler"):
        build(shop)


@pytest.mark.parametrize("rows", ['torch.export.Dim("rows", max=9)', "torch.export.Dim.DYNAMIC"])
def test_a_backend_that_fixes_a_dynamic_size_fails_the_build(shop: Workshop, rows: str) -> None:
    source = SOURCE.replace("(3, 4),)", f'(3, 4),), dynamic_shapes={{"x": {{0: {rows}}}}}')
    with faulty(fixes_sizes=True), pytest.raises(EdgeError) as caught:
        build(shop, source=source)
    assert str(caught.value) == (
        "a dynamic size became a fixed size in the lowering\n"
        "  where: model `net`, recipe `default`, method `forward`\n"
        "  found: dimension 0 of `x`: no range of its own any more\n"
        "  to do: leave the backends out of the recipe one by one, and report the fault to the authors of the backend"
        " that fixes the size; or omit the dimension in `dynamic_shapes`"
    )


def test_an_integer_input_that_becomes_a_number_is_named() -> None:
    class Times(torch.nn.Module):
        def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
            return x * times

    method = Method((torch.ones(3), 4), dynamic_shapes={"x": None, "times": torch.export.Dim.DYNAMIC})
    (captured,) = capture_model("net", Model(Times(), {"forward": method}), NullReporter()).methods
    before = symbols_of_sizes(captured)
    (times,) = (node.meta["val"] for node in captured.program.graph.nodes if node.name == "times")
    check_sizes("", before, symbols_of_sizes(captured))
    assert int(times) == 4  # as a backend may read the input
    with pytest.raises(EdgeError, match="a dynamic size became a fixed size") as caught:
        check_sizes("", before, symbols_of_sizes(captured))
    assert caught.value.found == "`times`: no range of its own any more"


def test_a_method_without_an_edge_program_is_named(shop: Workshop) -> None:
    closure = SOURCE.replace(
        "other = torch.sin(hidden)",
        "other = torch.ops.higher_order.while_loop(lambda i, t: (i < 3) & (x.sum() < 9), "
        "lambda i, t: (i + 1, t + 1), (torch.tensor(0), hidden), ())[1]",
    )
    with pytest.raises(EdgeError) as caught:
        build(shop, settings_of(Recipe("default")), closure)
    assert caught.value.what == "the exported program could not be converted to the edge dialect"
    assert caught.value.where == "model `net`, recipe `default`, method `forward`"


LOOP = """\
        for number in range(12):
            other = torch.sin(other[:, :4].repeat(1, SIZE)) * 1.5
        other = other[:, :4]
"""


def test_the_second_of_a_kind_takes_all_others_of_it_along(shop: Workshop) -> None:
    source = SOURCE.replace("        return ", f"{LOOP.replace('SIZE', '2')}        return ")
    with faulty(wrong=("sin",)):
        report, events = build(shop, source=source)
    assert [operator for _, operator, _ in left_out(report)] == ["aten.sin.default"] * 13
    healed = [note for note in events.notes() if "computed by torch instead" in note]
    assert [" and 10 more of the same kind: " in note for note in healed] == [False, False, True]


def test_a_build_that_is_healed_too_often_fails(shop: Workshop) -> None:
    source = SOURCE.replace("        return ", f"{LOOP.replace('SIZE', 'number + 1')}        return ")
    with faulty(wrong=("sin",)), pytest.raises(VerificationError) as caught:
        build(shop, source=source)
    assert caught.value.what == "the lowered method computes other numbers than the eager module"
    assert "first wrong: sin at net.py:14, inside partition " in caught.value.found
    assert f"operations were left out {MOST_TIMES} times already" in caught.value.found


def test_a_build_that_is_to_fail_leaves_nothing_out(shop: Workshop) -> None:
    given = settings_of(recipe(on_mismatch="fail"))
    with faulty(wrong=("sin",)), pytest.raises(VerificationError, match=f"first wrong: sin at {SINE}"):
        build(shop, given)
    with faulty(refused=("sin",)), pytest.raises(BackendError, match="the backend `faulty` failed"):
        build(shop, given)


def test_a_portable_recipe_leaves_nothing_out(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from hatch_lower.runtime import torch_arrays

    found = torch_arrays.function_of

    def doubled(name: str, operator: Any) -> Any:
        function: Any = found(name, operator)
        return (lambda *args: function(*args) * 2) if name == "aten.sin.default" else function

    monkeypatch.setattr(torch_arrays, "function_of", doubled)
    with pytest.raises(VerificationError, match="which the program runs itself"):
        build(shop, settings_of(Recipe("portable")))


def test_each_recipe_leaves_out_what_its_own_backend_gets_wrong(shop: Workshop) -> None:
    given = settings_of(recipe("default"), recipe("other", "reference"), Recipe("portable"))
    with faulty(wrong=("sin",)):
        report, _ = build(shop, given)
    assert left_out(report) == [("faulty", "aten.sin.default", WRONG)]
    assert left_out(report, "other") == left_out(report, "portable") == []
    assert [method.recipe for method in report.verified] == ["default", "other", "portable"]


# what is kept


def test_a_healed_model_is_found_again(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty(wrong=("sin",)) as lowered:
        first, _ = build(shop)
        count = lowered()
        monkeypatch.setenv("HATCH_LOWER_CACHE", "frozen")
        again, events = build(shop)
        assert lowered() == count
    assert files_of(again) == files_of(first)
    assert again.manifest == first.manifest
    assert "compare" not in events.stages()


def test_a_recipe_record_has_what_is_left_out(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    # another recipe: the model as a whole is not known
    with faulty(wrong=("sin",)) as lowered:
        build(shop)
        count = lowered()
        both = settings_of(recipe(), Recipe("portable"))
        joined, events = build(shop, both)
        assert lowered() == count
        with monkeypatch.context() as patch:
            patch.setenv("HATCH_LOWER_CACHE", "off")
            anew, _ = build(shop, both)
    assert left_out(joined) == [("faulty", "aten.sin.default", WRONG)]
    assert joined.manifest == anew.manifest
    assert files_of(joined) == files_of(anew)
    default = [event.recipe for event in events.seen if event.stage in ("compare", "localize") and event.state == "end"]
    assert default == ["portable"]
    assert "the recipe `default` leaves out 1 operation, like an earlier build" in events.notes()


def test_recipes_that_were_healed_one_by_one_are_joined_to_the_same_model(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as units that other machines make
    both = settings_of(recipe(), recipe("other", "reference"))
    with faulty(wrong=("sin",)):
        for name in ("default", "other"):
            used = replace(both, models=tuple(replace(model, recipes=(name,)) for model in both.models))
            folder = shop.folder / f"unit-{name}"
            folder.mkdir()
            store = open_store(os.environ, pytest.fail)
            _, records = make_recipes(*start_build(used, used.models[0], shop.capture(SOURCE), folder, Events(), store))
            assert list(records) == [name]
        monkeypatch.setenv("HATCH_LOWER_CACHE", "frozen")
        joined, _ = build(shop, both)
        monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
        anew, _ = build(shop, both)
    assert left_out(joined) == [("faulty", "aten.sin.default", WRONG)]
    assert files_of(joined) == files_of(anew)
    assert (joined.manifest, joined.verified) == (anew.manifest, anew.verified)


def test_new_weights_are_verified_and_heal_to_what_a_clean_build_makes(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = SOURCE.replace("manual_seed(3)", "manual_seed(4)")
    with faulty(wrong=("sin",)):
        build(shop)
        again, events = build(shop, source=changed)
        monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
        anew, _ = build(shop, source=changed)
    assert again.manifest == anew.manifest
    assert files_of(again) == files_of(anew)
    assert {"compare", "localize"} <= events.stages()


def test_a_backend_that_was_mended_leaves_nothing_out(shop: Workshop) -> None:
    with faulty(wrong=("sin",)):
        build(shop)
    report, _ = build(shop)
    assert left_out(report) == []
    (row,) = report.rows
    assert row.delegated == row.nodes


def test_what_is_left_out_does_not_depend_on_names_and_lines(shop: Workshop) -> None:
    moved = SOURCE.replace("class Net", "# a comment\n\n\nclass Net").replace("other", "third")
    with faulty(wrong=("sin",)):
        first, _ = build(shop)
        second, _ = build(shop, source=moved)
    places: list[tuple[LeftOut, ...]] = [
        report.manifest.recipes["default"].methods["forward"].left_out for report in (first, second)
    ]
    assert places[0] == places[1] != ()
