"""The controller between services' slack and batch: bounded, monotone, comes to rest, safe without measurements."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from koordinator.koordlet.degradation import Degradation, Indicator, Interference
from koordinator.koordlet.interference import control
from koordinator.koordlet.interference.control import (
    Actions,
    ControlConfig,
    Inputs,
    Resource,
    Source,
    Stage,
    State,
)
from koordinator.koordlet.interference.indicators import NodeUsage, control_input
from koordinator.koordlet.interference.trials import GAIN_RATIO

CONFIG = ControlConfig()
CPU = Resource.CPU


def measurements(slack: float = np.nan, **known: Any) -> Inputs:
    """What one node's services feel; half of the node is services, a quarter batch."""
    values: dict[str, Any] = {
        "slack": slack, "slack_age_s": 0.0, "present_slack": np.nan, "resource": CPU,
        "pressure_slack": np.nan, "pressure_age_s": 0.0, "has_culprit": False, "victim": 0,
        "others_percent": 50.0, "batch_percent": 25.0, "stolen_percent": 0.0,
    } | known  # fmt: skip
    return Inputs(**{name: np.array([value]) for name, value in values.items()})


def after(
    seconds: int, state: State, measured: Inputs, config: ControlConfig = CONFIG
) -> tuple[State, Actions]:
    """Step once per second."""
    for _ in range(seconds):
        state, actions = control.step(state, measured, 1.0, config)
    return state, actions


def ceiling(actions: Actions, resource: Resource = CPU) -> float:
    return float(actions.ceiling_percent[0, resource])


def node() -> State:
    return control.initial(1, CONFIG)


def test_batch_grows_to_the_most_while_services_have_slack() -> None:
    _, actions = after(60, node(), measurements(0.5))

    assert ceiling(actions) == CONFIG.threshold_max_percent
    assert actions.stage[0] == Stage.GROW


def test_batch_holds_while_slack_is_within_the_band() -> None:
    _, actions = after(60, node(), measurements(0.12))

    assert ceiling(actions) == CONFIG.fixed_percent
    assert actions.stage[0] == Stage.HOLD


def test_batch_loses_half_of_what_it_has_when_two_looks_find_little_slack() -> None:
    little = measurements(0.05, others_percent=40.0, batch_percent=20.0)

    state, once = control.step(node(), little, 1.0, CONFIG)
    _, twice = control.step(state, little, 1.0, CONFIG)

    assert (ceiling(once), ceiling(twice)) == (CONFIG.fixed_percent, 50.0)
    assert [once.stage[0], twice.stage[0]] == [Stage.HOLD, Stage.SHRINK]


def test_an_objective_that_is_missed_by_far_leaves_batch_the_least_at_the_first_look() -> None:
    _, actions = control.step(node(), measurements(-CONFIG.miss_ratio), 1.0, CONFIG)

    assert ceiling(actions) == CONFIG.threshold_min_percent


def test_where_a_hypervisor_takes_cpus_a_miss_must_be_seen_for_longer_however_large() -> None:
    stolen = measurements(-0.9, stolen_percent=CONFIG.stolen_percent)

    state, _ = after(int(CONFIG.confirm_stolen_seconds) - 1, node(), stolen)
    _, sure = control.step(state, stolen, 1.0, CONFIG)
    _, own = control.step(state, measurements(-0.9, stolen_percent=CONFIG.stolen_percent - 0.1), 1.0, CONFIG)

    assert float(state.ceiling[0, CPU]) == CONFIG.fixed_percent, "neither shrunk nor grown"
    assert ceiling(sure) == ceiling(own) == CONFIG.threshold_min_percent


def test_batch_loses_in_proportion_to_the_miss() -> None:
    left = []
    for miss in (0.0, 0.1, 0.3, 0.4):
        _, actions = after(2, node(), measurements(-miss, others_percent=40.0, batch_percent=20.0))
        left.append(ceiling(actions) - 40.0)

    assert left[0] == 10.0 and left[1] == pytest.approx(8.0)
    assert left == sorted(left, reverse=True)


def test_what_is_over_takes_nothing_from_batch_though_a_window_remembers_it() -> None:
    _, actions = after(10, node(), measurements(-0.6, present_slack=0.4))

    assert ceiling(actions) == CONFIG.fixed_percent
    assert actions.stage[0] == Stage.HOLD


