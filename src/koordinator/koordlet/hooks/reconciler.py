"""Delivers what hooks answer by writing groups directly, for pods that started before us or without us.

A pod whose record is the one of last time, under the rules of last time, costs a comparison; its files are compared
again when the executor would. Pods are gone through a few at a time, since container runtimes wait for answers of this
thread. Source: behaviour/koordlet-act 13.7.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from koordinator.api import qos
from koordinator.api.errors import KoordinatorError
from koordinator.api.qos import KubeQoS
from koordinator.cluster.supervise import Guard
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.errors import ContentError
from koordinator.koordlet.hooks import contexts
from koordinator.koordlet.hooks.contexts import (
    KATA,
    NOTHING,
    ClassContext,
    ContainerContext,
    Context,
    HookResponse,
    HostApplicationContext,
    PodContext,
)
from koordinator.koordlet.hooks.hook import (
    ALL,
    REASON,
    Deliver,
    HookAnswer,
    HookRegistry,
    ReconcileEntry,
    ReconcileLevel,
    StageResult,
)
from koordinator.koordlet.metrics import status_of
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.writing import update_plan
from koordinator.koordlet.writing.update_plan import Result, Update

log = logging.getLogger(__name__)

_PROBLEMS_MAX = 4_096
_PODS_AT_ONCE = 2
"""Pods in one go: a millisecond or two where all is worked out anew."""

Levels = list[list[Update]]


class _Plan:
    """The wanted contents of one pod's groups."""

    __slots__ = ("applied_s", "effects", "generation", "given_us", "levels_by_hook", "raised_us", "record")

    def __init__(self, record: PodRecord, generation: int) -> None:
        self.record = record
        self.generation = generation
        self.levels_by_hook: dict[str, Levels] = {}
        self.effects: list[tuple[Deliver, Any, HookResponse]] = []
        self.applied_s: float | None = None
        """Time at which all of it held; None while something does not."""
        self.raised_us: dict[str, tuple[int, int]] = {}
        """Group → quota to give, and how far another strategy may raise it afterwards."""
        self.given_us: dict[str, int] = {}
        """Group → quota that it was given already."""

    def add(self, hook: str, level: int, group: str, response: HookResponse) -> None:
        """Add what a hook answered for a group of the pod (level 0) or of a container (1)."""
        self.levels_by_hook.setdefault(hook, [[], []])[level].extend(updates_of(response, group))
        if response.quota_us is not None and response.quota_us_max is not None:
            self.raised_us[group] = response.quota_us, response.quota_us_max


