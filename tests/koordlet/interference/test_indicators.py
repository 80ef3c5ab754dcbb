"""What the controller is told of a node: levels at their marks, how old they are, whose verdict counts."""

import math

import pytest

from koordinator.koordlet.degradation import Contended, Degradation, Indicator, Interference, Verdict
from koordinator.koordlet.interference import indicators
from koordinator.koordlet.interference.control import Resource
from koordinator.koordlet.interference.indicators import NodeUsage, control_input
from koordinator.koordlet.interference.latency import Latency

USE = NodeUsage(50.0, 25.0)


def degraded(uid: str, slack: float | None = None, **indicators: float) -> Degradation:
    levels = {Indicator[name]: level for name, level in indicators.items()}
    return Degradation(uid=uid, slack=slack, indicators=levels)


def verdict(victim: str, culprit: str, confidence: float, resource: Contended = Contended.DISK) -> Verdict:
    return Verdict(
        victim=victim,
        culprit=culprit,
        resource=resource,
        indicator=Indicator.LATENCY,
        confidence=confidence,
        runner_up=0.0,
        share=1.0,
        since_s=0.0,
        at_s=0.0,
    )


def found(*services: Degradation, verdicts: tuple[Verdict, ...] = ()) -> Interference:
    return Interference(
        at_s=0.0,
        services={each.uid: each for each in services},
        verdicts={each.victim: each for each in verdicts},
    )


@pytest.mark.parametrize(
    ("indicator", "share"),
    [
        (Indicator.RUN_QUEUE, 0.5),
        (Indicator.CPU_PRESSURE, 0.25),
        (Indicator.MEMORY_PRESSURE, 0.1),
        (Indicator.IO_PRESSURE, 0.2),
    ],
)
def test_a_service_is_degraded_from_a_share_of_lost_time_on(indicator: Indicator, share: float) -> None:
    assert indicators.levels({indicator: share}, None, {}) == {indicator: pytest.approx(1.0)}


@pytest.mark.parametrize(("at_s", "age_s"), [(7.0, 3.0), (10.0, 0.0), (12.0, 0.0)])
def test_latencies_are_as_old_as_the_newest_requests(at_s: float, age_s: float) -> None:
    latency = Latency(now_s=0.02, target_s=0.05, rate=10.0, at_s=at_s)

    noted = indicators.degradation("a", {}, latency, None, None, now_s=10.0)

    assert noted.age_s == age_s
    later = control_input(found(noted), USE, {Resource.CPU}, lambda uid: True, now_s=12.0).measured
    assert later.slack_age_s[0] == 2.0 + age_s


def test_a_service_is_degraded_since_the_first_second_in_which_any_indicator_said_so() -> None:
    high, low = {Indicator.RUN_QUEUE: 1.2, Indicator.CPI: 0.3}, {Indicator.RUN_QUEUE: 0.9}

    first = indicators.degradation("a", high, None, None, None, now_s=10.0)
    second = indicators.degradation("a", high, None, None, first, now_s=11.0)
    over = indicators.degradation("a", low, None, None, second, now_s=12.0)

    assert (first.since_s, second.since_s, over.since_s) == (10.0, 10.0, None)


def test_pressure_is_asked_of_services_without_an_objective_and_whoever_is_worse_off_is_the_victim() -> None:
    by_latency, by_pressure = degraded("slow", -0.1, RUN_QUEUE=9.0), degraded("waits", RUN_QUEUE=1.5)
    known = found(by_latency, by_pressure)

    told = control_input(known, USE, {Resource.CPU}, lambda uid: True, 3.0)
    without_use = control_input(known, None, {Resource.CPU}, lambda uid: True, 3.0).measured

    assert (told.measured.slack[0], told.measured.pressure_slack[0]) == (-0.1, -0.5)
    assert told.victim == "waits"
    assert (told.measured.pressure_age_s[0], without_use.pressure_age_s[0]) == (3.0, math.inf)


def test_without_a_service_or_the_use_of_the_node_nothing_is_fresh() -> None:
    nobody = control_input(found(), USE, {Resource.CPU}, lambda uid: True, 0.0).measured
    unknown = control_input(found(degraded("a", 0.5)), None, {Resource.CPU}, lambda uid: True, 0.0).measured

    assert math.isinf(nobody.slack_age_s[0]) and math.isinf(nobody.pressure_age_s[0])
    assert math.isinf(unknown.slack_age_s[0])
    assert (unknown.others_percent[0], unknown.batch_percent[0]) == (100.0, 0.0)


def test_the_verdict_about_the_service_that_is_worst_off_counts_before_surer_ones() -> None:
    known = found(
        degraded("worst", -0.5),
        degraded("other", -0.1),
        verdicts=(verdict("worst", "x", 0.5), verdict("other", "y", 0.9)),
    )

    def culprit_of(accusable: set[str]) -> str:
        said = control_input(known, USE, {Resource.CPU}, accusable.__contains__, 0.0).verdict
        return said.culprit if said is not None else ""

    assert culprit_of({"x", "y"}) == "x"
    assert culprit_of({"y"}) == "y"
    assert culprit_of(set()) == ""


@pytest.mark.parametrize(
    ("service", "resource"),
    [
        (degraded("a", IO_PRESSURE=1.0), Resource.DISK),
        (degraded("a", IO_PRESSURE=0.9), Resource.CPU),
        (degraded("a", MEMORY_PRESSURE=2.0, IO_PRESSURE=1.5), Resource.MEMORY),
        (degraded("a", -0.5, LATENCY=3.0, CPI=1.2), Resource.CACHE),
        (degraded("a", -0.5, LATENCY=3.0), Resource.CPU),
    ],
)
def test_a_service_lacks_what_its_worst_indicator_but_latency_tells(
    service: Degradation, resource: Resource
) -> None:
    measured = control_input(found(service), USE, set(Resource), lambda uid: True, 0.0).measured
    only_cpu = control_input(found(service), USE, {Resource.CPU}, lambda uid: True, 0.0).measured

    assert measured.resource[0] == resource
    assert only_cpu.resource[0] == Resource.CPU


def test_a_verdict_tells_what_its_victim_lacks() -> None:
    known = found(degraded("a", -0.5, CPI=2.0), verdicts=(verdict("a", "x", 0.9),))

    measured = control_input(known, USE, set(Resource), lambda uid: True, 0.0).measured

    assert measured.resource[0] == Resource.DISK
