"""Disk limits and kernel settings: idempotent texts, ranges, and how a disk is forgotten."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.slo import SystemStrategy
from koordinator.api.slo_qos import IOConfig
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.errors import ContentError
from koordinator.koordlet.qos import blkio, system_config

LIMITS = st.builds(
    IOConfig,
    read_iops=st.none() | st.integers(0, 10**9),
    write_bps=st.none() | st.integers(0, 10**12),
    io_weight_percent=st.none() | st.integers(1, 100),
)


@given(LIMITS)
def test_disk_limits_can_be_written_and_are_not_written_twice(limits: IOConfig) -> None:
    for knob, text in blkio.group_texts("8:0", limits).items():
        cgroup_knobs.check(knob, V1, text)
        is_no_limit = text == "8:0 0"
        assert blkio.needs_write("", text) != is_no_limit
        assert is_no_limit or not blkio.needs_write(f"8:16 1\n{text}\n", text)


def test_a_disk_that_is_no_longer_configured_is_forgotten() -> None:
    contents = {
        Knob.BLKIO_READ_IOPS: "8:0 100\n8:16 5\n",
        Knob.BLKIO_WEIGHT: "8:16 50\n",
        Knob.BLKIO_QOS: "8:16 enable=0\n",
        Knob.BLKIO_MODEL: "8:16 ctrl=auto\n",
    }

    assert blkio.removals(contents, ["8:0"]) == {
        Knob.BLKIO_READ_IOPS: ["8:16 0"],
        Knob.BLKIO_WEIGHT: ["8:16 100"],
    }


def test_a_cost_model_of_ones_own_names_every_operation() -> None:
    whole = IOConfig(
        enable_user_model=True,
        model_read_bps=5,
        model_read_seq_iops=2,
        model_read_rand_iops=3,
        model_write_bps=4,
        model_write_seq_iops=6,
        model_write_rand_iops=7,
    )
    part = msgspec.structs.replace(whole, model_write_bps=None)

    expected = "8:0 ctrl=user rbps=5 rseqiops=2 rrandiops=3 wbps=4 wseqiops=6 wrandiops=7"
    assert blkio.root_texts("8:0", whole)[Knob.BLKIO_MODEL] == expected
    assert Knob.BLKIO_MODEL not in blkio.root_texts("8:0", part), "nobody knows what a write costs"


@given(st.integers(-(10**6), 10**6), st.integers(-10, 500), st.integers(1, 2**43))
def test_kernel_settings_out_of_range_are_left_out(factor: int, scale: int, memory_bytes: int) -> None:
    strategy = SystemStrategy(min_free_kbytes_factor=factor, watermark_scale_factor=scale)
    wanted = system_config.wanted_files(strategy, memory_bytes)

    if "vm/min_free_kbytes" in wanted:
        assert 10_240 <= int(wanted["vm/min_free_kbytes"]) <= 10_485_760
    assert ("vm/watermark_scale_factor" in wanted) == (10 <= scale <= 400)


def test_features_that_contradict_each_other_are_an_error() -> None:
    with pytest.raises(ContentError):
        system_config.wanted_features(SystemStrategy(sched_features={"A": True}), "A NO_A")
    assert system_config.wanted_features(SystemStrategy(sched_features={"A": False}), "A") == ["NO_A"]
