"""A plan ends at the wanted values, and no child is ever wider than its parent on the way."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import cpuset
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.koordlet.writing import update_plan
from koordinator.koordlet.writing.update_plan import CacheEntry, Update, UpdatePlan, WriteOutcome

GROUPS = ["be", "be/pod", "be/pod/container"]
CPUS = st.frozensets(st.integers(0, 7), min_size=1)
NOW_S = 1000.0


def path(knob: Knob, group: str, version: int = V1) -> str:
    return cgroup_knobs.path(knob, version, group)


def leveled(
    knob: Knob, old: list[str], new: list[str], version: int = V1
) -> tuple[UpdatePlan, list[dict[str, str]]]:
    """The plan for three nested groups, and the contents after each write."""
    contents = {path(knob, group, version): text for group, text in zip(GROUPS, old, strict=True)}
    levels = [[Update(group, knob, value)] for group, value in zip(GROUPS, new, strict=True)]
    plan = update_plan.plan_leveled(levels, contents, version, {}, NOW_S)
    history = [dict(contents)]
    for write in plan.writes:
        history.append({**history[-1], write.path: write.text})
    return plan, history


@given(CPUS, CPUS)
def test_cpus_of_a_child_stay_within_those_of_its_parent_at_every_step(
    old: cpuset.CPUSet, new: cpuset.CPUSet
) -> None:
    plan, history = leveled(Knob.CPUSET, [cpuset.text_of(old)] * 3, [cpuset.text_of(new)] * 3)

    for contents in history:
        sets = [cpuset.parse(contents[path(Knob.CPUSET, group)]) for group in GROUPS]
        assert sets[0] >= sets[1] >= sets[2]
        assert all(sets)
    assert set(history[-1].values()) == {cpuset.text_of(new)}
    assert bool(plan.writes) == (old != new)


LIMITS = st.lists(st.integers(1000, 10**6), min_size=3, max_size=3).map(
    lambda each: sorted(each, reverse=True)
)


@given(LIMITS, LIMITS)
def test_quotas_of_a_child_stay_within_that_of_its_parent_at_every_step(
    old: list[int], new: list[int]
) -> None:
    _, history = leveled(Knob.CPU_QUOTA, [str(each) for each in old], [str(each) for each in new])

    for contents in history:
        quotas = [int(contents[path(Knob.CPU_QUOTA, group)]) for group in GROUPS]
        assert quotas[0] >= quotas[1] >= quotas[2]
    assert [int(text) for text in history[-1].values()] == new


@given(LIMITS)
def test_a_plan_for_what_is_so_already_writes_nothing(values: list[int]) -> None:
    texts = [str(value) for value in values]
    plan, _ = leveled(Knob.MEMORY_LOW, texts, texts)

    assert plan.writes == ()
    assert {result.outcome for result in plan.results} == {WriteOutcome.UNCHANGED}


def test_lifting_a_quota_on_v2_writes_max_and_compares_the_first_word_only() -> None:
    plan, _ = leveled(Knob.CPU_QUOTA, ["20000 100000"] * 3, ["-1"] * 3, V2)
    again, _ = leveled(Knob.CPU_QUOTA, ["max 100000"] * 3, ["-1"] * 3, V2)

    assert [write.text for write in plan.writes] == ["max"] * 3
    assert again.writes == ()


def test_no_limit_is_the_same_in_all_its_spellings() -> None:
    for content in ("max", "9223372036854775807", "9223372036854771712"):
        assert not update_plan.differs(Knob.MEMORY_HIGH, content, "9223372036854775807")
        assert not update_plan.differs(Knob.MEMORY_LIMIT, content, "-1")
    assert update_plan.differs(Knob.MEMORY_HIGH, "4096", "9223372036854775807")
    assert update_plan.differs(Knob.MEMORY_LIMIT, "4096", "-1")
    assert update_plan.differs(Knob.CPU_QUOTA, "9223372036854775807", "-1")


def test_each_update_has_a_result_that_tells_why_nothing_was_written() -> None:
    updates = [
        Update("gone", Knob.CPU_SHARES, "10"),
        Update("be", Knob.CPU_SHARES, "1"),
        Update("be", Knob.PAGE_CACHE_SIZE, "1"),
        Update("be", Knob.CPU_BURST, "5"),
    ]
    contents = {path(Knob.CPU_SHARES, "be"): "2", path(Knob.CPU_BURST, "be"): "0"}
    cache = {path(Knob.CPU_BURST, "be"): CacheEntry("5", NOW_S - 1)}
    plan = update_plan.plan(updates, contents, V1, cache, NOW_S)

    assert [result.outcome for result in plan.results] == [
        WriteOutcome.MISSING,
        WriteOutcome.REFUSED,
        WriteOutcome.UNSUPPORTED,
        WriteOutcome.SKIPPED,
    ]
    assert plan.writes == ()
    assert "not within" in plan.results[1].problem


def test_groups_side_by_side_keep_their_order_while_their_parent_comes_last() -> None:
    groups = ["be", "be/a", "be/b"]
    contents = {path(Knob.CPU_QUOTA, group): "200000" for group in groups}
    top, *below = [Update(group, Knob.CPU_QUOTA, "100000") for group in groups]

    plan = update_plan.plan_leveled([[top], below], contents, V1, {}, NOW_S)

    assert [write.update.group for write in plan.writes] == ["be/a", "be/b", "be"]


def test_an_unreadable_parent_does_not_stop_its_children() -> None:
    plan, _ = leveled(Knob.CPU_QUOTA, ["what", "1000", "1000"], ["2000"] * 3)

    assert plan.results[0].outcome is WriteOutcome.UNREADABLE
    assert [write.update.group for write in plan.writes] == GROUPS[1:]


def test_a_quota_of_v2_without_its_period_is_unreadable() -> None:
    plan, _ = leveled(Knob.CPU_QUOTA, ["max", "1000 100000", "1000 100000"], ["2000"] * 3, V2)

    assert plan.results[0].outcome is WriteOutcome.UNREADABLE
    assert [write.update.group for write in plan.writes] == GROUPS[1:]


def test_what_was_written_is_not_read_again_for_a_minute() -> None:
    where = path(Knob.CPU_SHARES, "be")
    cache = {where: CacheEntry("10", NOW_S)}

    assert update_plan.is_fresh(cache, where, "10", NOW_S + 60)
    assert not update_plan.is_fresh(cache, where, "10", NOW_S + 60.001)
    assert not update_plan.is_fresh(cache, where, "11", NOW_S)
    assert update_plan.unexpired(cache, NOW_S + 121) == {}
