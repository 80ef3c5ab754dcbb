"""Amounts times ratios: cut toward zero, memory by whole units, and never beyond what an amount can be."""

import numpy as np
import pytest

from koordinator.manager.noderesource import batch


@pytest.mark.parametrize(
    ("amount", "ratio", "scaled", "units"),
    [
        pytest.param(1999, 0.5, 999, 1000, id="cut"),
        pytest.param(-1999, 0.5, -999, 0, id="cut toward zero"),
        pytest.param(2001, 1.0, 2001, 3000, id="thousandths are a unit more"),
        pytest.param(2**62, 8.0, 2**61, 2305843009213694000, id="up to a limit"),
        pytest.param(-(2**62), 8.0, -(2**61), -2305843009213694000, id="down to a limit"),
    ],
)
def test_an_amount_times_a_ratio_is_cut_and_bounded(
    amount: int, ratio: float, scaled: int, units: int
) -> None:
    given = np.array([amount, 0])
    assert batch.scale(given, ratio).tolist() == [scaled, 0]
    assert batch.scale_units(given, ratio).tolist() == [units, 0]
