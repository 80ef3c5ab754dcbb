"""Scales what HorizontalPodAutoscalers name by the usage of its pods.

Source: kube-controller-manager's podautoscaler. Usage is what `metrics.k8s.io` serves, from the reports of nodes;
the APIs of custom and external metrics are not served, which the condition of an autoscaler that asks for them says.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from koordinator import clock
from koordinator.api import quantity
from koordinator.api.core import Pod
from koordinator.api.groups import (
    ContainerResourceMetricSource,
    HorizontalPodAutoscaler,
    MetricSpec,
    ResourceMetricSource,
    ScalingRules,
)
from koordinator.api.meta import Condition, Resource, find_condition
from koordinator.api.node_metric import NodeMetric, ResourceMap
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer, InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster
from koordinator.local import selectors
from koordinator.local.controllers import autoscaler_decisions, pod_control, selected_pods
from koordinator.local.controllers.autoscaler_decisions import (
    ConditionState,
    History,
    NoProposal,
    PodMetric,
    Proposal,
    ReplicaBounds,
    Tolerance,
)
from koordinator.local.controllers.ownership import is_deleting
from koordinator.local.controllers.selected_pods import SelectedPods
from koordinator.local.registry.scale import selector_text

Json = dict[str, Any]

WORKERS = 5
SYNC_S = 15.0
_CONFLICTS_MAX = 5
_NO_CUSTOM = "no custom metrics API (custom.metrics.k8s.io) registered"
_NO_EXTERNAL = "the server could not find the requested resource (get {}.external.metrics.k8s.io)"
_NO_USAGE = "no metrics returned from resource metrics API"
_NOT_COMPUTED = "the HPA was unable to compute the replica count: {}"


class _Scale(NamedTuple):
    """The Scale of a target, with where it is."""

    path: str
    body: Json

    @property
    def replicas(self) -> int:
        return int((self.body.get("spec") or {}).get("replicas") or 0)

    @property
    def selector(self) -> str:
        return str((self.body.get("status") or {}).get("selector") or "")


class _Metric(NamedTuple):
    """The proposal of one metric, its name in texts, and its status."""

    replicas: int
    name: str
    status: Json


class _Failed(Exception):
    """A metric says nothing: the reason of condition and event, their text, and what the summary adds to it."""

    def __init__(self, reason: str, message: str, prefix: str) -> None:
        super().__init__(reason, message, prefix)
        self.reason, self.message, self.prefix = reason, message, prefix


class _Evaluation:
    """One look at an autoscaler: what is to be said about it."""

    def __init__(self, hpa: HorizontalPodAutoscaler, now_s: float) -> None:
        self.hpa = hpa
        self.now_s = now_s
        self.conditions: list[Condition] = list(hpa.status.conditions)

    def set_condition(self, kind: str, state: ConditionState) -> None:
        status = "True" if state.holds else "False"
        old = find_condition(self.conditions, kind)
        since: str | None = clock.rfc3339(self.now_s)
        if old is not None and old.status == status:
            since = old.last_transition_time
        new = Condition(
            type=kind,
            status=status,
            reason=state.reason,
            message=state.message,
            last_transition_time=since,
        )
        if old is None:
            self.conditions.append(new)
        else:
            self.conditions[self.conditions.index(old)] = new


class PodAutoscalerController(ControllerLoop):
    """The loop; its keys are autoscalers. `resources` names everything served now."""

    def __init__(
        self,
        cluster: Cluster,
        factory: InformerFactory,
        events: EventRecorder,
        resources: Callable[[], Iterable[Resource]],
    ) -> None:
        self._cluster = cluster
        self._events = events
        self._resources = resources
        self._autoscalers = factory.informer(HorizontalPodAutoscaler)
        self._pods = factory.informer(Pod)
        self._reports = factory.informer(NodeMetric)
        self._usage = ReportedUsage(self._reports)
        self._selected = SelectedPods(self._pods)
        self._histories: dict[Key, History] = {}
        self._controller: Controller[Key] = Controller("pod autoscaler", self._reconcile, workers=WORKERS)
        self._autoscalers.add_handler(self._added, self._changed, self._gone)
        self._informers = [self._autoscalers, self._pods, self._reports]

    def _added(self, hpa: HorizontalPodAutoscaler) -> None:
        self._controller.queue.add(key_of(hpa))

    def _changed(self, old: HorizontalPodAutoscaler, new: HorizontalPodAutoscaler) -> None:
        if old.spec != new.spec:  # and not when we wrote the status
            self._controller.queue.add(key_of(new))

    def _gone(self, hpa: HorizontalPodAutoscaler) -> None:
        self._selected.select(key_of(hpa), None)
        self._histories.pop(key_of(hpa), None)

    async def _reconcile(self, key: Key) -> float | None:
        hpa = self._autoscalers.get(key[1], key[0])
        if hpa is None or is_deleting(hpa):
            return None
        await self._evaluate(key, _Evaluation(hpa, self._cluster.clock.now()))
        return SYNC_S

    async def _evaluate(self, key: Key, evaluation: _Evaluation) -> None:
        hpa, now_s = evaluation.hpa, evaluation.now_s
        try:
            scale = await self._scale(hpa)
        except errors.ApiError as error:
            self._events.warning(hpa, "FailedGetScale", str(error))
            why = f"the HPA controller was unable to get the target's current scale: {error}"
            evaluation.set_condition("AbleToScale", ConditionState(False, "FailedGetScale", why))
            await self._write(evaluation, {})
            return
        found = "the HPA controller was able to get the target's current scale"
        evaluation.set_condition("AbleToScale", ConditionState(True, "SucceededGetScale", found))
        current = scale.replicas
        least = 1 if hpa.spec.min_replicas is None else hpa.spec.min_replicas
        bounds = ReplicaBounds(least, hpa.spec.max_replicas)
        history = self._histories.setdefault(key, History())
        history.begin(current, now_s)
        metrics: list[Json] | None = None
        if current == 0 and least != 0:
            why = "scaling is disabled since the replica count of the target is zero"
            evaluation.set_condition("ScalingActive", ConditionState(False, "ScalingDisabled", why))
            wanted, reason = 0, ""
        elif current > bounds.most:
            wanted, reason = bounds.most, "Current number of replicas above Spec.MaxReplicas"
        elif current < bounds.least:
            wanted, reason = bounds.least, "Current number of replicas below Spec.MinReplicas"
        else:
            proposed, metrics, name = self._propose(key, evaluation, scale)
            if proposed is None:
                await self._write(evaluation, {"current_replicas": current, "current_metrics": metrics})
                return
            reason = f"{name} above target" if proposed > current else "All metrics below target"
            decided = autoscaler_decisions.limited(
                history, hpa.spec.behavior, current, proposed, bounds, now_s
            )
            evaluation.set_condition("AbleToScale", decided.able)
            evaluation.set_condition("ScalingLimited", decided.limited)
            wanted = decided.replicas
        status: Json = {"current_replicas": current, "desired_replicas": wanted, "current_metrics": metrics}
        if wanted != current:
            refused = await self._rescale(hpa, scale, wanted)
            if refused is not None:
                what = f"New size: {wanted}; reason: {reason}; error: {refused}"
                self._events.warning(hpa, "FailedRescale", what)
                why = f"the HPA controller was unable to update the target scale: {refused}"
                evaluation.set_condition("AbleToScale", ConditionState(False, "FailedUpdateScale", why))
                del status["desired_replicas"]
            else:
                why = f"the HPA controller was able to update the target scale to {wanted}"
                evaluation.set_condition("AbleToScale", ConditionState(True, "SucceededRescale", why))
                self._events.normal(hpa, "SuccessfulRescale", f"New size: {wanted}; reason: {reason}")
                history.scaled(current, wanted, now_s)
                status["last_scale_time"] = clock.rfc3339(now_s)
        await self._write(evaluation, status)

    # The target

    async def _scale(self, hpa: HorizontalPodAutoscaler) -> _Scale:
        """Raises: NotFound (the kind, or the target), other ApiErrors."""
        target = hpa.spec.scale_target_ref
        group, _, _ = target.api_version.rpartition("/")
        found = [one for one in self._resources() if (one.group, one.kind) == (group, target.kind)]
        if not found:
            raise errors.NotFound(f'no matches for kind "{target.kind}" in group "{group}"')
        resource = next((one for one in found if "scale" in one.subresources), None)
        if resource is None:
            raise errors.NotFound("the server could not find the requested resource")
        path = resource.path(hpa.metadata.namespace, target.name, "scale")
        return _Scale(path, await self._cluster.request("GET", path))

    async def _rescale(
        self, hpa: HorizontalPodAutoscaler, scale: _Scale, replicas: int
    ) -> errors.ApiError | None:
        for _ in range(_CONFLICTS_MAX):
            try:
                await self._cluster.request("PUT", scale.path, {**scale.body, "spec": {"replicas": replicas}})
            except errors.Conflict:
                scale = await self._scale(hpa)  # somebody else changed the target in between
            except errors.ApiError as error:
                return error
            else:
                return None
        return errors.Conflict("the target is changed all the time")

    # Metrics

    def _propose(
        self, key: Key, evaluation: _Evaluation, scale: _Scale
    ) -> tuple[int | None, list[Json] | None, str]:
        """Return the most that a metric proposes (None: nothing is to be done), their statuses, and that metric's
        name.
        """
        hpa = evaluation.hpa
        why = self._select(key, evaluation, scale.selector)
        if why:
            self._events.warning(hpa, "FailedComputeMetricsReplicas", why)
            return None, None, ""
        pods = self._selected.of(key)
        statuses: list[Json] = []
        best: _Metric | None = None
        failures: list[_Failed] = []
        for spec in hpa.spec.metrics:
            try:
                metric = self._metric(evaluation, spec, pods, scale.replicas)
            except _Failed as failure:
                self._events.warning(hpa, failure.reason, failure.message)
                failures.append(failure)
                statuses.append({"type": ""})  # as kube-controller-manager leaves it
                continue
            statuses.append(metric.status)
            if best is None or metric.replicas > best.replicas:
                best = metric
        if best is None or (failures and best.replicas < scale.replicas):
            first = failures[0] if failures else _Failed("InvalidMetricSourceType", "no metrics", "")
            evaluation.set_condition(
                "ScalingActive", ConditionState(False, first.reason, _NOT_COMPUTED.format(first.message))
            )
            total = len(hpa.spec.metrics)
            text = f"invalid metrics ({len(failures)} invalid out of {total}), first error is: "
            self._events.warning(
                hpa, "FailedComputeMetricsReplicas", f"{text}{first.prefix}: {first.message}"
            )
            return None, statuses, ""
        text = f"the HPA was able to successfully calculate a replica count from {best.name}"
        evaluation.set_condition("ScalingActive", ConditionState(True, "ValidMetricFound", text))
        return best.replicas, statuses, best.name

    def _select(self, key: Key, evaluation: _Evaluation, selector: str) -> str:
        """Keep an eye on the target's pods; why that cannot be, empty when it can."""
        if not selector:
            why = "selector is required"
            self._events.warning(evaluation.hpa, "SelectorRequired", why)
            text = "the HPA target's scale is missing a selector"
            evaluation.set_condition("ScalingActive", ConditionState(False, "InvalidSelector", text))
            return why
        try:
            self._selected.select(key, selected_pods.by_text(selector))
        except selectors.SelectorError as error:
            reason = "InvalidSelector"
            why = f"couldn't convert selector into a corresponding internal selector object: {error}"
        else:
            rivals = self._selected.rivals(key)
            if not rivals:
                return ""
            reason = "AmbiguousSelector"
            names = " ".join("/".join(one) for one in sorted([key, *rivals]))
            why = f"pods by selector {selector} are controlled by multiple HPAs: [{names}]"
        self._events.warning(evaluation.hpa, reason, why)
        evaluation.set_condition("ScalingActive", ConditionState(False, reason, why))
        return why

    def _metric(self, evaluation: _Evaluation, spec: MetricSpec, pods: list[Pod], replicas: int) -> _Metric:
        """Raises: _Failed."""
        if spec.type == "Resource" and spec.resource is not None:
            return self._resource_metric(evaluation, spec.resource, pods, replicas)
        if spec.type == "ContainerResource" and spec.container_resource is not None:
            return self._resource_metric(
                evaluation, spec.container_resource, pods, replicas, spec.container_resource.container
            )
        raise _not_served(spec, evaluation.hpa.metadata.namespace)

    def _resource_metric(
        self,
        evaluation: _Evaluation,
        source: ResourceMetricSource | ContainerResourceMetricSource,
        pods: list[Pod],
        replicas: int,
        container: str = "",
    ) -> _Metric:
        name, target, now_s = source.name, source.target, evaluation.now_s
        of_container = isinstance(source, ContainerResourceMetricSource)
        kind = "ContainerResource" if of_container else "Resource"
        what = f"{container} container" if of_container else f"{name} resource"
        by_amount = target.average_value is not None
        tolerance = _tolerance(evaluation.hpa)
        try:
            usage = self._usage.of(pods, name, container)
            if not usage:
                raise NoProposal(f"unable to get metrics for resource {name}: {_NO_USAGE}")
            if target.average_value is not None:
                aim = quantity.milli(target.average_value)
                proposal = autoscaler_decisions.by_average(pods, usage, name, aim, replicas, tolerance, now_s)
            else:
                percent = target.average_utilization or 0
                proposal = autoscaler_decisions.by_utilization(
                    pods, usage, name, container, percent, replicas, tolerance, now_s
                )
        except NoProposal as error:
            text = f"failed to get {name} {'usage' if by_amount else 'utilization'}: {error}"
            raise _Failed(f"FailedGet{kind}Metric", text, f"failed to get {what} metric value") from error
        metric = f"{name} resource"
        if not by_amount:
            metric = (
                f"{name} {'container ' if of_container else ''}resource utilization (percentage of request)"
            )
        member = "containerResource" if of_container else "resource"
        about = {"name": name, "current": _current(name, proposal)}
        if of_container:
            about["container"] = container
        return _Metric(proposal.replicas, metric, {"type": kind, member: about})

    # The status

    async def _write(self, evaluation: _Evaluation, fields: Json) -> None:
        hpa = evaluation.hpa
        status = msgspec.structs.replace(hpa.status, conditions=evaluation.conditions, **fields)
        try:
            await pod_control.write(
                self._cluster,
                hpa,
                hpa.status,
                status,
                ("desiredReplicas", "currentMetrics"),
            )
        except errors.Conflict:
            return  # another one of that name by now


