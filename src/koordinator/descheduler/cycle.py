"""One cycle: all profiles' plugins look at the cluster, and what they ask for is carried out within limits.
Source: behaviour/descheduler 3."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Node, Pod
from koordinator.api.label_selector import Labels, compile_selector
from koordinator.cluster import errors
from koordinator.cluster.plugin_registry import PluginRegistry
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.descheduler.config import low_node_load
from koordinator.descheduler.configuration import DeschedulerConfig, ProfileConfig
from koordinator.descheduler.metrics import DeschedulerMetrics
from koordinator.descheduler.plugin import (
    Action,
    Actions,
    BalancePlugin,
    CycleLimiter,
    CycleLimits,
    DeschedulePlugin,
    EvictAction,
    EvictOrder,
    EvictPlugin,
    FilterPlugin,
    LiveHandle,
    Observation,
    Plugin,
    SetCordon,
    SetDeletionCost,
)
from koordinator.descheduler.plugins.low_node_load.cycle import LowNodeLoad


async def _nothing_to_prepare(_: Observation) -> str:
    return ""


class Pass(msgspec.Struct, frozen=True):
    """One plugin's turn in a cycle."""

    plugin: str
    start: Callable[[Observation], Actions[object]]
    prepare: Callable[[Observation], Awaitable[str]] = _nothing_to_prepare


class Profile:
    """Plugins by extension point, made once, and what all its filters together say about a pod. `config` is checked, so
    every name is known and stands where it can."""

    def __init__(
        self,
        config: ProfileConfig,
        whole: DeschedulerConfig,
        registry: PluginRegistry[Plugin],
        handle: LiveHandle,
    ) -> None:
        self.name = config.name
        self.takes_part: Callable[[Labels], bool] = compile_selector(config.node_selector or LabelSelector())
        handle = msgspec.structs.replace(
            handle, may_evict=self.may_evict, may_evict_now=self.may_evict_now, refusal=self.refusal
        )
        enabled = config.enabled
        self.plugins: dict[str, Plugin] = {}
        for name in (*enabled.deschedule, *enabled.balance, *enabled.evict, *enabled.filter):
            if name not in self.plugins:
                plugin = registry[name]
                args = plugin.read(config.raw_args(name))
                if plugin is LowNodeLoad and whole.interval_s > 0:  # its detectors last from cycle to cycle
                    args = low_node_load.remembered_for(args, whole.interval_s)
                self.plugins[name] = plugin(args, handle)
        self.filters = [one for one in self._of(enabled.filter) if isinstance(one, FilterPlugin)]
        [self.evictor] = [one for one in self._of(enabled.evict) if isinstance(one, EvictPlugin)]
        self.deschedule = [
            Pass(one.name, one.deschedule)
            for one in self._of(enabled.deschedule)
            if isinstance(one, DeschedulePlugin)
        ]
        self.balance = [
            Pass(one.name, one.balance, one.prepare_balance)
            for one in self._of(enabled.balance)
            if isinstance(one, BalancePlugin)
        ]

    def _of(self, names: Sequence[str]) -> list[Plugin]:
        return [self.plugins[name] for name in names]

    async def prepare(self) -> None:
        """A cycle begins: have the filters look up what they need."""
        for one in self.filters:
            await one.prepare()

    def refusal(self, pod: Pod) -> str:
        """Return why the pod may not be evicted, with the plugin that says so; empty when all let it pass."""
        for one in self.filters:
            if reason := one.refusal(pod):
                return f"{one.name}: {reason}"
        return ""

    def may_evict(self, pod: Pod) -> bool:
        return not self.refusal(pod)

    def may_evict_now(self, pod: Pod) -> bool:
        return not any(one.late_refusal(pod) for one in self.filters)


log = logging.getLogger(__name__)

NODES_MIN = 2
"""With fewer nodes there is nowhere to go."""
RECORDS_MAX = 1_000
"""Evictions of one cycle that are remembered for those who ask; more are only counted."""

ACCEPTED, REFUSED, LIMITED, DRY = "accepted", "refused", "limited", "dry run"


class EvictionRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The end of one eviction that a plugin asked for; `why` says why not."""

    profile: str
    plugin: str
    pod: str
    node: str
    reason: str
    outcome: str
    why: str = ""


class CycleReport(msgspec.Struct, rename="camel"):
    """One cycle, for those who ask: when it began, how long it took, what it did."""

    started_s: float
    nodes: int = 0
    seconds: float = 0.0
    evictions: list[EvictionRecord] = []
    counts: dict[str, int] = {}
    """Evictions by outcome, those that are not listed too."""
    error: str = ""


class CycleRunner:
    """Runs cycles. `limits` and `is_dry_run` hold for all profiles together."""

    def __init__(
        self,
        cluster: Cluster,
        metrics: DeschedulerMetrics,
        profiles: Sequence[Profile],
        limits: CycleLimits,
        is_dry_run: bool,
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._profiles = profiles
        self._limits = limits
        self._limiter = CycleLimiter(limits)
        self._is_dry_run = is_dry_run
        self.results: dict[tuple[str, str], object] = {}
        """Result of the last pass of each plugin, by (profile, plugin)."""

    async def run(self, seen: Observation, report: CycleReport) -> None:
        """One cycle over what was seen; `report` grows on the way and tells why it could not do its work."""
        report.nodes = len(seen.nodes)
        if len(seen.nodes) < NODES_MIN:
            report.error = f"the cluster has {len(seen.nodes)} ready nodes that match: nothing can move"
            return
        self._limiter = CycleLimiter(self._limits)
        for profile in self._profiles:
            await profile.prepare()
        for step in ("deschedule", "balance"):
            for profile in self._profiles:
                nodes = [node for node in seen.nodes if profile.takes_part(node.metadata.labels)]
                own = msgspec.structs.replace(seen, nodes=nodes)
                if problems := await self._run_passes(profile, getattr(profile, step), own, report):
                    report.error = f"profile {profile.name}: {'; '.join(problems)}"
                    return

    async def _run_passes(
        self, profile: Profile, passes: Sequence[Pass], seen: Observation, report: CycleReport
    ) -> list[str]:
        """Run all plugins of a profile; what those could not do that failed."""
        problems: list[str] = []
        for each in passes:
            guard = Guard(f"plugin {each.plugin} of profile {profile.name}")
            error = await guard.call_async(self._run_pass, profile, each, seen, report, problems)
            if error is not None:
                problems.append(f"{each.plugin}: {error}")
            await asyncio.sleep(0)  # a pass may have taken long: others have their turn
        return problems

    async def _run_pass(
        self, profile: Profile, each: Pass, seen: Observation, report: CycleReport, problems: list[str]
    ) -> None:
        if why := await each.prepare(seen):
            log.warning("pass left out: %s", why, extra={"profile": profile.name, "plugin": each.plugin})
            problems.append(f"{each.plugin}: {why}")
            return
        steps: Actions[object] = each.start(seen)
        answer: bool | None = None
        while True:
            try:
                wanted = next(steps) if answer is None else steps.send(answer)
            except StopIteration as end:
                self.results[profile.name, each.plugin] = end.value
                return
            answer = await self._perform(profile, each.plugin, wanted, report)

    async def _perform(self, profile: Profile, plugin: str, wanted: Action, report: CycleReport) -> bool:
        match wanted:
            case EvictAction():
                return await self._evict(profile, plugin, wanted, report)
            case SetCordon():
                patch: dict[str, Any] = {"spec": {"unschedulable": wanted.cordoned or None}}
                return await self._patch(Node, wanted.node, "", patch)
            case SetDeletionCost():
                meta = wanted.pod.metadata
                cost = {labels.POD_DELETION_COST: str(wanted.cost)}
                patch = {"metadata": {"uid": meta.uid, "annotations": cost}}
                return await self._patch(Pod, meta.name, meta.namespace, patch)

    async def _evict(self, profile: Profile, plugin: str, wanted: EvictAction, report: CycleReport) -> bool:
        pod = wanted.pod
        node, namespace = pod.spec.node_name, pod.metadata.namespace
        outcome, why = DRY if self._is_dry_run else ACCEPTED, self._limiter.refusal(node, namespace)
        if why:
            outcome = LIMITED
        elif not self._is_dry_run and (
            why := await profile.evictor.evict(EvictOrder(pod, plugin, wanted.reason, wanted.target))
        ):
            outcome = REFUSED
        is_done = not why
        if is_done:
            self._limiter.count(node, namespace)
        record = EvictionRecord(profile.name, plugin, pod.key, node, wanted.reason, outcome, why)
        self._metrics.plugin_evictions.inc(profile.name, plugin, outcome)
        report.counts[outcome] = report.counts.get(outcome, 0) + 1
        if len(report.evictions) < RECORDS_MAX:
            report.evictions.append(record)
        level = logging.INFO if is_done else logging.DEBUG
        facts = {"profile": profile.name, "plugin": plugin, "pod": pod.key, "node": node}
        log.log(level, "eviction %s", outcome, extra={**facts, "reason": wanted.reason, "why": why})
        return is_done

    async def _patch(
        self, view: type[Node] | type[Pod], name: str, namespace: str, patch: dict[str, Any]
    ) -> bool:
        """Write, unless nothing is to be changed; whether it may be counted as done."""
        if self._is_dry_run:
            log.info("dry run: not written", extra={"kind": view.resource.kind, "object": name})
            return True
        try:
            await self._cluster.patch(view, name, patch, namespace)
        except errors.ApiError as error:
            log.warning("not written: %s", error, extra={"kind": view.resource.kind, "object": name})
            return False
        return True