def test_batch_grows_the_sooner_the_more_slack_there_is() -> None:
    seconds, levels = 25, []
    for slack in (0.16, 0.2, 0.3, 0.9, 1.0):
        state, _ = control.step(node(), measurements(-0.6), 1.0, CONFIG)
        _, actions = after(seconds, state, measurements(slack))
        levels.append(ceiling(actions))

    assert levels[0] == CONFIG.threshold_min_percent < levels[1] < levels[2] < levels[3]
    most_s = seconds - CONFIG.hold_seconds_min + 1
    assert levels[-1] - levels[0] <= CONFIG.growth_percent_per_second * most_s


def test_only_the_resource_that_services_suffer_from_is_taken_from_batch() -> None:
    _, actions = control.step(node(), measurements(-0.5, resource=Resource.DISK), 1.0, CONFIG)

    assert ceiling(actions, Resource.DISK) == CONFIG.resource_min_percent
    assert ceiling(actions) == CONFIG.fixed_percent


def test_nothing_grows_until_services_were_well_for_a_while() -> None:
    state, low = after(2, node(), measurements(0.05))

    _, soon = after(int(CONFIG.hold_seconds) - 1, state, measurements(0.151))
    _, later = after(int(CONFIG.hold_seconds) + 15, state, measurements(0.151))

    assert ceiling(soon) == ceiling(low) < ceiling(later)


def test_a_named_culprit_is_capped_and_evicted_when_that_does_not_help() -> None:
    state, degraded = node(), measurements(-0.2, has_culprit=True)

    state, soon = after(5, state, degraded)
    state, later = after(25, state, degraded)

    assert soon.stage[0] == Stage.CAP and soon.culprit_percent[0] < 100
    assert later.evict[0] and later.stage[0] == Stage.EVICT


def test_a_culprit_is_capped_from_the_second_on_that_is_asked_for() -> None:
    seconds, degraded = int(CONFIG.cap_after_seconds), measurements(-0.2, has_culprit=True)

    _, before = after(seconds - 1, node(), degraded)
    _, then = after(seconds, node(), degraded)

    assert (before.culprit_percent[0], then.culprit_percent[0]) == (100.0, 50.0)


def test_a_small_miss_must_be_seen_twice_a_larger_one_once() -> None:
    small, larger = -CONFIG.confirm_miss_ratio, -CONFIG.confirm_miss_ratio - 0.01

    _, once = control.step(node(), measurements(small), 1.0, CONFIG)
    _, far = control.step(node(), measurements(larger), 1.0, CONFIG)

    assert ceiling(far) < ceiling(once) == CONFIG.fixed_percent


def test_nobody_is_evicted_unless_somebody_is_named() -> None:
    state, evictions = node(), 0
    for _ in range(600):
        state, actions = control.step(state, measurements(-0.2), 1.0, CONFIG)
        evictions += int(actions.evict[0])

    assert evictions == 0


def test_evictions_that_do_not_help_end() -> None:
    state, evictions = node(), 0
    for _ in range(3_600):
        state, actions = control.step(state, measurements(-0.2, has_culprit=True), 1.0, CONFIG)
        evictions += int(actions.evict[0])

    assert evictions == CONFIG.evictions_max


def test_schedulers_see_degradation_and_that_it_is_long_ago() -> None:
    state, degraded = after(60, node(), measurements(-0.2))
    _, forgiven = after(3_600, state, measurements(0.5))

    assert degraded.signal[0] > 0.8
    assert forgiven.signal[0] < 0.05


def test_what_schedulers_see_rises_and_halves_in_the_times_that_are_configured() -> None:
    rise_s, half_s = int(CONFIG.signal_rise_seconds), int(CONFIG.signal_half_life_seconds)

    state, risen = after(rise_s, node(), measurements(-0.2))
    _, halved = after(half_s, state, measurements(0.5))

    assert risen.signal[0] == pytest.approx(1 - np.exp(-1))
    assert halved.signal[0] == pytest.approx(risen.signal[0] / 2)


def test_pressure_counts_where_no_latency_is_known() -> None:
    _, actions = control.step(node(), measurements(pressure_slack=-0.5), 1.0, CONFIG)

    assert ceiling(actions) == CONFIG.threshold_min_percent
    assert actions.source[0] == Source.PRESSURE


def test_the_service_that_is_worst_off_counts_whatever_it_is_known_by() -> None:
    _, actions = control.step(node(), measurements(0.5, pressure_slack=-0.5), 1.0, CONFIG)

    assert (actions.source[0], ceiling(actions)) == (Source.PRESSURE, CONFIG.threshold_min_percent)


def test_without_a_fresh_sense_the_fixed_threshold_holds_at_once() -> None:
    state, wide = after(60, node(), measurements(0.5))

    _, blind = control.step(state, measurements(0.5, slack_age_s=CONFIG.stale_seconds + 1), 1.0, CONFIG)

    assert ceiling(wide) > ceiling(blind) == CONFIG.fixed_percent
    assert blind.source[0] == Source.FIXED


