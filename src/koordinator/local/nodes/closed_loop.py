"""The closed loop of all nodes: what `koordlet.interference.control` decides for each, second by second within a step.

Services of the fleet change from step to step, and the loop sees that late: suppression by the use of the last second,
latency through a window that holds enough requests for a p99 to mean something. Until it has acted, batch disturbs.
"""

import msgspec
import numpy as np

from koordinator.koordlet.interference import control
from koordinator.koordlet.interference.control import ControlConfig, Inputs, Resource
from koordinator.local.nodes import contention
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.cpu_qos import Suppression
from koordinator.local.nodes.usage import F64, Index, Mask, per_node

WATCHED_S = 10
"""Seconds of a step that are followed one by one where services changed …"""
CHANGE_RATIO_MIN = 0.02
"""… by this share of some node; else, and later in the step, by fives, in which little happens."""
LATER_S = 5
REQUESTS_SEEN = 500.0
"""Requests that a p99 needs for an error of about a tenth: services with few of them are seen late."""
WINDOW_S = (2.0, 20.0)
"""Least and longest window; a scrape each second, and the histogram's change since the one before."""


class StepLoad(msgspec.Struct, frozen=True):
    """The demand of a step: (pods,) of running pods, or (nodes,) in milli-cores."""

    demand: F64
    node: Index
    is_best_effort: Mask
    available: F64
    system: F64
    weight: F64
    limit: F64
    service_time_ms: F64
    p99_target_ms: F64


class ClosedLoop:
    """The controller's state of every node, and the interference that batch caused in the last step.

    `course` is (moments, nodes), `durations_s` (moments,) how long each lasted, `slowdown` (nodes,) its mean.
    """

    def __init__(self, capacity: F64, config: ControlConfig, protection: Protection) -> None:
        nodes = capacity.size
        self.state = control.initial(nodes, config)
        self.course = np.ones((1, nodes))
        self.durations_s = np.ones(1)
        self.slowdown = np.ones(nodes)
        self.is_followed = False
        self._config = config
        self._capacity = capacity
        self._protection = protection
        self._services = np.zeros(nodes)
        self._system = np.zeros(nodes)
        self._seen = np.zeros(nodes)
        self._measured = Inputs(
            slack=np.zeros(nodes),
            slack_age_s=np.zeros(nodes),
            present_slack=np.full(nodes, np.nan),
            pressure_slack=np.full(nodes, np.nan),
            pressure_age_s=np.full(nodes, np.inf),
            resource=np.full(nodes, Resource.CPU, np.int64),
            has_culprit=np.zeros(
                nodes, np.bool_
            ),  # at the least CPU nobody disturbs any more: nobody is looked for
            victim=np.zeros(nodes, np.int64),
            others_percent=np.zeros(nodes),
            batch_percent=np.zeros(nodes),
        )

    def react(self, suppression: Suppression, load: StepLoad, elapsed_s: float) -> F64:
        """Follow a step in which pods want `load`; return what best-effort pods may have on average, (nodes,)."""
        nodes, capacity = self._capacity.size, self._capacity
        others = ~load.is_best_effort
        services = np.minimum(per_node(load.node, load.demand * others, nodes), load.available)
        tier_demand = per_node(load.node, load.demand * load.is_best_effort, nodes)
        rest = np.maximum(capacity - services - load.system, 1.0)
        busy = (services + load.system) / capacity
        worst, window_s = self._objectives(load, others)
        others_percent = busy * 100
        change = np.abs(services - self._services) / capacity
        self.durations_s = _durations(elapsed_s, WATCHED_S if (change > CHANGE_RATIO_MIN).any() else 0)
        course, allowed = [], np.zeros(nodes)
        growth = contention.log_slowdown(busy, self._protection)
        sees = {each: -np.expm1(-each / window_s) for each in set(self.durations_s.tolist())}
        for duration_s in self.durations_s.tolist():
            # What was measured is that of the second before, and so is the ceiling.
            ceiling = self.state.ceiling[:, Resource.CPU].astype(np.int64)
            suppression.run(self._services, self._system, int(duration_s) or 1, ceiling)
            limit = np.minimum(suppression.limit_milli(), capacity)
            tier = np.minimum(np.minimum(tier_demand, limit), rest)
            factor = contention.slowdown_beside(growth, tier / capacity)
            course.append(factor)
            allowed += limit * duration_s
            self._seen += (factor * worst - self._seen) * sees[duration_s]
            self._services, self._system = services, load.system
            measured = msgspec.structs.replace(
                self._measured,
                slack=1 - self._seen,
                others_percent=others_percent,
                batch_percent=tier / capacity * 100,
            )
            self.state = control.advance(self.state, measured, duration_s, self._config)
        self.course = np.stack(course)
        self.slowdown = self.durations_s @ self.course / self.durations_s.sum()
        self.is_followed = True
        mean: F64 = allowed / self.durations_s.sum()
        return mean

    def _objectives(self, load: StepLoad, others: Mask) -> tuple[F64, F64]:
        """Return p99 ÷ target of the worst service of each node if batch did nothing, and its window; (nodes,) both."""
        nodes = self._capacity.size
        rivals = np.flatnonzero(others)
        granted = np.zeros_like(load.demand)
        granted[rivals] = contention.water_fill(
            load.demand[rivals], load.weight[rivals], load.node[rivals], load.available
        )
        of = np.flatnonzero((load.service_time_ms > 0) & (load.p99_target_ms > 0))
        reachable = contention.reachable(
            granted[of],
            load.weight[of],
            load.limit[of],
            load.node[of],
            per_node(load.node[rivals], granted[rivals], nodes),
            per_node(load.node[rivals], load.weight[rivals], nodes),
            load.available,
        )
        times = contention.latency(load.demand[of], reachable, np.ones(of.size))
        ratio = times.p99 * load.service_time_ms[of] / load.p99_target_ms[of]
        per_second = load.demand[of] / load.service_time_ms[of]
        order = np.argsort(ratio, kind="stable")
        worst, window_s = np.zeros(nodes), np.full(nodes, WINDOW_S[0])
        worst[load.node[of][order]] = ratio[order]  # the last one, the worst, stays
        window_s[load.node[of][order]] = np.clip(
            REQUESTS_SEEN / np.maximum(per_second[order], 0.1), *WINDOW_S
        )
        return worst, window_s


def loop_of(capacity: F64, config: ControlConfig | None, protection: Protection) -> ClosedLoop | None:
    """Return the closed loop of nodes with so much CPU, (nodes,); None where it is switched off."""
    return None if config is None else ClosedLoop(capacity, config, protection)


def _durations(elapsed_s: float, watched_s: int) -> F64:
    """Return the moments of a step in seconds, (moments,): so many one by one, then by fives."""
    watched = min(int(elapsed_s), watched_s)
    later, left_s = divmod(elapsed_s - watched, LATER_S)
    moments = [1.0] * watched + [float(LATER_S)] * int(later) + ([left_s] if left_s > 0 else [])
    return np.array(moments)