def _current(resource: str, proposal: Proposal) -> Json:
    family = quantity.Family.BINARY if resource == "memory" else quantity.Family.DECIMAL
    current: Json = {"averageValue": quantity.Quantity.of_milli(proposal.average_milli, family).text}
    if proposal.percent is not None:
        current["averageUtilization"] = proposal.percent
    return current


def _tolerance(hpa: HorizontalPodAutoscaler) -> Tolerance:
    def of(rules: ScalingRules | None) -> float:
        if rules is None or rules.tolerance is None:
            return autoscaler_decisions.TOLERANCE
        return quantity.milli(rules.tolerance) / 1000

    behavior = hpa.spec.behavior
    return Tolerance() if behavior is None else Tolerance(of(behavior.scale_down), of(behavior.scale_up))


def _not_served(spec: MetricSpec, namespace: str) -> _Failed:
    """Return the failure for a metric of another API."""
    body = spec.pods or spec.object or spec.external or {}
    name = (body.get("metric") or {}).get("name", "")
    fetch = f"unable to get metric {name}: unable to fetch metrics from custom metrics API: {_NO_CUSTOM}"
    match spec.type:
        case "Pods":
            return _Failed("FailedGetPodsMetric", fetch, "failed to get pods metric value")
        case "Object":
            about = body.get("describedObject") or {}
            text = f"{fetch} on {about.get('kind', '')} {about.get('name', '')}"
            return _Failed("FailedGetObjectMetric", text, "failed to get object metric value")
        case "External":
            selector = selector_text((body.get("metric") or {}).get("selector")) or "nil"
            text = (
                f"unable to get external metric {namespace}/{name}/{selector}: "
                f"unable to fetch metrics from external metrics API: {_NO_EXTERNAL.format(name)}"
            )
            by_amount = (body.get("target") or {}).get("averageValue") is not None
            inner = f"{name} external metric" if by_amount else f"external metric {name}"
            prefix = f"failed to get {name} external metric value: failed to get {inner}"
            return _Failed("FailedGetExternalMetric", text, prefix)
    text = f'unknown metric source type "{spec.type}"'
    return _Failed("InvalidMetricSourceType", text, "invalid metric source")