def test_what_was_harmful_is_tried_again_when_services_use_less() -> None:
    state, _ = after(60, node(), measurements(0.5))
    state, _ = after(3, state, measurements(0.05, others_percent=70.0))

    _, heavy = after(300, state, measurements(0.5, others_percent=70.0))
    _, light = after(300, state, measurements(0.5, others_percent=20.0))

    assert ceiling(heavy) < ceiling(light) == CONFIG.threshold_max_percent


def test_what_was_harmful_is_tried_again_after_a_while_twice_as_long_each_time() -> None:
    config = msgspec.structs.replace(CONFIG, forget_seconds=60.0)
    calm, harmful = measurements(0.12), measurements(0.05)
    state, _ = after(3, control.initial(1, config), harmful, config)
    waits = []
    for _ in range(3):
        assert np.isfinite(state.bad[0, CPU])
        seconds = 0
        while np.isfinite(state.bad[0, CPU]):
            state, _ = control.step(state, calm, 1.0, config)
            seconds += 1
        waits.append(seconds)
        state, _ = after(3, state, harmful, config)

    assert waits == pytest.approx([60, 120, 240], abs=2)


def services(**slacks: tuple[float, float | None]) -> Inputs:
    """What the controller decides by, of services with the slack of a window and of this second."""
    found = {
        uid: Degradation(
            uid=uid, slack=slack, present_slack=present, indicators={Indicator.LATENCY: 1 - slack}
        )
        for uid, (slack, present) in slacks.items()
    }
    return control_input(
        Interference(at_s=0.0, services=found), NodeUsage(50.0, 25.0), {CPU}, lambda uid: True, 0.0
    ).measured


@pytest.mark.parametrize(
    ("known", "present"),
    [
        (services(a=(-0.5, 0.4)), 0.4),
        (services(a=(0.4, -0.5)), 0.4),
        (services(a=(-0.5, None)), -0.5),
        (services(a=(-0.5, 0.4), b=(-0.2, -0.3)), -0.2),
    ],
)
def test_a_service_is_degraded_while_its_window_and_this_second_say_so(known: Inputs, present: float) -> None:
    assert known.present_slack[0] == pytest.approx(present)
    assert known.slack[0] <= known.present_slack[0]


def test_victims_are_told_apart() -> None:
    one, same, other = (services(**{uid: (0.0, None)}).victim[0] for uid in ("a", "a", "b"))

    assert one == same != other


# What shrinking brings

JUDGED_S = int(CONFIG.settle_seconds) + 10


def on_plant(
    seconds: int, latency: Callable[[int, float], float], state: State | None = None, **known: Any
) -> tuple[State, list[float]]:
    """Step on a node whose service feels what batch, in percent of the node, does in each second; what batch had."""
    state, batch, course = state or node(), 25.0, []
    for second in range(seconds):
        slack = 1 - latency(second, batch)
        state, actions = control.step(state, measurements(slack, batch_percent=batch, **known), 1.0, CONFIG)
        batch = max(ceiling(actions) - 50.0, 0.0)
        course.append(batch)
    return state, course


def test_a_useless_shrink_is_undone_and_left_out_for_a_while() -> None:
    _, course = on_plant(600, lambda second, batch: 1.3)

    assert course[JUDGED_S - 10] == 0.0, "it was tried"
    assert course[-1] == CONFIG.threshold_max_percent - 50.0
    assert course[JUDGED_S:] == sorted(course[JUDGED_S:]), "and not again so soon"


def test_a_useless_shrink_is_tried_again_ever_more_rarely() -> None:
    tries, now, before = [], 25.0, 0.0
    _, course = on_plant(20_000, lambda second, batch: 1.3)
    for second, now in enumerate(course):
        if now == 0.0 < before:
            tries.append(second)
        before = now

    between = np.diff(tries)
    assert 3 <= len(tries) <= 6
    assert (between[1:] > 1.8 * between[:-1]).all()


def test_a_shrink_that_helps_is_kept_though_services_are_degraded_by_themselves() -> None:
    _, course = on_plant(600, lambda second, batch: 1.2 + 0.03 * batch)

    assert course[-1] == 0.0


def test_a_peak_that_ended_as_batch_shrank_does_not_starve_batch_for_good() -> None:
    _, course = on_plant(4_000, lambda second, batch: 2.0 if second < 15 else 1.3)

    forget_s = int(CONFIG.forget_seconds)
    assert max(course[JUDGED_S:forget_s]) == 0.0, "shrinking seemed to help"
    assert course[-1] == CONFIG.threshold_max_percent - 50.0


