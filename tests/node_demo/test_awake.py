"""What keeps CPUs from idling while something is measured."""

import sys
from pathlib import Path

import pytest

from koordinator.node_demo import awake
from koordinator.node_demo.awake import KeptAwakeBy
from koordinator.node_demo.plan import DemoError


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "cpu_dma_latency"
    path.touch()
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "name"
    path.write_text("POLL\n")
    return path


def test_pm_qos_keeps_cpus_awake_where_the_shallowest_idle_state_polls(device: Path, state: Path) -> None:
    assert awake.means(device, state) is KeptAwakeBy.PM_QOS
    state.write_text("WFI\n")
    assert awake.means(device, state) is KeptAwakeBy.IDLE_CLASS


def test_threads_do_it_without_cpuidle_or_pm_qos(device: Path, state: Path) -> None:
    assert awake.means(device, state.with_name("absent")) is KeptAwakeBy.IDLE_CLASS
    assert awake.means(device.with_name("absent"), state) is KeptAwakeBy.IDLE_CLASS


def test_polling_asks_for_no_latency_at_all(device: Path) -> None:
    device.write_bytes(b"old")
    with awake.polling(device):
        assert int.from_bytes(device.read_bytes(), sys.byteorder) == 0
        assert len(device.read_bytes()) == 4


def test_a_request_that_is_refused_names_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(DemoError, match="cpu_dma_latency"),
        awake.polling(tmp_path / "no" / "cpu_dma_latency"),
    ):
        pass


def test_what_fails_while_cpus_poll_is_told_as_it_is(device: Path) -> None:
    with pytest.raises(FileNotFoundError), awake.polling(device):
        raise FileNotFoundError
