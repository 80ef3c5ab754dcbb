"""What one group's readings become, reading by reading."""

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordinator.host.cgroup_counters import CPU_USAGE_NS
from koordinator.host.cgroup_knobs import V2
from koordinator.koordlet.collect import group_usage
from koordinator.koordlet.collect.group_usage import GroupRings, MeasuredGroup

CORES_MAX = 8.0
SOME = (1, 1)
"""An identity; another one is a group made anew."""


MEMORY = b"inactive_anon 60\nactive_anon 40\ninactive_file 20\nactive_file 30\nunevictable 0\n"


class Kept(list[float]):
    """A series that only keeps values."""

    def append(self, _: int, value: float) -> None:  # type: ignore[override]
        super().append(value)


def group(**options: Any) -> tuple[MeasuredGroup, dict[str, Kept]]:
    kept = {name: Kept() for name in ("cpu", "memory", "throttled", "page_cache")}
    cgroups = cast(Any, SimpleNamespace(path=lambda knob, name: f"{name}/{knob}"))
    return MeasuredGroup(cgroups, "g", GroupRings(**cast(Any, kept)), **options), kept


def stat(usage_us: int, periods: int = 0, throttled: int = 0) -> bytes:
    return (
        f"usage_usec {usage_us}\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 0\n".encode()
    )


def take(one: MeasuredGroup, text: bytes | None, at_s: float, identity: Any = SOME) -> bool:
    """A round as `GroupScan` does it with v2; whether the group was looked at."""
    now_ns = None if text is None else CPU_USAGE_NS[V2](text)
    is_active = one.take_usage(now_ns, identity, at_s, CORES_MAX)
    if is_active:
        one.take_periods(V2, text)
        if one.wants_memory() and one.take_memory(b"4096"):
            one.take_memory_stat(V2, MEMORY)
    one.store(0)
    return is_active


@pytest.mark.parametrize(
    ("first", "then", "throttled"),
    [
        pytest.param((10, 5), (20, 7), [0.2], id="two of ten periods"),
        pytest.param((10, 5), (10, 5), [0.0], id="no period"),
        pytest.param((10, 5), (12, 9), [1.0], id="never more than all"),
        pytest.param((20, 5), (10, 7), [], id="periods went backwards"),
        pytest.param((10, 7), (20, 5), [], id="throttled periods went backwards"),
    ],
)
def test_throttling_is_the_share_of_periods_since_the_last_reading(
    first: tuple[int, int], then: tuple[int, int], throttled: list[float]
) -> None:
    one, kept = group()
    take(one, stat(0, *first), 0.0)
    take(one, stat(1_000_000, *then), 1.0)
    assert (kept["throttled"], kept["cpu"]) == (throttled, [1.0])


@pytest.mark.parametrize(
    ("usage_us", "at_s", "cpu"),
    [
        pytest.param(500_000, 1.0, [0.5], id="half a core"),
        pytest.param(8_000_000, 1.0, [8.0], id="as much as there is"),
        pytest.param(8_000_001, 1.0, [], id="more than there is"),
        pytest.param(500_000, 0.0, [], id="no time has passed"),
        pytest.param(0, 1.0, [0.0], id="nothing"),
    ],
)
def test_a_rate_needs_time_and_fits_the_machine(usage_us: int, at_s: float, cpu: list[float]) -> None:
    one, kept = group()
    take(one, stat(0), 0.0)
    take(one, stat(usage_us), at_s)
    assert kept["cpu"] == cpu
    assert one.is_measured is bool(cpu)


def test_of_a_group_that_is_gone_nothing_more_is_read() -> None:
    one, _ = group()
    assert take(one, stat(0), 0.0)
    assert not take(one, None, 1.0)
    assert not take(one, b"no counters", 2.0)


def test_a_group_made_anew_or_gone_for_a_while_begins_again() -> None:
    one, kept = group()
    for text, at_s, identity in (
        (stat(0, 10, 1), 0.0, SOME),
        (stat(9, 20, 2), 1.0, (2, 2)),
        (None, 2.0, SOME),
        (stat(5, 30, 3), 3.0, SOME),
        (stat(2_000_005, 40, 4), 4.0, SOME),
    ):
        take(one, text, at_s, identity)
    assert (kept["cpu"], kept["throttled"]) == ([2.0], [0.1])


def test_a_resting_group_is_looked_at_again_after_some_rounds() -> None:
    one, kept = group()
    looked_at = [take(one, stat(0, 5, 1), float(at_s)) for at_s in range(2 * group_usage.MEMORY_ROUNDS + 2)]
    again = [number for number, was in enumerate(looked_at) if was]
    assert again[:2] == [0, 1], "the first reading, and one because rounds are counted from the index"
    assert [b - a for a, b in itertools.pairwise(again[1:])] == [group_usage.MEMORY_ROUNDS] * 2
    assert set(kept["cpu"]) == {0.0}
    assert kept["throttled"].count(0.0) == len(kept["throttled"]) == len(looked_at) - 1


def test_a_pod_that_rests_spares_its_containers_a_reading() -> None:
    one, kept = group(index=5)
    assert not one.stay(0.0), "never read"
    take(one, stat(0), 0.0)
    assert one.stay(1.0)
    one.store(0)
    take(one, stat(3_000_000), 2.0)
    assert kept["cpu"] == [0.0, 3.0]


@pytest.mark.parametrize(
    ("memory", "asks"),
    [(b"128000", False), (b"129000", False), (b"129001", True), (b"126999", True), (b"127000", False)],
)
def test_what_memory_consists_of_is_asked_when_the_whole_has_moved(memory: bytes, asks: bool) -> None:
    one, _ = group(index=3)
    assert one.take_memory(b"128000")
    assert one.take_memory(memory) is asks
    assert not one.take_memory(b"none")
    assert one.take_memory(memory), "what was unreadable is asked again"


def test_memory_of_containers_is_looked_at_each_fifth_round_once_it_is_known() -> None:
    one, _ = group(memory_every=5)
    assert [one.wants_memory() for _ in range(3)] == [True] * 3
    one.take_memory(b"1")
    assert [one.wants_memory() for _ in range(11)] == [True, *[False] * 4, True, *[False] * 4, True]