def test_batch_that_services_feel_comes_back_for_moments_only_and_ever_more_rarely() -> None:
    _, course = on_plant(15_000, lambda second, batch: 1.2 + 0.03 * batch)

    begins = np.flatnonzero((np.array(course[1:]) > 0) & (np.array(course[:-1]) == 0.0))
    assert 3 <= len(begins) <= 4
    assert (np.diff(begins)[1:] > 1.5 * np.diff(begins)[:-1]).all()
    assert np.count_nonzero(course[JUDGED_S:]) < 100


def test_a_shrink_that_was_useless_is_made_at_once_when_services_feel_batch_after_all() -> None:
    state, course = on_plant(300, lambda second, batch: 1.2)
    _, after_that = on_plant(120, lambda second, batch: 1.2 + 0.04 * batch, state)

    assert course[-1] > 40
    assert min(after_that[:15]) == after_that[-1] == 0.0


@pytest.mark.parametrize("change", [{"victim": 1}, {"has_culprit": True}])
def test_what_was_useless_for_one_service_is_tried_for_another_and_when_a_culprit_is_named(
    change: dict[str, Any],
) -> None:
    state, course = on_plant(300, lambda second, batch: 1.2)
    _, after_that = on_plant(JUDGED_S, lambda second, batch: 1.2, state, **change)

    assert course[-1] > 40
    assert 0.0 in after_that[:5]


def test_another_resource_is_shrunk_while_one_is_left_out() -> None:
    state, _ = on_plant(300, lambda second, batch: 1.2)

    _, actions = control.step(state, measurements(-0.6, resource=Resource.DISK), 1.0, CONFIG)

    assert ceiling(actions, Resource.DISK) == CONFIG.resource_min_percent
    assert ceiling(actions) == CONFIG.threshold_max_percent


@pytest.mark.parametrize(
    "wrong",
    [
        {"slackLowRatio": 0.3, "slackHighRatio": 0.2},
        {"thresholdMinPercent": 80, "thresholdMaxPercent": 70},
        {"thresholdMaxPercent": 101},
    ],
)
def test_bounds_that_contradict_each_other_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, ControlConfig)


@pytest.mark.parametrize(
    "narrow",
    [
        {"slackLowRatio": 0.2, "slackHighRatio": 0.2},
        {"thresholdMinPercent": 70, "thresholdMaxPercent": 70},
    ],
)
def test_bounds_may_meet(narrow: dict[str, Any]) -> None:
    assert msgspec.to_builtins(msgspec.convert(narrow, ControlConfig)).items() >= narrow.items()


# Laws

slacks = st.one_of(st.floats(-3, 1), st.sampled_from([0.0, 0.10, 0.15, 1.0, np.nan]))
percents = st.floats(0, 100)


@st.composite
def any_measurements(draw: st.DrawFn, nodes: int) -> Inputs:
    def column(values: st.SearchStrategy[Any]) -> np.ndarray[Any, Any]:
        return np.array(draw(st.lists(values, min_size=nodes, max_size=nodes)))

    return Inputs(
        slack=column(slacks),
        slack_age_s=column(st.floats(0, 30)),
        present_slack=column(slacks),
        pressure_slack=column(slacks),
        pressure_age_s=column(st.floats(0, 30)),
        resource=column(st.sampled_from(list(map(int, Resource)))),
        has_culprit=column(st.booleans()),
        victim=column(st.sampled_from([0, 1])),
        others_percent=column(percents),
        batch_percent=column(percents),
        stolen_percent=column(st.sampled_from([0.0, 1.9, 2.0, 40.0])),
    )


courses = st.lists(st.tuples(any_measurements(3), st.floats(0, 60)), min_size=1, max_size=20)


@given(courses)
@settings(deadline=None, max_examples=60)
def test_ceilings_stay_within_their_bounds_whatever_is_measured(
    course: list[tuple[Inputs, float]],
) -> None:
    state = control.initial(3, CONFIG)
    for measured, elapsed_s in course:
        state, actions = control.step(state, measured, elapsed_s, CONFIG)

        cpu = actions.ceiling_percent[:, CPU]
        assert (cpu >= CONFIG.threshold_min_percent).all() and (cpu <= CONFIG.threshold_max_percent).all()
        assert (actions.ceiling_percent >= CONFIG.resource_min_percent).all()
        assert (actions.ceiling_percent <= 100).all()
        assert (actions.culprit_percent <= 100).all() and (actions.culprit_percent > 0).all()
        assert (actions.signal >= 0).all() and (actions.signal <= 1).all()
        assert not (actions.evict & ~measured.has_culprit).any()


