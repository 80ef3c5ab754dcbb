"""Say how degraded each service is, by what its indicators measured. Pure; docs/interference.md has the marks.

Each indicator works alone, and what is not measured is left out, never taken as calm. `control_input` takes from all of
it what the controller decides by: the service that is worst off, the resource it lacks, who is to blame, how much
the node is used.
"""

import math
import zlib
from collections.abc import Callable, Collection, Mapping

import msgspec
import numpy as np

from koordinator.koordlet.degradation import (
    DEGRADED,
    Contended,
    Degradation,
    Indicator,
    Interference,
    Verdict,
)
from koordinator.koordlet.interference.control import FULL_PERCENT, Inputs, Resource
from koordinator.koordlet.interference.latency import Latency

MARKS: Mapping[Indicator, float] = {
    Indicator.RUN_QUEUE: 0.5,
    Indicator.CPU_PRESSURE: 0.25,
    Indicator.MEMORY_PRESSURE: 0.1,
    Indicator.IO_PRESSURE: 0.2,
}
"""Share of time lost from which a service is degraded: of its runnable time for RUN_QUEUE, of all time for pressure."""


def levels(
    lost: Mapping[Indicator, float], latency: Latency | None, profile: Mapping[Indicator, float]
) -> dict[Indicator, float]:
    """Return the degradation by indicator, 1 at its mark.

    `lost` are shares of time, `profile` what CPI and memory bandwidth are against their outlier marks.
    """
    found = {indicator: share / MARKS[indicator] for indicator, share in lost.items()}
    found.update(profile)
    if latency is not None:
        found[Indicator.LATENCY] = latency.now_s / latency.target_s
    return found


def degradation(
    uid: str,
    levels: Mapping[Indicator, float],
    latency: Latency | None,
    newest: Latency | None,
    before: Degradation | None,
    now_s: float,
) -> Degradation:
    """Return the record of this second, of whose requests `newest` is; `before` is that of the last one."""
    is_degraded = max(levels.values(), default=0.0) >= DEGRADED
    since_s = (before.since_s if before is not None else None) or now_s
    return Degradation(
        uid=uid,
        indicators=levels,
        slack=latency.slack if latency is not None else None,
        present_slack=newest.slack if newest is not None else None,
        since_s=since_s if is_degraded else None,
        at_s=now_s,
        age_s=max(now_s - latency.at_s, 0.0) if latency is not None else 0.0,
    )


RESOURCE_OF: Mapping[Contended, Resource] = {
    Contended.CPU: Resource.CPU,
    Contended.CACHE: Resource.CACHE,
    Contended.MEMORY: Resource.MEMORY,
    Contended.DISK: Resource.DISK,
    Contended.NETWORK: Resource.NETWORK,
}
_RESOURCE_OF_INDICATOR: Mapping[Indicator, Resource] = {
    Indicator.CPI: Resource.CACHE,
    Indicator.MEMORY_BANDWIDTH: Resource.CACHE,
    Indicator.MEMORY_PRESSURE: Resource.MEMORY,
    Indicator.IO_PRESSURE: Resource.DISK,
}
"""All others mean CPU."""


class NodeUsage(msgspec.Struct, frozen=True):
    """CPU in use in percent of the node, as measured last."""

    others_percent: float
    batch_percent: float
    stolen_percent: float = 0.0


class ControlInput(msgspec.Struct, frozen=True):
    """Facts about the node for `control.step`, and about whom they are."""

    measured: Inputs
    victim: str = ""
    """UID of the service that is worst off; empty without any."""
    verdict: Verdict | None = None
    """The verdict that names a culprit who may be acted upon."""


def control_input(
    found: Interference | None,
    use: NodeUsage | None,
    usable: Collection[Resource],
    is_culprit: Callable[[str], bool],
    now_s: float,
) -> ControlInput:
    """Return what is known. `usable` are resources that batch can be shrunk on here: another one counts as CPU, since
    batch that runs less also takes less of all else. `is_culprit` says of a UID whether that pod may be acted upon.

    Without a measured use nothing is known to be fresh, so that the fixed threshold counts.
    """
    services = list(found.services.values()) if found is not None else []
    latencies = [each for each in services if each.slack is not None]
    pressures = [each for each in services if each.slack is None and each.indicators]
    by_latency = min(latencies, key=slack_of, default=None)
    by_pressure = min(pressures, key=slack_of, default=None)
    both = [each for each in (by_latency, by_pressure) if each is not None]
    worst = min(both, key=slack_of, default=None)
    verdict = _verdict(found, worst, is_culprit)
    return ControlInput(
        Inputs(
            slack=_one(slack_of(by_latency)),
            present_slack=_one(min((_present_slack(each) for each in latencies), default=math.nan)),
            slack_age_s=_one(_age_s(by_latency, now_s) if use is not None else math.inf),
            pressure_slack=_one(slack_of(by_pressure)),
            pressure_age_s=_one(_age_s(by_pressure, now_s) if use is not None else math.inf),
            resource=np.array([_resource(worst, found, usable)], np.int64),
            has_culprit=np.array([verdict is not None], np.bool_),
            victim=np.array([_number(worst.uid if worst is not None else "")], np.int64),
            others_percent=_one(use.others_percent if use is not None else FULL_PERCENT),
            batch_percent=_one(use.batch_percent if use is not None else 0.0),
            stolen_percent=_one(use.stolen_percent if use is not None else 0.0),
        ),
        worst.uid if worst is not None else "",
        verdict,
    )


def slack_of(service: Degradation | None) -> float:
    """Return what is left of a service's objective; without one, of what its other indicators bear. NaN for nobody."""
    if service is None:
        return math.nan
    return service.slack if service.slack is not None else DEGRADED - service.level


def _present_slack(service: Degradation) -> float:
    """Return the better of what a window and what this second says: a service is degraded while both say so."""
    slack = slack_of(service)
    return slack if service.present_slack is None else max(slack, service.present_slack)


def _one(number: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([number], np.float64)


def _number(uid: str) -> int:
    """Return a number that stands for a pod; hardly ever the same for two."""
    return zlib.crc32(uid.encode())


def _age_s(service: Degradation | None, now_s: float) -> float:
    return math.inf if service is None else max(now_s - service.at_s, 0.0) + service.age_s


def _verdict(
    found: Interference | None, worst: Degradation | None, is_culprit: Callable[[str], bool]
) -> Verdict | None:
    """Return the verdict about the service that is worst off, else the surest one about another."""
    if found is None:
        return None
    named = [each for each in found.verdicts.values() if is_culprit(each.culprit)]
    about = [each for each in named if worst is not None and each.victim == worst.uid]
    return max(about or named, key=lambda each: each.confidence, default=None)


def _resource(
    worst: Degradation | None, found: Interference | None, usable: Collection[Resource]
) -> Resource:
    """Return what the service that is worst off lacks: as its verdict says, else its worst indicator but latency."""
    if worst is None or found is None:
        return Resource.CPU
    verdict = found.verdicts.get(worst.uid)
    if verdict is not None:
        resource = RESOURCE_OF[verdict.resource]
    else:
        others = [(level, each) for each, level in worst.indicators.items() if each is not Indicator.LATENCY]
        level, indicator = max(others, default=(0.0, Indicator.LATENCY))
        resource = _RESOURCE_OF_INDICATOR.get(indicator, Resource.CPU) if level >= DEGRADED else Resource.CPU
    return resource if resource in usable else Resource.CPU
