"""Knobs keep their meaning on both cgroup versions, and refuse what the kernel would refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host import cgroup_knobs, cgroup_values
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.errors import KnobValueError, UnsupportedError

SHARES = st.integers(cgroup_knobs.SHARES_MIN, cgroup_knobs.SHARES_MAX)
WEIGHTS = st.integers(cgroup_knobs.WEIGHT_MIN, cgroup_knobs.WEIGHT_MAX)


@given(WEIGHTS)
def test_a_weight_survives_the_way_through_shares_within_one_step(weight: int) -> None:
    back = cgroup_knobs.weight_of_shares(cgroup_knobs.shares_of_weight(weight))

    assert weight - 1 <= back <= weight


@given(SHARES, SHARES)
def test_more_shares_never_weigh_less(one: int, other: int) -> None:
    low, high = sorted((one, other))

    assert cgroup_knobs.weight_of_shares(low) <= cgroup_knobs.weight_of_shares(high)


@given(st.integers(-(10**9), 10**9))
def test_shares_and_quota_of_any_amount_can_be_written(milli: int) -> None:
    for version in (V1, V2):
        cgroup_knobs.encode(Knob.CPU_SHARES, version, str(cgroup_knobs.shares_of_milli(milli)))
        cgroup_knobs.encode(Knob.CPU_QUOTA, version, str(cgroup_knobs.quota_of_milli(milli)))


@given(st.integers(1, 10**7), st.integers(0, 10**6))
def test_a_larger_limit_never_gives_a_smaller_quota(milli: int, more: int) -> None:
    assert cgroup_knobs.quota_of_milli(milli) <= cgroup_knobs.quota_of_milli(milli + more)


@given(st.one_of(st.just(-1), st.integers(1000, 10**12)))
def test_a_quota_reads_back_as_it_was_written(quota_us: int) -> None:
    on_v2 = f"{cgroup_knobs.encode(Knob.CPU_QUOTA, V2, str(quota_us))} 100000\n"

    assert cgroup_values.quota_us(V1, f"{quota_us}\n") == quota_us
    assert cgroup_values.quota_us(V2, on_v2) == quota_us


@pytest.mark.parametrize("knob", Knob)
def test_every_knob_exists_in_some_version(knob: Knob) -> None:
    found = []
    for version in (V1, V2):
        try:
            found.append(cgroup_knobs.path(knob, version, "kubepods/besteffort"))
        except UnsupportedError as error:
            assert error.knob == knob

    assert found and all("kubepods/besteffort/" in path for path in found)


def test_net_class_stays_a_v1_hierarchy() -> None:
    assert cgroup_knobs.path(Knob.NET_CLASS, V2, "kubepods") == "net_cls/kubepods/net_cls.classid"


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        pytest.param(Knob.CPU_STAT, "1", id="a file that is only read"),
        pytest.param(Knob.CPU_QUOTA, "", id="empty text for a number"),
        pytest.param(Knob.CPU_QUOTA, "many", id="words for a number"),
        pytest.param(Knob.CPUSET, "0-x", id="no CPU list"),
        pytest.param(Knob.BLKIO_WEIGHT, "8:0 101", id="device number out of range"),
        pytest.param(Knob.BLKIO_WEIGHT, "100", id="device missing"),
        pytest.param(Knob.NET_CLASS, "0xzz", id="no hexadecimal number"),
    ],
)
def test_what_the_kernel_would_refuse_is_refused_with_knob_and_value(knob: Knob, value: str) -> None:
    with pytest.raises(KnobValueError) as refused:
        cgroup_knobs.check(knob, V1, value)

    assert (refused.value.knob, refused.value.value) == (knob, value)
    assert knob in str(refused.value)


@pytest.mark.parametrize(
    ("knob", "lowest", "highest", "prefix"),
    [
        (Knob.CPU_SHARES, 2, 262_144, ""),
        (Knob.CPU_BURST, 0, 100_000_000, ""),
        (Knob.CPU_BVT, -1, 2, ""),
        (Knob.CPU_IDLE, 0, 1, ""),
        (Knob.MEMORY_LOW, 0, 2**63 - 1, ""),
        (Knob.MEMORY_WMARK_RATIO, 0, 100, ""),
        (Knob.MEMORY_WMARK_SCALE, 1, 1000, ""),
        (Knob.MEMORY_WMARK_MIN_ADJ, -25, 50, ""),
        (Knob.MEMORY_PRIORITY, 0, 12, ""),
        (Knob.MEMORY_USE_PRIORITY_OOM, 0, 1, ""),
        (Knob.MEMORY_OOM_GROUP, 0, 1, ""),
        (Knob.PAGE_CACHE_ENABLE, 0, 1, ""),
        (Knob.PAGE_CACHE_SYNC, 0, 1, ""),
        (Knob.BLKIO_READ_IOPS, 0, 2**63 - 1, "8:0 "),
        (Knob.BLKIO_WEIGHT, 1, 100, "8:0 "),
        (Knob.NET_CLASS, 0, 2**63 - 1, ""),
    ],
)
def test_a_number_is_taken_up_to_both_ends_of_its_range(
    knob: Knob, lowest: int, highest: int, prefix: str
) -> None:
    for number in (lowest, highest):
        cgroup_knobs.check(knob, V1, f"{prefix}{number}")
    for number in (lowest - 1, highest + 1):
        with pytest.raises(KnobValueError):
            cgroup_knobs.check(knob, V1, f"{prefix}{number}")


def test_v2_takes_any_burst_from_none_on() -> None:
    for number in (0, 100_000_001, 2**63 - 1):
        cgroup_knobs.check(Knob.CPU_BURST, V2, str(number))
    for number in (-1, 2**63):
        with pytest.raises(KnobValueError):
            cgroup_knobs.check(Knob.CPU_BURST, V2, str(number))


def test_a_class_id_may_be_hexadecimal() -> None:
    assert cgroup_knobs.encode(Knob.NET_CLASS, V1, "0x10003") == "0x10003"


def test_only_limits_become_max_on_v2() -> None:
    assert cgroup_knobs.encode(Knob.MEMORY_LIMIT, V2, "-1") == "max"
    assert cgroup_knobs.encode(Knob.CPU_BVT, V2, "-1") == "-1"


def test_text_files_take_any_text() -> None:
    assert cgroup_knobs.encode(Knob.BLKIO_MODEL, V1, "8:0 ctrl=auto") == "8:0 ctrl=auto"
