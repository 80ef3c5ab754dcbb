"""FragmentationAware: evicts the pod whose removal evens out a node best. Pure. Source: behaviour/descheduler 10."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import pod_resources, quantity, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.label_selector import compile_selector
from koordinator.descheduler import node_fit, pod_filter
from koordinator.descheduler.config import API_VERSION, node_plugins
from koordinator.descheduler.config.node_plugins import FragmentationAwareArgs
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.node_fit import NodeFree
from koordinator.descheduler.plugin import BalancePlugin, EvictAction, Evictions, Handle

Floats = npt.NDArray[np.float64]


class Gain(msgspec.Struct, frozen=True):
    """The gain from evicting a pod: imbalance of its node before and after."""

    pod: Pod
    before: float
    after: float

    @property
    def gain(self) -> float:
        return self.before - self.after


def imbalance(used: Floats, allocatable: Floats) -> Floats:
    """Population standard deviation of the used parts; 0 where nothing can be used.

    `used`: (..., resources); `allocatable`: (resources,), those that are not above 0 are left out.
    """
    known = allocatable > 0
    if not known.any():
        return np.zeros(used.shape[:-1], np.float64)
    return np.asarray((used[..., known] / allocatable[known]).std(axis=-1), np.float64)


class FragmentationAware(BalancePlugin):
    """The plugin. Raises: ProtocolError for selectors."""

    name = "FragmentationAware"
    args = FragmentationAwareArgs
    api_version = API_VERSION
    complete = staticmethod(node_plugins.complete_fragmentation_aware)
    check_args = staticmethod(node_plugins.check_fragmentation_aware)

    def __init__(self, args: FragmentationAwareArgs, handle: Handle) -> None:
        self._args = args
        self._takes_part = compile_selector(args.node_selector or LabelSelector())
        self._may_evict = pod_filter.compose(args.evictable_namespaces, args.pod_selectors, handle.may_evict)
        self._may_evict_now = handle.may_evict_now

    def balance(self, seen: Observation) -> Evictions[list[EvictAction]]:
        """One cycle, at most one pod per node; gives what was evicted (in a dry run: would have been)."""
        evicted: list[EvictAction] = []
        if self._args.paused:
            return evicted
        candidates = [node for node in seen.nodes if self._takes_part(node.metadata.labels)]
        rooms = [node_fit.room_of(node, seen.pods_of.get(node.metadata.name, ())) for node in candidates]
        for room in rooms:
            best = self.best(room, rooms)
            if best is None or not self._may_evict_now(best.pod):
                continue
            wanted = EvictAction(
                best.pod,
                f"fragmentation reduction: stdBefore={best.before:.4f} stdAfter={best.after:.4f}"
                f" gain={best.gain:.4f}",
            )
            if self._args.dry_run or (yield wanted):
                evicted.append(wanted)
        return evicted

    def best(self, room: NodeFree, rooms: Sequence[NodeFree]) -> Gain | None:
        """Return the pod of the node whose removal helps most; None if the node is fine or no pod helps enough."""
        if not room.pods:
            return None
        names = self._args.resources
        allocatable = room.node.status.allocatable
        capacity = np.array([quantity.of(allocatable.get(name)).milli for name in names], np.float64)
        requests = np.array([_requests(pod, names) for pod in room.pods], np.float64)
        used = requests.sum(axis=0)
        before = float(imbalance(used, capacity))
        if before <= self._args.imbalance_threshold:
            return None
        after = imbalance(used - requests, capacity)
        best: Gain | None = None
        for pod, left in zip(room.pods, after.tolist(), strict=True):
            found = Gain(pod, before, left)
            if found.gain <= self._args.min_improvement_threshold or (best and found.gain <= best.gain):
                continue
            if self._may_evict(pod) and (not self._args.node_fit or node_fit.fits_any_other(pod, rooms)):
                best = found
        return best


def _requests(pod: Pod, names: Sequence[str]) -> list[int]:
    """Thousandths per resource; a pod takes one of "pods"."""
    amounts = pod_resources.requests(pod)
    return [1000 if name == resources.PODS else amounts.get(name, quantity.ZERO).milli for name in names]