@given(courses)
@settings(deadline=None, max_examples=40)
def test_a_node_in_a_fleet_is_decided_like_a_node_alone(course: list[tuple[Inputs, float]]) -> None:
    fleet, alone = control.initial(3, CONFIG), [control.initial(1, CONFIG) for _ in range(3)]
    for measured, elapsed_s in course:
        fleet, together = control.step(fleet, measured, elapsed_s, CONFIG)
        for row in range(3):
            one = Inputs(**{name: getattr(measured, name)[[row]] for name in Inputs.__struct_fields__})
            alone[row], single = control.step(alone[row], one, elapsed_s, CONFIG)
            for name in Actions.__struct_fields__:
                assert np.array_equal(
                    getattr(single, name), getattr(together, name)[[row]], equal_nan=True
                ), name


@given(courses)
@settings(deadline=None, max_examples=40)
def test_whoever_follows_ceilings_only_comes_to_the_same_state(
    course: list[tuple[Inputs, float]],
) -> None:
    state = control.initial(3, CONFIG)
    for measured, elapsed_s in course:
        alone = control.advance(state, measured, elapsed_s, CONFIG)
        state, _ = control.step(state, measured, elapsed_s, CONFIG)
        for name in control.State.__struct_fields__:
            if name != "trials":
                assert np.array_equal(getattr(alone, name), getattr(state, name), equal_nan=True), name


@given(courses, st.floats(-1, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_more_slack_never_leaves_batch_less(
    course: list[tuple[Inputs, float]], slack: float, more: float
) -> None:
    state = control.initial(3, CONFIG)
    for measured, elapsed_s in course:
        state, _ = control.step(state, measured, elapsed_s, CONFIG)
    little, much = (
        msgspec.structs.replace(
            measured, slack=np.full(3, s), slack_age_s=np.zeros(3), pressure_slack=np.full(3, np.nan)
        )
        for s in (slack, min(slack + more, 1.0))
    )

    _, held = control.step(state, little, 1.0, CONFIG)
    _, freed = control.step(state, much, 1.0, CONFIG)

    assert (held.ceiling_percent <= freed.ceiling_percent).all()


@given(
    services=st.floats(0, 90),
    demand=st.floats(0, 100),
    alone=st.floats(0.05, 0.95),
    cost=st.floats(0, 3),
    knee=st.floats(0, 60),
    late_s=st.integers(0, 16),
)
@settings(deadline=None, max_examples=25)
def test_under_constant_load_it_comes_to_rest(
    services: float, demand: float, alone: float, cost: float, knee: float, late_s: int
) -> None:
    """A plant whose slack falls from `alone` by `cost` per 100 % of batch beyond `knee`, seen `late_s` seconds late."""
    state, seen, levels, degraded = node(), [alone] * (late_s + 1), [], []
    batch = 0.0
    for _ in range(1_200):
        measured = measurements(seen[-1 - late_s], others_percent=services, batch_percent=batch)
        state, actions = control.step(state, measured, 1.0, CONFIG)
        batch = min(max(ceiling(actions) - services, 0.0), demand)
        seen.append(alone - cost * max(batch - knee, 0.0) / 100)
        levels.append(batch)
        degraded.append(seen[-1] < CONFIG.slack_low_ratio)

    assert len(set(levels[-400:])) == 1, "no cycle"
    least = min(max(CONFIG.threshold_min_percent - services, 0.0), demand)
    at_least = 1 - alone + cost * max(least - knee, 0.0) / 100
    is_useless = 1 - seen[-1] <= at_least * (1 + GAIN_RATIO) / (1 - GAIN_RATIO) + 1e-9
    assert (not any(degraded[-400:])) or batch == least or is_useless, (
        "it rests where services are well, batch has the least, or shrinking brings little"
    )


def test_in_a_day_of_constant_load_what_harmed_is_tried_a_handful_of_times() -> None:
    state, batch, episodes, degraded = node(), 0.0, 0, False
    for _ in range(0, 86_400, 5):
        slack = 0.4 if batch <= 20 else 0.0  # a cliff
        state, actions = control.step(
            state, measurements(slack, batch_percent=batch, others_percent=50.0), 5.0, CONFIG
        )
        batch = max(ceiling(actions) - 50, 0.0)
        episodes += (slack < CONFIG.slack_low_ratio) and not degraded
        degraded = slack < CONFIG.slack_low_ratio

    assert episodes < 40
