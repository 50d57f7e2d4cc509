from __future__ import annotations

import pytest
import torch

from hatch_lower.errors import BackendError
from hatch_lower.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from hatch_lower.exir._serialize.data_serializer import DataEntry
from hatch_lower.exir.tensor_layout import NamedDataError, TensorLayout

pytestmark = pytest.mark.torch


def stored(*entries: tuple[str, bytes]) -> NamedDataStoreOutput:
    store = NamedDataStore()
    for key, data in entries:
        store.add_named_data(key, data)
    return store.get_named_data_store_output()


def test_equal_contents_are_kept_once() -> None:
    store = NamedDataStore()
    store.add_named_data("a", b"one")
    store.add_named_data("b", b"two", alignment=16)
    store.add_named_data("c", b"one", alignment=None, external_tag="file")
    output = store.get_named_data_store_output()
    assert output == NamedDataStoreOutput(
        (b"one", b"two"),
        {"a": DataEntry(0, 1), "b": DataEntry(1, 16)},
        {"file": {"c": DataEntry(0, 1)}},
    )


def test_the_output_is_what_was_there_when_it_was_asked_for() -> None:
    store = NamedDataStore()
    store.add_named_data("a", b"one")
    output = store.get_named_data_store_output()
    store.add_named_data("b", b"two")
    assert output == stored(("a", b"one"))


def test_the_same_data_again_changes_nothing_but_the_alignment() -> None:
    store = NamedDataStore()
    store.add_named_data("a", b"one", alignment=4)
    store.add_named_data("a", b"one", alignment=6, external_tag="file")
    output = store.get_named_data_store_output()
    assert output == NamedDataStoreOutput((b"one",), {"a": DataEntry(0, 12)}, {})


def test_other_data_under_a_name_is_refused_wherever_it_is() -> None:
    store = NamedDataStore()
    store.add_named_data("a", b"one", external_tag="file")
    store.add_named_data("b", b"four", external_tag="file")
    for data in (b"three", b"four"):
        with pytest.raises(ValueError, match="Duplicate key a with different data") as caught:
            store.add_named_data("a", data)
        assert isinstance(caught.value, BackendError)
    assert str(caught.value) == (
        "Duplicate key a with different data\n"
        "  where: named data `a`\n"
        "  found: 3 bytes, then 4 different bytes\n"
        "  to do: name data by its content, or by the constant that it comes from"
    )


@pytest.mark.parametrize("alignment", [0, -1])
def test_an_alignment_is_at_least_one(alignment: int) -> None:
    with pytest.raises(NamedDataError) as caught:
        NamedDataStore().add_named_data("a", b"one", alignment)
    assert str(caught.value) == (f"an alignment must be greater than 0\n  where: named data `a`\n  found: {alignment}")


def test_a_tensor_brings_its_layout() -> None:
    store = NamedDataStore()
    tensor = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    layout = TensorLayout("int32", (2, 3), (0, 1))
    store.add_named_data("a", tensor[1:], tensor_layout=TensorLayout("int32", (1, 3), (0, 1)))
    store.add_named_data("b", tensor)
    store.add_named_data("c", bytes(12))
    store.add_named_data("c", bytes(12), tensor_layout=TensorLayout("int8", (12,), (0,)))
    output = store.get_named_data_store_output()
    assert output.buffers[0] == tensor[1:].numpy().tobytes()
    assert output.pte_data["b"] == DataEntry(1, 1, layout)
    assert output.pte_data["c"].tensor_layout == TensorLayout("int8", (12,), (0,))
    with pytest.raises(ValueError, match="the layouts of one blob differ"):
        store.add_named_data("d", tensor, tensor_layout=TensorLayout("float32", (2, 3), (0, 1)))
    with pytest.raises(ValueError, match="the layouts of one blob differ"):
        store.add_named_data("b", output.buffers[1], tensor_layout=TensorLayout("int64", (3,), (0,)))


def test_layouts_of_dense_tensors() -> None:
    assert TensorLayout.from_tensor(torch.zeros(())) == TensorLayout("float32", (), ())
    channels_last = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert TensorLayout.from_tensor(channels_last) == TensorLayout("float32", (2, 3, 4, 5), (0, 2, 3, 1))
    with pytest.raises(ValueError, match="a tensor with gaps or transposed dimensions cannot be named data") as caught:
        TensorLayout.from_tensor(torch.zeros(2, 3).t())
    assert "found: sizes (3, 2), strides (1, 3)\n  to do: call `.contiguous()` on it" in str(caught.value)


def test_a_parameter_is_stored_without_its_gradient() -> None:
    store = NamedDataStore()
    store.add_named_data("a", torch.nn.Parameter(torch.ones(2)))
    assert store.get_named_data_store_output().buffers == (torch.ones(2).numpy().tobytes(),)


def test_stores_of_several_delegates_are_merged() -> None:
    store = NamedDataStore()
    store.add_named_data("a", b"one", 4)
    other = NamedDataStore()
    other.add_named_data("b", b"two", 8, tensor_layout=TensorLayout("int8", (3,), (0,)))
    other.add_named_data("a", b"one", 2)
    other.add_named_data("c", b"one", external_tag="file")
    store.merge_named_data_store(other.get_named_data_store_output())
    output = store.get_named_data_store_output()
    assert output.buffers == (b"one", b"two")
    assert output.pte_data == {"a": DataEntry(0, 4), "b": DataEntry(1, 8, TensorLayout("int8", (3,), (0,)))}
    assert output.external_data == {"file": {"c": DataEntry(0, 1)}}
    with pytest.raises(ValueError, match="Duplicate key b with different data"):
        store.merge_named_data_store(stored(("b", b"six")))


def test_layouts_of_lists_are_those_of_tuples() -> None:
    tensor = torch.zeros(2, 3)
    layout = TensorLayout("float32", [2, 3], [0, 1])  # type: ignore[arg-type]
    assert layout == TensorLayout.from_tensor(tensor)
    store = NamedDataStore()
    store.add_named_data("a", tensor, tensor_layout=layout)
    assert store.get_named_data_store_output().pte_data["a"].tensor_layout == layout
