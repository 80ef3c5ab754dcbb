"""Kubelet and node agent of all hollow nodes: one informer on pods, one ticker.

The ticker moves the fleet, then carries out what is due: containers that start or end, pods that must go, reports,
heartbeats. Writes that the API refuses for a passing reason are tried again; those about an object that is gone are
forgotten.
"""

import asyncio
import heapq
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

import msgspec
import numpy as np

from koordinator.api import duration, pod_resize
from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.groups import Lease
from koordinator.api.node_metric import NodeMetric, NodeMetricSpec
from koordinator.api.pod_labels import is_terminated
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.cluster.supervise import Guard, supervise
from koordinator.koordlet.qos.eviction import EVENT_FAIL, EVENT_SUCCESS, EvictionVictim
from koordinator.koordlet.report import node_metric
from koordinator.koordlet.report.node_metric import CollectPolicy
from koordinator.local.nodes import behaviour, kubelet, reports
from koordinator.local.nodes.evictions import Evictions
from koordinator.local.nodes.fleet import HollowFleet, StepResult
from koordinator.local.nodes.lent_gpus import LentGPUs
from koordinator.local.nodes.topology_reports import TopologyReports
from koordinator.local.nodes.upkeep import HollowPod, PodAction, Upkeep

log = logging.getLogger(__name__)

# Writes between two chances for everybody else; watchers must keep up with a burst of registrations.
WRITES_PER_TURN = 64
RETRY_S = 5.0
TICK_BACKOFF = BackoffPolicy(initial_s=1.0, max_s=30.0, factor=2.0, jitter_ratio=0.1)


class HollowConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals at which hollow nodes act. The defaults are those of the kubelet and of the node agent."""

    tick_s: float = 1.0
    lease_interval_s: float = 10.0
    lease_duration_s: int = 40
    status_interval_s: float = 300.0
    # Pulling the image and starting the container; each pod's own value is drawn between both.
    start_s_min: float = 0.5
    start_s_max: float = 3.0
    # Most processes stop soon after SIGTERM; the pod's grace period is the longest it can take.
    stop_s_max: float = 2.0
    first_report_s: float = math.inf
    """The longest that anybody waits for a node's first report since we run; agents take their usual interval."""
    pod_events: bool = False
    topology: bool = False
    """Whether NodeResourceTopology and Device objects are kept."""


