"""The lender's nodes as arrays: what they have, what others request, what is lent, how busy they are.

One row per node; each event changes the row of its node only.
"""

import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import duration, labels, pod_labels, quantity, resources, tolerations
from koordinator.api.core import Node, Pod
from koordinator.api.label_selector import Predicate
from koordinator.api.meta import is_condition_true
from koordinator.api.node_metric import NodeMetric, NodeMetricInfo, NodeMetricStatus
from koordinator.api.pod_resources import wire_requests
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import RawQuantity
from koordinator.api.resource_vector import I64
from koordinator.virtual_node import objects, offer
from koordinator.virtual_node.objects import ENDED, Lending
from koordinator.virtual_node.offer import F64, RESOURCES, LendingPolicy, Mask

SAMPLES = 64
"""Reports that are remembered of a node; a report a minute fills ten minutes with ten."""
_ROWS = 16
_WIDTH = len(RESOURCES)


class LentPod(msgspec.Struct, frozen=True):
    """A borrower's pod that holds room in the lender: its node's row, its request (4,), since when (seconds since
    1970), and whether it is of the lowest class."""

    uid: str
    row: int
    request: I64
    since_s: float
    is_free: bool = False
    namespace: str = ""
    """Namespace of the borrower's pod."""


class _Held(msgspec.Struct, frozen=True):
    """The room that a pod which is none of ours takes of its node."""

    row: int
    request: I64
    online_milli: int


