"""Serve the usage of pods from the reports of their nodes: the figures of `metrics.k8s.io`."""

from collections.abc import Iterable

from koordinator import clock
from koordinator.api import quantity
from koordinator.api.core import Pod
from koordinator.api.node_metric import NodeMetric, ResourceMap
from koordinator.cluster.informer import Informer
from koordinator.local.controllers.replica_proposals import PodMetric

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
            used = report[1].get((pod.metadata.namespace, pod.metadata.name)) if report else None
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