class HollowNodes:
    """Plays the nodes of a fleet on a cluster until cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        fleet: HollowFleet,
        config: HollowConfig,
        *,
        rng: random.Random,
        on_step: Callable[[float], Any] | None = None,
    ) -> None:
        self.fleet = fleet
        self.guard = Guard("hollow nodes")
        self.registered = asyncio.Event()
        self.evicted_count = 0
        self._cluster = cluster
        self._config = config
        self._on_step = on_step
        self._backoff = Backoff(TICK_BACKOFF, rng)
        self._factory = InformerFactory(cluster, rng)
        self._events = EventRecorder(cluster, "kubelet", rng=rng)
        self._agent_events = EventRecorder(cluster, "koordlet", rng=rng)
        self._topology: TopologyReports | None = None
        if config.topology:
            self._topology = TopologyReports(cluster, self._factory, fleet, self._pods_on)
        self._upkeep = Upkeep(fleet, cluster.clock, self._plan, self._patch_status)
        self._pods: dict[str, HollowPod] = {}
        self._pod_in: dict[int, HollowPod] = {}
        self._due: list[tuple[float, int, PodAction, str]] = []
        self._sequence = 0
        self._silent: set[int] = set()
        self._lent = LentGPUs(fleet)
        self._evictions = Evictions(fleet, self._pods_on, self._lent)
        self._asked_before: set[int] = set()
        self._specs: dict[int, NodeMetricSpec] = {}
        self._policies: dict[int, CollectPolicy] = {}
        rows = len(fleet.shapes)
        self._started_s = 0.0
        self._ticked_s = 0.0
        self._next_report_s = np.full(rows, np.inf)
        self._next_lease_s = np.zeros(rows)
        self._next_status_s = np.zeros(rows)
        self._writes = 0

    # Faults, for tests and scenarios

    def silence(self, names: Iterable[str]) -> None:
        """These nodes stop talking to the API (dead or cut off); their pods run on."""
        self._silent.update(self.fleet.row_of[name] for name in names)

    def revive(self, names: Iterable[str]) -> None:
        self._silent.difference_update(self.fleet.row_of[name] for name in names)

    def slow_down(self, names: Iterable[str], speed_ratio: float) -> None:
        """The CPUs of these nodes do only this share of the usual work."""
        for name in names:
            self.fleet.speed[self.fleet.row_of[name]] = speed_ratio

    # Running

    async def run(self) -> NoReturn:
        """Register all nodes, then tick until cancelled."""
        now_s = self._cluster.clock.now()
        self._started_s = self._ticked_s = now_s
        await self._register(now_s)
        async with asyncio.TaskGroup() as group:
            pods = self._factory.informer(Pod)
            pods.add_handler(self._on_pod, lambda old, new: self._on_pod(new), self._on_pod_gone)
            metrics = self._factory.informer(NodeMetric)
            metrics.add_handler(self._on_metric, lambda old, new: self._on_metric(new), self._on_metric_gone)
            self._factory.start(group)
            group.create_task(self._events.run(), name="hollow events")
            group.create_task(self._agent_events.run(), name="hollow agent events")
            await self._factory.wait_synced()
            self.registered.set()
            await supervise(self._tick_and_pause, self._backoff, self.guard)
        raise AssertionError("the ticker never ends by itself")

    async def _register(self, now_s: float) -> None:
        with suppress(errors.AlreadyExists):
            await self._cluster.create(Namespace, {"metadata": {"name": kubelet.LEASE_NAMESPACE}})
        for row, shape in enumerate(self.fleet.shapes):
            try:
                node = await self._cluster.create(Node, kubelet.node_object(shape, row, now_s))
            except errors.AlreadyExists:
                patch = kubelet.node_status(shape, row, now_s, now_s)
                node = await self._cluster.patch(Node, shape.name, patch, subresource="status")
            lease = kubelet.lease_object(shape.name, node.metadata.uid, self._config.lease_duration_s, now_s)
            with suppress(errors.AlreadyExists):
                await self._cluster.create(Lease, lease, kubelet.LEASE_NAMESPACE)
            await self._breathe()
        # Spread over the interval, as kubelets that started at different times are.
        spread = np.arange(len(self.fleet.shapes)) / len(self.fleet.shapes)
        self._next_lease_s = now_s + self._config.lease_interval_s * (0.5 + spread / 2)
        self._next_status_s = now_s + self._config.status_interval_s * (0.5 + spread / 2)

    async def _tick_and_pause(self) -> float:
        await self.tick()
        return self._config.tick_s

    async def tick(self) -> None:
        """Bring the fleet up to now and carry out what is due."""
        now_s = self._cluster.clock.now()
        elapsed_s, self._ticked_s = now_s - self._ticked_s, now_s
        if elapsed_s > 0:
            ended = self.fleet.step(now_s, elapsed_s)
            if self._on_step is not None:
                self._on_step(now_s)
            await self._end(ended, now_s)
            if self.fleet.has_agents:
                self._lent.learn(now_s)
                await self._evictions.run(now_s, self._evict)
        await self._carry_out(now_s)
        await self._report(now_s)
        if self._topology is not None:
            await self._report_topology(self._topology)
        await self._heartbeat(now_s)

    # What the API says

    def _on_pod(self, obj: Pod) -> None:
        row = self.fleet.row_of.get(obj.spec.node_name)
        if row is None:
            return
        known = self._pods.get(obj.metadata.uid)
        if known is None:
            known = self._admit(obj, row)
            if known is None:
                return
        if obj.metadata.generation != known.obj.metadata.generation:
            self._upkeep.spec_changed(known, obj)
        if behaviour.is_other(known.obj, obj):
            self.fleet.use_cards(known.slot, obj)
            self._lent.changed(known.slot)
        known.obj = obj
        self.fleet.stands(
            known.slot,
            is_terminating=obj.metadata.deletion_timestamp is not None,
            is_finished=is_terminated(obj),
        )
        if obj.spec.readiness_gates and known.runs:
            self._plan(0.0, PodAction.PROBE, known)  # somebody else may have said that it is ready
        if (obj.metadata.deletion_timestamp is not None) and not known.stopping:
            known.stopping = True
            grace_s = obj.metadata.deletion_grace_period_seconds or 0
            self._plan(self._stop_delay_s(known, grace_s), PodAction.STOP, known)

    def _admit(self, obj: Pod, row: int) -> HollowPod | None:
        if is_terminated(obj):
            return None
        shape, error = self.fleet.read(obj)
        if error is not None:
            self._events.warning(obj, "InvalidBehaviour", str(error))
        slot = self.fleet.add(shape, row)
        pod = HollowPod(obj, slot, row)
        self._pods[obj.metadata.uid] = self._pod_in[slot] = pod
        self._lent.changed(slot)
        if self._topology is not None:
            self._topology.pod_changed(row, obj)
        if obj.status.phase == "Running":  # we were restarted, the pod was not
            pod.restarts = max((one.restart_count for one in obj.status.container_statuses), default=0)
            self._begin(pod, kubelet.running_since_s(obj) or self._cluster.clock.now())
            if pod_resize.status_of(obj) is not None:
                pod.applied = pod.allocated = obj.spec
                self._plan(0.0, PodAction.RESIZE, pod)
        else:
            wanted_s = shape.behaviour.start_delay_seconds
            config = self._config
            drawn_s = config.start_s_min + _draw(shape.seed) * (config.start_s_max - config.start_s_min)
            self._plan(drawn_s if wanted_s is None else wanted_s, PodAction.START, pod)
        return pod

    def _on_pod_gone(self, obj: Pod) -> None:
        pod = self._pods.pop(obj.metadata.uid, None)
        if pod is not None:
            del self._pod_in[pod.slot]
            self._lent.gone(pod.slot, pod.row)
            self.fleet.remove(pod.slot)
            if self._topology is not None:
                self._topology.pod_changed(pod.row, obj)

    def _pods_on(self, row: int) -> list[Pod]:
        return [self._pod_in[slot].obj for slot in self.fleet.pods_on[row]]

    def _begin(self, pod: HollowPod, now_s: float) -> None:
        """The containers run from now on."""
        pod.started_s, pod.ended = now_s, None
        self.fleet.start(pod.slot)
        self._lent.changed(pod.slot)
        self._upkeep.begin(pod)

    def _on_metric(self, metric: NodeMetric) -> None:
        row = self.fleet.row_of.get(metric.metadata.name)
        if (row is None) or (self._specs.get(row) == metric.spec):
            return  # most changes are our own reports
        self._specs[row] = metric.spec
        policy, problems = node_metric.readable_windows(node_metric.collect_policy(metric.spec))
        for error in problems.values():
            log.warning("NodeMetric %s: window skipped: %s", metric.metadata.name, error)
        self._policies[row] = policy
        self.fleet.samples.retain(
            max(map(duration.parse, policy.durations), default=0.0), policy.aggregate_duration_s
        )
        # The first report comes one interval after the start, spread as the starts of real agents are; of a new policy
        # not later than that, so that a cluster asked for quick reports need not wait out a slow round.
        wait_s = float(policy.report_interval_s)
        if row not in self._asked_before:
            wait_s = min(wait_s, self._config.first_report_s)
            self._asked_before.add(row)
        spread = row / len(self.fleet.shapes)
        soon_s = self._cluster.clock.now() + wait_s * (0.5 + spread / 2)
        self._next_report_s[row] = min(self._next_report_s[row], soon_s)

    def _on_metric_gone(self, metric: NodeMetric) -> None:
        row = self.fleet.row_of.get(metric.metadata.name)
        if row is not None:
            self._policies.pop(row, None)
            self._specs.pop(row, None)
            self._next_report_s[row] = np.inf

    # What is due

    def _plan(self, delay_s: float, action: PodAction, pod: HollowPod) -> None:
        self._sequence += 1
        at_s = self._cluster.clock.now() + delay_s
        heapq.heappush(self._due, (at_s, self._sequence, action, pod.obj.metadata.uid))

    async def _carry_out(self, now_s: float) -> None:
        later: list[tuple[float, int, PodAction, str]] = []
        while self._due and self._due[0][0] <= now_s:
            entry = heapq.heappop(self._due)
            pod = self._pods.get(entry[3])
            if pod is None:
                continue
            if pod.row in self._silent or not await self._attempt(self._act(entry[2], pod, now_s), pod.obj):
                later.append((now_s + RETRY_S, *entry[1:]))
        for entry in later:
            heapq.heappush(self._due, entry)

    def _is_ours(self, pod: HollowPod) -> bool:
        """False once the pod is gone: its slot may belong to another by now."""
        return self._pods.get(pod.obj.metadata.uid) is pod

    async def _act(self, action: PodAction, pod: HollowPod, now_s: float) -> None:
        meta = pod.obj.metadata
        if not self._is_ours(pod):
            return
        if action is PodAction.STOP:
            self.fleet.halt(pod.slot)
            await self._cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid, grace_period_s=0)
        elif action is PodAction.RETRY_END:
            assert pod.ended is not None, meta.name
            await self._write_end(pod, pod.ended, now_s)
        elif action is PodAction.PROBE:
            if await self._upkeep.probe(pod, now_s):
                await self._end_container(pod, kubelet.KILLED_EXIT_CODE, False, now_s)
        elif action is PodAction.RESIZE:
            await self._upkeep.resize(pod, now_s)
        elif not pod.stopping:
            run = self._upkeep.first_run(pod, now_s)
            await self._patch_status(pod, kubelet.running_status(pod.obj, run, now_s))
            if not self._is_ours(pod):
                return
            self._begin(pod, now_s)
            if self._config.pod_events:
                self._events.normal(pod.obj, "Started", "Started all containers")

    async def _end(self, result: StepResult, now_s: float) -> None:
        # Slots are looked up before the first write: while we write, pods may go and slots change hands.
        finished, killed = (
            [self._pod_in[slot] for slot in slots] for slots in (result.finished, result.killed)
        )
        for pod in filter(self._is_ours, finished):
            exit_code = self.fleet.shape_of[pod.slot].behaviour.exit_code
            await self._end_container(pod, exit_code, False, now_s)
        for pod in filter(self._is_ours, killed):
            await self._end_container(pod, kubelet.OOM_EXIT_CODE, True, now_s)

    async def _end_container(self, pod: HollowPod, exit_code: int, oom_killed: bool, now_s: float) -> None:
        self.fleet.halt(pod.slot)
        pod.ended = kubelet.container_end(exit_code, oom_killed, pod.started_s, now_s)
        if pod.row in self._silent or not await self._attempt(
            self._write_end(pod, pod.ended, now_s), pod.obj
        ):
            self._plan(RETRY_S, PodAction.RETRY_END, pod)

    async def _write_end(self, pod: HollowPod, ended: dict[str, Any], now_s: float) -> None:
        obj = pod.obj
        exit_code = ended["terminated"]["exitCode"]
        if pod.stopping or not kubelet.restarts_again(obj.spec.restart_policy, exit_code):
            await self._patch_status(pod, kubelet.ended_status(obj, pod.run(), ended, now_s))
            return
        await self._patch_status(pod, kubelet.waiting_status(obj, pod.run(), ended, now_s))
        pod.restarts += 1
        pod.last_state = ended
        self._plan(kubelet.restart_backoff_s(pod.restarts), PodAction.START, pod)

    async def _evict(self, row: int, victim: EvictionVictim) -> bool:
        """Evict the pod as the node agent does and return whether it goes; a budget may refuse, then it is asked again
        later."""
        pod = self._pods.get(victim.uid)
        if pod is None or pod.stopping or row in self._silent:
            return False
        meta = pod.obj.metadata
        message = victim.message(meta.name)
        is_gone = await self._attempt(self._cluster.evict(meta.namespace, meta.name, uid=meta.uid), pod.obj)
        if is_gone:
            self.evicted_count += 1
            self._agent_events.warning(pod.obj, EVENT_SUCCESS, message)
        else:
            self._agent_events.warning(pod.obj, EVENT_FAIL, f"{message}: the API refused")
        return is_gone

    def _stop_delay_s(self, pod: HollowPod, grace_s: int) -> float:
        """Return how long the pod takes to stop, never above its grace period; no time if nothing runs in it."""
        if pod.started_s == 0.0 or pod.ended is not None:
            return 0.0
        seed = self.fleet.shape_of[pod.slot].seed >> 16  # other bits than for the start
        return min(0.1 + _draw(seed) * max(self._config.stop_s_max - 0.1, 0.0), grace_s)

    async def _patch_status(self, pod: HollowPod, patch: dict[str, Any]) -> None:
        meta = pod.obj.metadata
        patch["metadata"] = {"uid": meta.uid}
        await self._cluster.patch(Pod, meta.name, patch, meta.namespace, subresource="status")

    # Reports and heartbeats

    async def _report_topology(self, reports: TopologyReports) -> None:
        for row in reports.take_due():
            if row in self._silent or not await self._attempt(reports.write(row), None):
                reports.failed(row)

    async def _report(self, now_s: float) -> None:
        due = np.flatnonzero(self._next_report_s <= now_s).tolist()
        by_policy: dict[CollectPolicy, list[int]] = {}
        for row in due:
            by_policy.setdefault(self._policies[row], []).append(row)
            self._next_report_s[row] = _next(
                self._next_report_s[row], self._policies[row].report_interval_s, now_s
            )
        for policy, rows in by_policy.items():
            talking = np.array([row for row in rows if row not in self._silent], dtype=np.int64)
            statuses = reports.statuses(self.fleet, talking, policy, now_s, self._lent)
            for row, status in zip(talking.tolist(), statuses, strict=True):
                name = self.fleet.shapes[row].name
                patch = [{"op": "add", "path": "/status", "value": status}]
                await self._attempt(
                    self._cluster.patch(
                        NodeMetric, name, patch, patch_type=PatchType.JSON, subresource="status"
                    ),
                    None,
                )

    async def _heartbeat(self, now_s: float) -> None:
        config = self._config
        for row in np.flatnonzero(self._next_lease_s <= now_s).tolist():
            self._next_lease_s[row] = _next(self._next_lease_s[row], config.lease_interval_s, now_s)
            if row not in self._silent:
                name = self.fleet.shapes[row].name
                renewal = {"spec": kubelet.lease_renewal(now_s)}
                await self._attempt(self._cluster.patch(Lease, name, renewal, kubelet.LEASE_NAMESPACE), None)
        for row in np.flatnonzero(self._next_status_s <= now_s).tolist():
            self._next_status_s[row] = _next(self._next_status_s[row], config.status_interval_s, now_s)
            if row not in self._silent:
                name = self.fleet.shapes[row].name
                conditions = {"status": {"conditions": kubelet.node_conditions(self._started_s, now_s)}}
                await self._attempt(self._cluster.patch(Node, name, conditions, subresource="status"), None)

    # Writing

    async def _attempt(self, write: Awaitable[Any], about: Pod | None) -> bool:
        """Attempt the write; return whether it is done with: carried out, or its object is gone or another one now."""
        try:
            await write
        except (errors.NotFound, errors.Conflict):
            log.debug("write skipped: object changed or deleted", extra={"pod": about.key if about else ""})
        except errors.ApiError as error:
            self.guard.failed(error)
            return False
        await self._breathe()
        return True

    async def _breathe(self) -> None:
        self._writes += 1
        if self._writes % WRITES_PER_TURN == 0:
            await asyncio.sleep(0)


def _next(at_s: float, interval_s: float, now_s: float) -> float:
    """Return the next turn of something that was due at `at_s`; missed turns are skipped."""
    missed = int(max(now_s - at_s, 0.0) // interval_s)
    return at_s + (missed + 1) * interval_s


def _draw(seed: int) -> float:
    """Return a number from 0 to 1 that depends on the pod only."""
    return (seed % 65_536) / 65_536