class Reconciler:
    """Calls hooks for all that is on the node."""

    def __init__(self, shared: Shared, registry: HookRegistry) -> None:
        self._shared = shared
        self._registry = registry
        self._plans: dict[str, _Plan] = {}
        self._generation = 0
        self._guard = Guard("runtime hooks")
        self._problems: dict[str, str] = {}
        """By object and file: each problem is said once."""

    def invalidate(self) -> None:
        """Note that a rule has changed: what was worked out does not hold any more."""
        self._generation += 1

    # Pods

    def pods(self) -> Iterator[None]:
        """Reconcile all pods of the view; where this yields, others may have their turn."""
        view, now_s = self._shared.view, self._shared.clock.now()
        pods = view.pods
        for uid in [uid for uid in self._plans if uid not in pods or not pods[uid].is_active]:
            del self._plans[uid]
        for number, (uid, record) in enumerate(pods.items(), 1):
            if record.is_active and view.pods.get(uid) is record:  # no other one has come meanwhile
                self._guard.call(self._pod, uid, record, now_s)
            if number % _PODS_AT_ONCE == 0:
                yield

    def _pod(self, uid: str, record: PodRecord, now_s: float) -> None:
        plan = self._plans.get(uid)
        if plan is None or plan.generation != self._generation or plan.record != record:
            try:
                fresh = self._planned(record)
            except KoordinatorError as error:
                self._log_problem(f"Pod {record.key}", str(error))
                return
            fresh.given_us = plan.given_us if plan is not None else {}
            plan = self._plans[uid] = fresh
        elif plan.record is not record:
            plan.record = record  # equal: keep the one that others have, too
        if plan.applied_s is None or not 0 <= now_s - plan.applied_s < self._shared.config.qos.force_update_s:
            plan.applied_s = now_s if self._applied(plan) else None
        for deliver, context, response in plan.effects:
            self._guard.call(deliver, context, response)

    def _planned(self, record: PodRecord) -> _Plan:
        plan = _Plan(record, self._generation)
        pod = contexts.of_pod(record)
        self._ask(plan, 0, ReconcileLevel.POD, pod, pod)
        if pod.runtime_class == KATA:
            return plan
        if self._registry.entries(ReconcileLevel.SANDBOX):
            sandbox = contexts.of_sandbox(pod, record, self._shared.host.cgroups, self._shared.view.driver)
            if sandbox is not None:
                self._ask(plan, 1, ReconcileLevel.SANDBOX, pod, sandbox)
        for container in contexts.of_containers(pod, record):
            self._ask(plan, 1, ReconcileLevel.CONTAINER, pod, container)
        return plan

    def _ask(
        self,
        plan: _Plan,
        depth: int,
        level: ReconcileLevel,
        pod: PodContext,
        context: PodContext | ContainerContext,
    ) -> None:
        for entry in self._registry.entries(level):
            answer = self._answer(entry, entry.select(pod), context)
            if answer is None or answer.response == NOTHING:
                continue
            if entry.deliver is None:
                plan.add(answer.hook, depth, context.group, answer.response)
            else:
                plan.effects.append((entry.deliver, context, answer.response))

    def _applied(self, plan: _Plan) -> bool:
        """Write it; whether all of it holds now."""
        raised = {
            group
            for group, (quota_us, max_us) in plan.raised_us.items()
            if self._is_raised(plan, group, quota_us, max_us)
        }
        results: list[Result] = []
        for hook, levels in plan.levels_by_hook.items():
            due = [
                [each for each in level if each.knob is not Knob.CPU_QUOTA or each.group not in raised]
                for level in levels
            ]
            results += self._shared.executor.update_leveled(due, owner=hook)
        running = {each.group for each in plan.record.containers if each.is_running}
        is_held = update_plan.are_settled(results, running)
        plan.given_us = (
            {group: quota_us for group, (quota_us, _) in plan.raised_us.items()} if is_held else {}
        )
        return is_held

    def _is_raised(self, plan: _Plan, group: str, quota_us: int, max_us: int) -> bool:
        """Return whether another strategy raised a quota that we gave before."""
        if plan.given_us.get(group) != quota_us:
            return False
        try:
            now_us = self._shared.host.cgroups.quota_us(group)
        except ContentError:
            return False
        return now_us is not None and quota_us < now_us <= max_us

    def deliver(self, pod: PodContext, result: StageResult) -> None:
        """Write what hooks answered a runtime about a pod: no runtime sets the files of a pod's own group."""
        for answer in result.answers:
            if updates := list(updates_of(answer.response, pod.group)):
                self._shared.executor.update(updates, owner=answer.hook)
            for entry in self._registry.entries(ReconcileLevel.POD):
                if entry.deliver is not None and answer.hook in {
                    hook for hook, _ in entry.functions.values()
                }:
                    self._guard.call(entry.deliver, pod, answer.response)

    # Everything else

    def classes(self) -> None:
        """Reconcile the groups of the three Kubernetes QoS classes."""
        driver = self._shared.view.driver
        found = [ClassContext(each, cgroup_layout.class_dir(driver, each)) for each in KubeQoS]
        self._directly(ReconcileLevel.CLASS, found)

    def host_applications(self) -> None:
        """Applications outside of pods that NodeSLO names."""
        found = []
        for application in self._shared.view.host_applications:
            try:
                group = cgroup_layout.host_application_dir(self._shared.view.driver, application)
            except KoordinatorError as error:
                self._log_problem(f"host application {application.name}", str(error))
                continue
            found.append(HostApplicationContext(application.name, qos.of_name(application.qos), group))
        self._directly(ReconcileLevel.HOST_APPLICATION, found)

    def _directly(
        self, level: ReconcileLevel, found: Iterable[ClassContext | HostApplicationContext]
    ) -> None:
        updates: dict[str, list[Update]] = {}
        for context in found:
            for entry in self._registry.entries(level):
                answer = self._answer(entry, ALL, context)
                if answer is not None:
                    updates.setdefault(answer.hook, []).extend(updates_of(answer.response, context.group))
        for hook, of_hook in updates.items():
            self._shared.executor.update(of_hook, owner=hook)

    def _answer(self, entry: ReconcileEntry, condition: object, context: Context) -> HookAnswer | None:
        """Return what the function for the condition says; None without one, or when the input is malformed."""
        found = entry.functions.get(condition)
        if found is None:
            return None
        hook, function = found
        clock = self._shared.clock
        start_s = clock.now()
        response, is_success = None, True
        try:
            response = function(context)
        except KoordinatorError as error:
            self._log_problem(f"{context.obj}: {', '.join(entry.resources)}", str(error))
            is_success = False
        duration_ms = (clock.now() - start_s) * 1000
        for resource in entry.resources:
            family = self._shared.metrics.hook_reconciled
            family.of(entry.level.value, resource, status_of(is_success)).observe(duration_ms)
        return None if response is None else HookAnswer(hook, response)

    def _log_problem(self, what: str, problem: str) -> None:
        if self._problems.get(what) != problem:
            if len(self._problems) >= _PROBLEMS_MAX:
                self._problems.clear()
            self._problems[what] = problem
            log.warning("hook failed", extra={"what": what, "problem": problem})


def updates_of(response: HookResponse, group: str) -> Iterator[Update]:
    """Yield what the files of a group should say; what no file holds (environment, mounts, devices) is left out."""
    for knob, value in (
        (Knob.CPU_SHARES, response.shares),
        (Knob.CPU_QUOTA, response.quota_us),
        (Knob.CPUSET, response.cpuset or None),
        (Knob.MEMORY_LIMIT, response.memory_bytes),
        (Knob.CPU_BVT, response.bvt),
        (Knob.CPU_IDLE, response.cpu_idle),
        *response.files.items(),
    ):
        if value is not None:
            yield Update(group, knob, str(value), REASON)
