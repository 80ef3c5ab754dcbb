"""Cache masks are never empty nor scattered, bandwidth stays in range, lines say what files say."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.host.resctrl import Schemata, parse_schemata, schemata_needs_write
from koordinator.koordlet.hooks import resctrl_pod
from koordinator.koordlet.qos import resctrl
from koordinator.koordlet.qos.resctrl import ResctrlCPU

WAYS = st.integers(1, 32)


@given(WAYS, st.integers(0, 99), st.integers(1, 100))
def test_a_mask_is_one_block_of_ways_within_the_cache(ways: int, start: int, length: int) -> None:
    full = (1 << ways) - 1
    mask = resctrl.l3_mask(full, start, min(start + length, 100))

    assert mask is not None and mask > 0
    assert mask & ~full == 0
    block = mask // (mask & -mask)
    assert block & (block + 1) == 0
    for way in range(ways):  # each one lies at least partly in the range
        is_within = 100 * way < min(start + length, 100) * ways and 100 * (way + 1) > start * ways
        assert is_within or not mask >> way & 1


@given(WAYS, st.integers(0, 99), st.integers(1, 100), st.integers(1, 6))
def test_a_mask_is_as_wide_as_the_kernel_wants_it_and_holds_the_range(
    ways: int, start: int, length: int, ways_min: int
) -> None:
    full, end = (1 << ways) - 1, min(start + length, 100)
    plain, mask = resctrl.l3_mask(full, start, end), resctrl.l3_mask(full, start, end, ways_min)

    assert plain is not None and mask is not None
    assert mask & plain == plain and mask & ~full == 0
    block = mask // (mask & -mask)
    assert block & (block + 1) == 0
    assert mask.bit_count() == max(plain.bit_count(), min(ways_min, ways))


@given(WAYS)
def test_adjacent_ranges_share_no_way_when_both_are_wide_enough(ways: int) -> None:
    full = (1 << ways) - 1
    low, high = resctrl.l3_mask(full, 0, 50), resctrl.l3_mask(full, 50, 100)

    assert low is not None and high is not None
    assert ways == 1 or low & high == 0


@given(st.sampled_from([resctrl.INTEL, resctrl.AMD]), st.integers(-10, 110))
def test_bandwidth_is_left_alone_or_positive(vendor: str, percent: int) -> None:
    value = resctrl.bandwidth(vendor, percent)

    assert (value is None) == (not 0 < percent <= 100)
    assert value is None or 0 < value <= resctrl.AMD_UNLIMITED


CACHES = st.dictionaries(st.integers(0, 300), st.integers(1, 2**20 - 1), min_size=1, max_size=4)


@given(CACHES, CACHES)
def test_what_was_written_need_not_be_written_again(masks: dict[int, int], values: dict[int, int]) -> None:
    content = resctrl.l3_line(masks) + resctrl.mb_line(values)

    assert parse_schemata(content) == Schemata(masks, values)
    assert not schemata_needs_write(content, resctrl.l3_line(masks))
    assert not schemata_needs_write(content, resctrl.mb_line(values))
    assert schemata_needs_write("", resctrl.l3_line(masks))


def test_garbage_in_schemata_is_left_out() -> None:
    assert parse_schemata("L3:0=ff;x=1;2;3=zz;\nMB:0=;1=10\nwhat") == Schemata({0: 255}, {1: 10})


def test_a_mask_file_without_a_mask_means_no_cache_to_divide() -> None:
    assert resctrl.full_mask_of("fffff\n") == 0xFFFFF
    assert resctrl.l3_mask(resctrl.full_mask_of(""), 0, 100) is None


def test_threads_in_the_group_already_are_not_written_again() -> None:
    assert resctrl.new_tasks([5, 3, 3, 9], [9]) == [3, 5]


CPU = ResctrlCPU(resctrl.INTEL, 0xFFF, (0, 1), (0, 1))


def test_a_pods_group_needs_a_value_for_every_cache() -> None:
    one = '{"llc":{"schemataPerCache":[{"cacheID":0,"range":[0,50]}]}}'
    both = '{"llc":{"schemataPerCache":[{"cacheID":0,"range":[0,50]},{"cacheID":1,"range":[50,100]}]}}'

    assert resctrl_pod.group_of({labels.RESCTRL: one}, "u", CPU) == resctrl_pod.ResctrlGroup("koordlet-u", "")
    group = resctrl_pod.group_of({labels.RESCTRL: both}, "u", CPU)
    assert group is not None and group.schemata == "L3:0=3f;1=fc0;\n"
    assert resctrl_pod.group_of({}, "u", CPU) is None


def test_single_pods_get_as_many_ways_as_the_kernel_wants() -> None:
    wide = msgspec.structs.replace(CPU, ways_min=2)
    asked = '{"llc":{"schemata":{"range":[99,100]}}}'

    group = resctrl_pod.group_of({labels.RESCTRL: asked}, "u", wide)
    assert group is not None and group.schemata == "L3:0=c00;1=c00;\n"


def test_bandwidth_of_an_unknown_vendor_is_not_guessed_for_single_pods() -> None:
    unknown = ResctrlCPU("unknown", 0xFFF, (0,), (0,))
    group = resctrl_pod.group_of({labels.RESCTRL: '{"mb":{"schemata":{"percent":20}}}'}, "u", unknown)

    assert group is not None and group.schemata == ""


def test_a_pods_percentage_is_no_line_where_bandwidth_is_not_divided_by_percent() -> None:
    in_mbps = ResctrlCPU(resctrl.INTEL, 0xFFF, (0,), ())
    group = resctrl_pod.group_of({labels.RESCTRL: '{"mb":{"schemata":{"percent":20}}}'}, "u", in_mbps)

    assert group is not None and group.schemata == ""
