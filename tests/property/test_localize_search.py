"""The search for a wrong operation, over random graphs whose faults are known, without any lowering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatch_lower.pipeline.localize.search import ExhaustedError, FoundKind, FoundOperations, Order, find_wrong

MOST = 12


@st.composite
def orders(draw: st.DrawFn, least: int = 1) -> Order:
    count = draw(st.integers(least, 150))
    near = draw(st.integers(1, 8))
    sources = [
        tuple(sorted(draw(st.sets(st.integers(max(0, at - near), at - 1), min_size=1, max_size=3))))
        if at and draw(st.integers(0, 9))
        else ()
        for at in range(count)
    ]
    room = draw(st.sampled_from([3, 8, 1000]))
    views = draw(st.sets(st.integers(0, count - 1), max_size=count // 3))
    return Order(tuple(sources), frozenset(range(count)), frozenset(views), (1,) * count, room)


@dataclass
class Engine:
    """Computes wrongly what `faulty` says, and all that is computed from that within one program."""

    order: Order
    faulty: Callable[[frozenset[int], frozenset[int]], set[int]]  # of a program and its outputs
    refuses: Callable[[frozenset[int]], bool] = lambda operations: False
    most: int = MOST
    probes: list[frozenset[int]] = field(default_factory=list)

    def wrong(self, operations: frozenset[int], outputs: Sequence[int]) -> frozenset[int]:
        wrong = set(self.faulty(operations, frozenset(outputs)) & operations)
        for operation in sorted(operations):
            if wrong.intersection(source for source in self.order.sources[operation] if source in operations):
                wrong.add(operation)
        return frozenset(wrong.intersection(outputs))

    def probe(self, operations: frozenset[int], outputs: Sequence[int]) -> frozenset[int] | None:
        if len(self.probes) == self.most:
            raise ExhaustedError
        assert set(outputs) <= operations
        self.probes.append(operations)
        return None if self.refuses(operations) else self.wrong(operations, outputs)


def first_wrong_end(order: Order, engine: Engine) -> int | None:
    used = {source for sources in order.sources for source in sources}
    ends = [operation for operation in range(len(order.sources)) if operation not in used]
    return min(engine.wrong(frozenset(range(len(order.sources))), ends), default=None)


def search(order: Order, engine: Engine) -> FoundOperations | None:
    wrong = first_wrong_end(order, engine)
    return None if wrong is None else find_wrong(order, wrong, engine.probe)


@given(orders(), st.data())
def test_the_operation_that_is_wrong_alone_is_found(order: Order, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, len(order.sources) - 1))
    engine = Engine(order, lambda operations, outputs: {culprit}, most=100 if order.room < 1000 else MOST)
    assert search(order, engine) == FoundOperations(FoundKind.ALONE, (culprit,))


@given(orders(), st.data())
def test_with_two_wrong_operations_one_of_them_is_found(order: Order, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, len(order.sources) - 1), min_size=1, max_size=4))
    found = search(order, Engine(order, lambda operations, outputs: culprits, most=100))
    assert found is not None
    assert found.kind is FoundKind.ALONE
    assert culprits.issuperset(found.operations)


@given(orders(least=3), st.data())
def test_what_is_wrong_together_only_is_never_one_operation(order: Order, data: st.DataObject) -> None:
    pair = data.draw(st.sets(st.integers(0, len(order.sources) - 1), min_size=2, max_size=3))
    tapped = data.draw(st.booleans())  # whether a tap between them separates them

    def faulty(operations: frozenset[int], outputs: frozenset[int]) -> set[int]:
        separated = tapped and any(min(pair) <= output < max(pair) for output in outputs)
        return {max(pair)} if pair <= operations and not separated else set()

    engine = Engine(order, faulty, most=data.draw(st.integers(0, 60)))
    found = search(order, engine)
    if found is None:
        return
    assert found.kind is not FoundKind.ALONE
    if found.kind is FoundKind.TOGETHER:
        assert pair.issubset(found.operations)
        if len(engine.probes) < engine.most:
            assert pair == set(found.operations) or tapped


@pytest.mark.parametrize("size", [2, 20, 120])
def test_a_pair_in_a_chain_is_found_with_few_probes(size: int) -> None:
    order = Order(
        tuple((at - 1,) if at else () for at in range(size)), frozenset(range(size)), frozenset(), (1,) * size, 1000
    )
    pair = {size // 2 - 1, size // 2}
    engine = Engine(order, lambda operations, outputs: {max(pair)} if pair <= operations else set())
    assert search(order, engine) == FoundOperations(FoundKind.TOGETHER, tuple(sorted(pair)))


@given(orders(), st.data())
def test_an_engine_that_refuses_small_programs_names_no_line(order: Order, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, len(order.sources) - 1))
    least = data.draw(st.integers(2, 20))
    engine = Engine(order, lambda operations, outputs: {culprit}, lambda operations: len(operations) < least, most=60)
    found = search(order, engine)
    assert found is not None
    assert found.kind in (FoundKind.AMONG, FoundKind.TOGETHER)
    assert culprit in found.operations


def test_a_fault_that_no_program_shows_is_unseen_only_if_all_were_tried() -> None:
    order = Order(((), (0,), (1,)), frozenset(range(3)), frozenset(), (1, 1, 1), 1000)
    stopped = Engine(order, lambda operations, outputs: set(), most=1)
    assert find_wrong(order, 2, stopped.probe) == FoundOperations(FoundKind.AMONG, (0, 1, 2))
    assert find_wrong(order, 2, Engine(order, lambda operations, outputs: set()).probe) == FoundOperations(
        FoundKind.UNSEEN, ()
    )
