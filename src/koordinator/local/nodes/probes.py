"""Decide when the containers of a hollow pod are started and ready, by their probes. Pure.

Nothing is really asked: probes succeed, unless the pod's behaviour says otherwise.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from koordinator.api.core import Container, Pod, Probe
from koordinator.local.nodes.behaviour import Behaviour

PERIOD_S, SUCCESSES, FAILURES = 10, 1, 3  # the API's defaults

Health = Mapping[str, tuple[bool, bool]]
"""Container → whether it is started, and ready."""


class Timeline(NamedTuple):
    """Seconds since the start of a container at which something changes; infinite for what never happens."""

    started_s: float
    ready_s: float
    unready_s: float
    ready_again_s: float
    killed_s: float

    def at(self, ran_s: float) -> tuple[bool, bool]:
        """Return whether the container is started, and ready."""
        is_started = ran_s >= self.started_s
        fails = self.unready_s <= ran_s < self.ready_again_s
        return is_started, is_started and ran_s >= self.ready_s and not fails


def has_probes(pod: Pod) -> bool:
    """Return whether any container has one."""
    return any(
        one.readiness_probe is not None or one.liveness_probe is not None or one.startup_probe is not None
        for one in (*pod.spec.containers, *pod.spec.init_containers)
    )


def timeline(container: Container, behaviour: Behaviour) -> Timeline:
    """Return what the container's probes find, over time."""
    startup, readiness, liveness = (
        container.startup_probe,
        container.readiness_probe,
        container.liveness_probe,
    )
    started_s, killed_s = 0.0, math.inf
    if startup is not None:
        started_s = float(startup.initial_delay_seconds)
        if behaviour.startup_fails:
            started_s, killed_s = math.inf, started_s + _until_failed_s(startup)
    ready_s, unready_s, ready_again_s = started_s, math.inf, math.inf
    if readiness is not None:
        ready_s = max(started_s, float(readiness.initial_delay_seconds)) + _until_succeeded_s(readiness)
        fails_s = behaviour.readiness_fails_after_seconds
        if fails_s is not None:
            unready_s = max(fails_s, ready_s) + _until_failed_s(readiness)
            lasts_s = behaviour.readiness_fails_for_seconds
            if lasts_s is not None:
                ready_again_s = max(fails_s + lasts_s + _until_succeeded_s(readiness), unready_s)
    if liveness is not None and behaviour.liveness_fails_after_seconds is not None:
        first_s = max(
            behaviour.liveness_fails_after_seconds, started_s, float(liveness.initial_delay_seconds)
        )
        killed_s = min(killed_s, first_s + _until_failed_s(liveness))
    return Timeline(started_s, ready_s, unready_s, ready_again_s, killed_s)


def timelines(containers: Iterable[Container], behaviour: Behaviour) -> dict[str, Timeline]:
    return {one.name: timeline(one, behaviour) for one in containers}


def health(lines: Mapping[str, Timeline], ran_s: float) -> Health:
    """Return how all containers are `ran_s` after their start."""
    return {name: line.at(ran_s) for name, line in lines.items()}


def next_change_s(lines: Mapping[str, Timeline], ran_s: float) -> float | None:
    """When (since the start) something changes next; None when nothing will."""
    moments = (moment for line in lines.values() for moment in line if ran_s < moment < math.inf)
    return min(moments, default=None)


def is_killed(lines: Mapping[str, Timeline], ran_s: float) -> bool:
    """Return whether a probe has failed so often that a container is killed."""
    return any(line.killed_s <= ran_s for line in lines.values())


def _until_succeeded_s(probe: Probe) -> float:
    return float(((probe.success_threshold or SUCCESSES) - 1) * (probe.period_seconds or PERIOD_S))


def _until_failed_s(probe: Probe) -> float:
    return float(((probe.failure_threshold or FAILURES) - 1) * (probe.period_seconds or PERIOD_S))