WINDOW_S = 60.0


class ReportedUsage:
    """Looks pods up in the latest report of their nodes; a report is taken apart when first asked for."""

    def __init__(self, reports: Informer[NodeMetric]) -> None:
        self._reports = reports
        self._known: dict[str, tuple[NodeMetric, dict[tuple[str, str], ResourceMap]]] = {}
        reports.add_handler(on_delete=lambda report: self._known.pop(report.metadata.name, None))

    def of(self, pods: Iterable[Pod], resource: str, container: str = "") -> dict[str, PodMetric]:
        """Use by name of pod, for pods that are reported. The use of a container is known where it is the only one."""
        found: dict[str, PodMetric] = {}
        for pod in pods:
            if container and [one.name for one in pod.spec.containers] != [container]:
                continue
            report = self._report(pod.spec.node_name)
            used = report[1].get(key_of(pod)) if report else None
            if report is None or used is None or resource not in used.resources:
                continue
            milli = quantity.milli(used.resources[resource])
            time_s = clock.parse_rfc3339(report[0].status.update_time or "")
            found[pod.metadata.name] = PodMetric(milli, time_s, WINDOW_S)
        return found

    def _report(self, node: str) -> tuple[NodeMetric, dict[tuple[str, str], ResourceMap]] | None:
        report = self._reports.get(node)
        if report is None or not report.status.update_time:
            return None
        known = self._known.get(node)
        if known is None or known[0] is not report:
            by_pod = {(one.namespace, one.name): one.pod_usage for one in report.status.pods_metric}
            known = self._known[node] = (report, by_pod)
        return known
