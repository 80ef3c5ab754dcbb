"""`metrics.k8s.io`: what nodes and pods use now, for `kubectl top`.

Where the figures come from is a `UsageSource`; by default the NodeMetric objects that node agents report.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from koordinator import clock
from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, ListOptions
from koordinator.local.apiserver.calls import ResourceCall
from koordinator.local.apiserver.discovery import Served

_NODE_METRICS = ("slo.koordinator.sh", "v1alpha1", "nodemetrics")
_REPORT_INTERVAL_S = 60  # NodeMetric's default aggregation window


class UsageSample(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a node or pod over a window that ended at `time`; quantities as Kubernetes writes them."""

    name: str
    namespace: str = ""
    cpu: str
    memory: str
    time: str
    window_s: int = _REPORT_INTERVAL_S


class UsageSource(Protocol):
    """Knows what nodes and pods use."""

    def nodes(self) -> list[UsageSample]: ...

    def pods(self) -> list[UsageSample]: ...


class NodeMetricUsage:
    """Usage as the NodeMetric objects in the backend report it; empty when there are none."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def nodes(self) -> list[UsageSample]:
        return [
            _usage(name, "", status.get("nodeMetric", {}).get("nodeUsage"), status)
            for name, status in self._reports()
            if _resources(status.get("nodeMetric", {}).get("nodeUsage"))
        ]

    def pods(self) -> list[UsageSample]:
        return [
            _usage(pod.get("name", ""), pod.get("namespace", ""), pod.get("podUsage"), status)
            for _, status in self._reports()
            for pod in status.get("podsMetric") or []
            if _resources(pod.get("podUsage"))
        ]

    def _reports(self) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            resource = self._backend.resolve(*_NODE_METRICS)
        except errors.NotFound:
            return
        for record in self._backend.list(resource, "", ListOptions()).records:
            status = record.obj.get("status")
            if isinstance(status, dict) and status.get("updateTime"):
                yield record.obj["metadata"]["name"], status


class UsageMetrics:
    """NodeMetrics or PodMetrics of `metrics.k8s.io/v1beta1`."""

    def __init__(self, kind: str, plural: str, source: UsageSource, backend: Backend) -> None:
        namespaced = kind == "PodMetrics"
        resource = Resource(
            group="metrics.k8s.io", version="v1beta1", kind=kind, plural=plural, namespaced=namespaced
        )
        self.served = Served(resource, ("get", "list"))
        self._read = source.pods if namespaced else source.nodes
        self._backend = backend
        self._core = backend.resolve("", "v1", plural)

    def get(self, call: ResourceCall) -> dict[str, Any]:
        for item in self.list(call):
            if item["metadata"]["name"] == call.target.name:
                return item
        resource = self.served.resource
        raise errors.not_found(
            resource.qualified, call.target.name, group=resource.group, kind=resource.plural
        )

    def list(self, call: ResourceCall) -> list[dict[str, Any]]:
        """Usage of the nodes or pods that the selectors name and that still exist."""
        target = call.target
        options = ListOptions(
            label_selector=call.params.get("labelSelector", ""),
            field_selector=call.params.get("fieldSelector", ""),
        )
        known = {
            (meta.get("namespace", ""), meta["name"]): meta.get("labels", {})
            for meta in (
                r.obj["metadata"] for r in self._backend.list(self._core, target.namespace, options).records
            )
        }
        return [
            self._object(usage, known[usage.namespace, usage.name])
            for usage in self._read()
            if (usage.namespace, usage.name) in known
        ]

    async def create(self, call: ResourceCall, body: dict[str, Any]) -> dict[str, Any]:
        """Refuse to create anything. Raises: MethodNotSupported."""
        raise errors.MethodNotSupported("the server does not allow this method on the requested resource")

    def _object(self, usage: UsageSample, labels: dict[str, str]) -> dict[str, Any]:
        resource = self.served.resource
        meta: dict[str, Any] = {
            "name": usage.name,
            "creationTimestamp": clock.rfc3339(self._backend.clock.now()),
        }
        if usage.namespace:
            meta["namespace"] = usage.namespace
        if labels:
            meta["labels"] = labels
        amounts = {"cpu": usage.cpu, "memory": usage.memory}
        body: dict[str, Any] = {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": meta,
            "timestamp": usage.time,
            "window": f"{usage.window_s}s",
        }
        if resource.namespaced:
            # NodeMetric reports pods as a whole; the sum over "containers" is what kubectl shows.
            body["containers"] = [{"name": usage.name, "usage": amounts}]
        else:
            body["usage"] = amounts
        return body


def _usage(name: str, namespace: str, used: Any, status: dict[str, Any]) -> UsageSample:
    amounts = _resources(used)
    return UsageSample(
        name=name,
        namespace=namespace,
        cpu=str(amounts.get("cpu", "0")),
        memory=str(amounts.get("memory", "0")),
        time=str(status["updateTime"]),
    )


def _resources(used: Any) -> dict[str, Any]:
    found = used.get("resources") if isinstance(used, dict) else None
    return found if isinstance(found, dict) else {}
