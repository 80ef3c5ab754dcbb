"""Merge what node agents learnt of workloads, and give it back to the nodes on which these run.

A NodeMetric tells the profiles of its node's own pods; of each workload on each CPU model all nodes count by the weight
of their samples. NodeSLOs carry what is of use to their node (`extensions.workloadProfiles`), and are written only when
a mean or deviation has moved by more than `MOVED_SHARE`. Behind the gate WorkloadProfiles.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec

from koordinator.api import slo, workload_profile
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.api.workload_profile import (
    PROFILES,
    ContainerProfile,
    Moments,
    PodInterference,
    ProfiledMetric,
    WorkloadProfiles,
)
from koordinator.cluster import errors
from koordinator.cluster.supervise import Guard
from koordinator.manager.parts import ManagerContext

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
MOVED_SHARE = 0.05


class _Subject(NamedTuple):
    """A container of a workload on a kind of CPU."""

    cpu_model: str
    workload: str
    container: str


class ProfileTable:
    """The profiles that each node told last, and by subject which nodes tell of it."""

    def __init__(self) -> None:
        self._of_node: dict[str, dict[_Subject, ContainerProfile]] = {}
        self._nodes: dict[_Subject, set[str]] = {}
        self._changed: set[_Subject] = set()

    def say(self, node: str, told: Iterable[PodInterference]) -> None:
        """Take over what a node tells; nothing, when it is gone."""
        parts: dict[_Subject, list[ContainerProfile]] = {}
        for each in told:
            for name, own in each.containers.items():
                parts.setdefault(_Subject(each.cpu_model, each.workload, name), []).append(own)
        found = {subject: workload_profile.merged_profile(own) for subject, own in parts.items()}
        before = self._of_node.pop(node, {})
        if found:
            self._of_node[node] = found
        for subject in before.keys() - found.keys():
            self._nodes[subject].discard(node)
            if not self._nodes[subject]:
                del self._nodes[subject]
        for subject in found:
            self._nodes.setdefault(subject, set()).add(node)
        self._changed |= before.keys() | found.keys()

    def take_changed(self) -> set[str]:
        """Return the nodes to which something new can be told since the last call."""
        subjects, self._changed = self._changed, set()
        return {node for subject in subjects for node in self._nodes.get(subject, ())}

    def of(self, node: str) -> WorkloadProfiles | None:
        """Return what the cluster knows of the workloads of a node; None where it tells of none."""
        own = self._of_node.get(node)
        if not own:
            return None
        workloads: dict[str, dict[str, ContainerProfile]] = {}
        for subject in sorted(own):
            parts = (self._of_node[other][subject] for other in sorted(self._nodes[subject]))
            workloads.setdefault(subject.workload, {})[subject.container] = workload_profile.merged_profile(
                parts
            )
        return WorkloadProfiles(cpu_model=min(own).cpu_model, workloads=workloads)


def has_moved(old: WorkloadProfiles | None, new: WorkloadProfiles) -> bool:
    """Return whether a node should be told: something is new, or moved by more than `MOVED_SHARE`."""
    if old is None or old.cpu_model != new.cpu_model or old.workloads.keys() != new.workloads.keys():
        return True
    for workload, containers in new.workloads.items():
        before = old.workloads[workload]
        if before.keys() != containers.keys():
            return True
        if any(_is_other(before[name], own) for name, own in containers.items()):
            return True
    return False


def _is_other(old: ContainerProfile, new: ContainerProfile) -> bool:
    return _differs(old.cpi, new.cpi) or _differs(old.memory_bandwidth, new.memory_bandwidth)


def _differs(old: Moments | None, new: Moments | None) -> bool:
    if old is None or new is None:
        return old is not new
    most = MOVED_SHARE * max(abs(old.mean), 1e-12)
    # Weights count as long as a profile may be too young to be used.
    return (
        abs(new.mean - old.mean) > most
        or abs(new.deviation - old.deviation) > most
        or new.weight > 2 * old.weight
        or new.weight < old.weight / 2
    )


class WorkloadProfileController:
    """Looks once a minute at what changed meanwhile."""

    def __init__(self, shared: ManagerContext) -> None:
        self._cluster = shared.cluster
        self._metrics = shared.factory.informer(NodeMetric)
        self._slos = shared.factory.informer(NodeSLO)
        self._table = ProfileTable()
        self._metrics.add_handler(self._say, lambda _, new: self._say(new), self._forget)
        self._guard = Guard("workload profiles")

    async def run(self) -> NoReturn:
        """Work until cancelled."""
        for informer in (self._metrics, self._slos):
            await informer.synced.wait()
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self._guard.call_async(self.tell)

    async def tell(self) -> None:
        """Tell all nodes that should know something new."""
        for node in sorted(self._table.take_changed()):
            await self._tell(node)

    async def _tell(self, node: str) -> None:
        found, obj = self._table.of(node), self._slos.get(node)
        if found is None or obj is None:
            return
        extensions: Mapping[str, Any] = slo.plain_extensions(obj.spec.extensions)
        if not has_moved(workload_profile.of_node_slo(extensions), found):
            return
        patch = {"spec": {"extensions": {**extensions, PROFILES: msgspec.to_builtins(found)}}}
        try:
            await self._cluster.patch(NodeSLO, node, patch)
        except errors.NotFound:
            return
        except errors.ApiError as error:
            log.warning("workload profiles not told", extra={"node": node, "problem": str(error)})

    def _say(self, metric: NodeMetric) -> None:
        if isinstance(metric, ProfiledMetric):
            self._table.say(metric.metadata.name, metric.profiles)
        else:
            self._table.say(metric.metadata.name, workload_profile.of_pods(metric.status.pods_metric))

    def _forget(self, metric: NodeMetric) -> None:
        self._table.say(metric.metadata.name, ())