class LenderTable:
    """Fed by informers; asked by decisions. Times are seconds since 1970."""

    def __init__(
        self, lending: Lending, policy: LendingPolicy, *, selects: Predicate, group_label: str = ""
    ) -> None:
        """`selects` tells by its labels whether a node may be lent; `group_label` puts nodes of one value together."""
        self.policy = policy
        self.names: list[str] = []
        self.nodes: dict[str, Node] = {}
        self.waiting: dict[str, Pod] = {}
        """Online pods without a place, by uid."""
        self.lent_pods: dict[str, LentPod] = {}
        """By the uid of the borrower's pod."""
        self.on_need: Callable[[], None] = lambda: None
        """Called when room may have to be given back, or what is lent has become less."""
        self._lending = lending
        self._selects = selects
        self._group_label = group_label
        self._rows: dict[str, int] = {}
        self._held: dict[str, _Held] = {}
        self._lent_by_name: dict[str, str] = {}
        self._claims: dict[str, _Held] = {}
        self.groups: dict[str, int] = {}
        self._make(_ROWS)

    def _make(self, size: int) -> None:
        self._present = np.zeros(size, np.bool_)
        self._usable = np.zeros(size, np.bool_)
        self._selected = np.zeros(size, np.bool_)
        self._group = np.full(size, -1, np.int64)
        self._allocatable = np.zeros((size, _WIDTH), np.int64)
        self._others = np.zeros((size, _WIDTH), np.int64)
        self._lent = np.zeros((size, _WIDTH), np.int64)
        self._online_milli = np.zeros(size, np.int64)
        self._samples = np.full((size, SAMPLES), np.nan)
        self._sampled_s = np.full((size, SAMPLES), -math.inf)
        self._reported_s = np.full(size, -math.inf)
        self._quiet_since_s = np.full(size, math.inf)
        self._believed_s = np.full(size, math.inf)

    # Reading. Shapes are (nodes,) or (nodes, 4).

    def __len__(self) -> int:
        return len(self.names)

    @property
    def allocatable(self) -> I64:
        """Return what nodes have, (nodes, 4)."""
        return self._allocatable[: len(self)]

    @property
    def others(self) -> I64:
        """Return what all but borrowed pods request, and what is kept for online pods without a place, (nodes, 4)."""
        return self._others[: len(self)]

    @property
    def lent(self) -> I64:
        """Return what borrowed pods request, (nodes, 4)."""
        return self._lent[: len(self)]

    @property
    def selected(self) -> Mask:
        """Return which nodes exist and may be lent, (nodes,)."""
        return self._selected[: len(self)]

    @property
    def present(self) -> Mask:
        """Return which nodes exist, (nodes,)."""
        return self._present[: len(self)]

    def pods_by_row(self) -> dict[int, list[LentPod]]:
        """Return borrowed pods by the row of their node."""
        found: dict[int, list[LentPod]] = {}
        for pod in self.lent_pods.values():
            found.setdefault(pod.row, []).append(pod)
        return found

    def row(self, node: str) -> int:
        """Return the row of a node, a new one at first sight."""
        found = self._rows.get(node)
        if found is None:
            found = self._rows[node] = len(self.names)
            self.names.append(node)
            if found == self._usable.shape[0]:
                self._grow()
        return found

    def usage(self, now_s: float) -> F64:
        """Return the 95th percentile of the milli-cores that others than borrowed pods used of late, (nodes,); NaN
        where nobody reports."""
        size = len(self)
        # The last report counts until the next one, however short the window.
        since_s = np.minimum(now_s - self.policy.idle_for_s, self._reported_s[:size] - 1.0)
        recent = self._sampled_s[:size] > since_s[:, None]
        is_reported = self._reported_s[:size] > now_s - self.policy.report_s_max
        return offer.percentile(np.where(recent & is_reported[:, None], self._samples[:size], np.nan))

    def idle(self, now_s: float) -> Mask:
        """Return which nodes have been quiet for long enough, (nodes,); keeps since when they are."""
        size = len(self)
        since, believed = self._quiet_since_s[:size], self._believed_s[:size]
        usage = self.usage(now_s)
        quiet = offer.is_quiet(
            self._usable[:size], self.allocatable, self._online_milli[:size], usage, self.policy
        )
        since[:] = np.where(quiet, np.minimum(np.minimum(since, now_s), believed), math.inf)
        believed[~np.isnan(usage)] = math.inf  # only once, at the first report
        return quiet & (since <= now_s - self.policy.idle_for_s)

    def room(self, now_s: float) -> I64:
        """Return what can still be lent on each node, (nodes, 4)."""
        free = offer.free(self.allocatable, self.others, self.policy)
        return offer.room(self.idle(now_s), free, self.lent)

    def of_group(self, group: str) -> Mask:
        """Return the nodes of a group, (nodes,)."""
        found = self.groups.get(group)
        if found is None:
            return np.zeros(len(self), np.bool_)
        mine: Mask = self._group[: len(self)] == found
        return mine

    # Nodes

    def node_changed(self, node: Node) -> None:
        """Note a node as it is now. Raises: QuantityError."""
        row = self.row(node.metadata.name)
        self._allocatable[row] = offer.vector(node.status.allocatable)
        ready = is_condition_true(node.status.conditions, "Ready")
        is_virtual = labels.VIRTUAL_NODE_SOURCE in node.metadata.labels  # what is borrowed is not lent on
        self._selected[row] = self._selects(node.metadata.labels) and not is_virtual
        group = node.metadata.labels.get(self._group_label, "")
        if self._group_label and not group:
            self._selected[row] = False
        self._group[row] = self.groups.setdefault(group, len(self.groups)) if self._selected[row] else -1
        # Borrowed pods tolerate nothing.
        is_open = not node.spec.unschedulable and not tolerations.keeps_out((), node.spec.taints)
        self._usable[row] = ready and is_open and self._selected[row]
        self._present[row] = True
        self.nodes[node.metadata.name] = node

    def node_gone(self, node: Node) -> None:
        """Note that a node is no more: a successor of its name begins anew."""
        row = self.row(node.metadata.name)
        self._present[row] = self._usable[row] = self._selected[row] = False
        self._group[row] = -1
        self._allocatable[row] = 0
        self._samples[row] = np.nan
        self._reported_s[row] = -math.inf
        self._quiet_since_s[row] = self._believed_s[row] = math.inf
        self.nodes.pop(node.metadata.name, None)

    def withhold(self, row: int) -> None:
        """Offer a node no more until it has been quiet for long enough, from now on."""
        self._quiet_since_s[row] = self._believed_s[row] = math.inf

    # Pods

    def pod_changed(self, pod: Pod) -> None:
        """Note a pod of the lender as it is now. Raises: QuantityError."""
        meta = pod.metadata
        if self._is_ours(pod):
            self._lent_pod_changed(pod)
            return
        self._release(meta.uid)
        self.waiting.pop(meta.uid, None)
        if pod.status.phase in ENDED:
            self._unclaim(meta.uid)
            return
        online = objects.is_online(pod)
        if pod.spec.node_name:
            self._unclaim(meta.uid)
            request = request_of(pod)
            held = _Held(self.row(pod.spec.node_name), request, int(request[offer.CPU]) if online else 0)
            self._held[meta.uid] = held
            self._add(held, 1)
        elif online and pod_labels.is_unschedulable(pod) and meta.deletion_timestamp is None:
            self.waiting[meta.uid] = pod
            self.on_need()

    def pod_gone(self, pod: Pod) -> None:
        """Note that a pod of the lender is no more."""
        if self._is_ours(pod):
            self.give_back(objects.borrowed_uid(pod))
            self._lent_by_name.pop(pod.metadata.name, None)
            return
        self._release(pod.metadata.uid)
        self._unclaim(pod.metadata.uid)
        self.waiting.pop(pod.metadata.uid, None)

    def lend(self, pod: LentPod, name: str) -> None:
        """Let a borrowed pod, `name` in the lender, hold its request from now on."""
        self.give_back(pod.uid)
        self.lent_pods[pod.uid] = pod
        self._lent_by_name[name] = pod.uid
        self._lent[pod.row] += pod.request

    def give_back(self, uid: str) -> None:
        """Let a borrowed pod hold nothing any more."""
        pod = self.lent_pods.pop(uid, None)
        if pod is not None:
            self._lent[pod.row] -= pod.request
            self.on_need()

    def claim(self, uid: str, row: int, request: I64) -> None:
        """Keep room (4,) of a node for an online pod without a place, until it has one or ends."""
        self._unclaim(uid)
        held = self._claims[uid] = _Held(row, request, 0)
        self._add(held, 1)

    def claimed_row(self, uid: str) -> int:
        """Return the row on which room is kept for an online pod, `NOWHERE` without."""
        held = self._claims.get(uid)
        return offer.NOWHERE if held is None else held.row

    # Reports

    def reported(self, metric: NodeMetric) -> None:
        """Note what a node says it uses. Raises: QuantityError, ValueError for figures and times that are none."""
        status = metric.status
        if status.node_metric is None or not status.update_time:
            return
        row = self.row(metric.metadata.name)
        at_s = clock.parse_rfc3339(status.update_time)
        if at_s <= self._reported_s[row]:
            return
        used = quantity.milli(status.node_metric.node_usage.resources.get(resources.CPU, 0))
        lent = self._used_by_lent(status)
        if self._reported_s[row] == -math.inf:
            self._believe(row, status.node_metric, at_s)
        slot = int(self._sampled_s[row].argmin())
        self._sampled_s[row, slot] = at_s
        self._samples[row, slot] = max(used - lent, 0)
        self._reported_s[row] = at_s
        if (used - lent) * 100 > self._allocatable[row, offer.CPU] * self.policy.reclaim_usage_percent:
            self.on_need()

    def _believe(self, row: int, said: NodeMetricInfo, at_s: float) -> None:
        """Take from a node's first report how it was before we looked: the percentile of a window that is long enough,
        or that borrowed pods run there, which nobody would have put on a busy node."""
        window_s = self.policy.idle_for_s
        limit_milli = self._allocatable[row, offer.CPU] * self.policy.idle_usage_percent / 100
        was_quiet = self._lent[row].any() or any(
            duration.parse(each.duration) >= window_s
            and quantity.milli(each.usage["p95"].resources.get(resources.CPU, 0)) < limit_milli
            for each in said.aggregated_node_usages
            if "p95" in each.usage and each.duration
        )
        if was_quiet:
            self._believed_s[row] = at_s - window_s

    def _used_by_lent(self, status: NodeMetricStatus) -> int:
        """Milli-cores that borrowed pods used, as the same report says."""
        return sum(
            quantity.milli(each.pod_usage.resources.get(resources.CPU, 0))
            for each in status.pods_metric
            if each.namespace == self._lending.namespace and each.name in self._lent_by_name
        )

    # Books

    def _is_ours(self, pod: Pod) -> bool:
        meta = pod.metadata
        return (
            meta.namespace == self._lending.namespace
            and meta.labels.get(labels.VIRTUAL_NODE_BORROWER) == self._lending.borrower
        )

    def _lent_pod_changed(self, pod: Pod) -> None:
        uid = objects.borrowed_uid(pod)
        node = pod.spec.node_name or pod.metadata.annotations.get(labels.LENT_ON, "")
        if pod.status.phase in ENDED or not node:
            self.give_back(uid)
            return
        since = pod.status.start_time or pod.metadata.creation_timestamp
        since_s = clock.parse_rfc3339(since) if since else 0.0
        is_free = pod.spec.priority_class_name == PriorityClass.FREE
        namespace = pod.metadata.annotations.get(labels.BORROWED_POD, "").partition("/")[0]
        known = LentPod(uid, self.row(node), request_of(pod), since_s, is_free, namespace)
        self.lend(known, pod.metadata.name)

    def _release(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            self._add(held, -1)

    def _unclaim(self, uid: str) -> None:
        held = self._claims.pop(uid, None)
        if held is not None:
            self._add(held, -1)

    def _add(self, held: _Held, sign: int) -> None:
        self._others[held.row] += sign * held.request
        self._online_milli[held.row] += sign * held.online_milli

    def _grow(self) -> None:
        before = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        size = self._usable.shape[0]
        self._make(2 * size)
        for name, value in before.items():
            getattr(self, name)[:size] = value


def request_vector(amounts: Mapping[str, RawQuantity]) -> I64:
    """Return what a pod that requests these amounts takes of a node, itself included, (4,). Raises: QuantityError."""
    found = offer.vector(amounts)
    found[offer.PODS] = 1
    return found


def request_of(pod: Pod) -> I64:
    """Return what a pod takes of a node, (4,). Raises: QuantityError."""
    return request_vector(wire_requests(pod))
