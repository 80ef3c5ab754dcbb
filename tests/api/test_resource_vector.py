"""Resource lists as vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import quantity, resource_vector
from koordinator.api.resource_vector import AMOUNT_MAX, CPU_COLUMN, MEMORY_COLUMN, ResourceRegistry


def test_units_are_milli_cores_bytes_and_counts() -> None:
    registry = ResourceRegistry()
    vector = registry.vector({"cpu": "1500m", "memory": "1Gi", "kubernetes.io/batch-cpu": "500", "pods": 110})
    assert vector[CPU_COLUMN] == 1500
    assert vector[MEMORY_COLUMN] == 2**30
    assert vector[registry.column("kubernetes.io/batch-cpu")] == 500
    assert vector[registry.column("pods")] == 110
    assert vector.dtype == np.int64


def test_a_new_name_gets_a_new_column_and_old_columns_stay() -> None:
    registry = ResourceRegistry()
    before, width = registry.names, len(registry)
    vector = registry.vector({"example.com/fpga": 2})
    assert registry.names == (*before, "example.com/fpga")
    assert vector.shape == (width + 1,)
    assert vector[width] == 2
    assert registry.find("example.com/other") is None
    assert registry.widen(np.ones((3, width), np.int64)).tolist()[0][-1] == 0


def test_amounts_without_end_saturate_so_that_sums_stay_in_64_bits() -> None:
    registry = ResourceRegistry()
    vector = registry.vector({"cpu": "9223372036854775807", "memory": "1000E"})
    assert vector[CPU_COLUMN] == vector[MEMORY_COLUMN] == AMOUNT_MAX
    assert int((vector * 16).max()) == AMOUNT_MAX * 16


def test_a_bad_amount_is_refused_and_leaves_the_registry_usable() -> None:
    registry = ResourceRegistry()
    with pytest.raises(quantity.QuantityError):
        registry.vector({"cpu": "lots"})
    assert registry.vector({"cpu": 1})[CPU_COLUMN] == 1000


@given(st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "x.io/y"]), st.integers(1, 10**15)))
def test_vectors_go_back_to_the_wire(amounts: dict[str, int]) -> None:
    registry = ResourceRegistry()
    texts = {name: resource_vector.amount_text(name, number) for name, number in amounts.items()}
    vector = registry.vector(texts)
    assert registry.amounts(vector) == amounts
    assert registry.to_wire(vector) == texts
