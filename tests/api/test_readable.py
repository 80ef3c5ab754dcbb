"""Amounts for people."""

import pytest

from koordinator.api import readable


@pytest.mark.parametrize(
    ("name", "raw", "cell", "lot"),
    [
        pytest.param("cpu", "97500m", "97.5", "97.5 cores", id="milli-cores are cores"),
        pytest.param("cpu", 1, "1", "1 core", id="one core"),
        pytest.param("cpu", "1m", "0.001", "0.001 cores", id="a milli-core"),
        pytest.param("cpu", "12500", "12,500", "12,500 cores", id="thousands of cores"),
        pytest.param(
            "kubernetes.io/batch-cpu",
            "8500",
            "8.5",
            "8.5 cores of kubernetes.io/batch-cpu",
            id="batch-cpu in milli",
        ),
        pytest.param(
            "memory", "17857024Mi", "17.03Ti", "17.03 TiB of memory", id="memory in its largest unit"
        ),
        pytest.param("memory", "512", "512", "512 B of memory", id="bytes"),
        pytest.param(
            "kubernetes.io/batch-memory", "3Gi", "3Gi", "3 GiB of kubernetes.io/batch-memory", id="batch"
        ),
        pytest.param("hugepages-2Mi", "64Mi", "64Mi", "64 MiB of hugepages-2Mi", id="huge pages"),
        pytest.param("nvidia.com/gpu", "3", "3", "3 nvidia.com/gpu", id="devices are counted"),
        pytest.param(
            "cpu", "4611686018427387", "unlimited", "unlimited cpu", id="the reference's way to say no limit"
        ),
        pytest.param(
            "memory", "9223372036854775807", "unlimited", "unlimited memory", id="the largest number"
        ),
    ],
)
def test_amounts_are_reported_in_the_unit_that_people_use(
    name: str, raw: str | int, cell: str, lot: str
) -> None:
    assert readable.cell(name, raw) == cell
    assert readable.lot(name, raw) == lot
