"""One pass over one node: what the ResourceManager is told, and what is recorded on the node.

Pure. The pass has two acts in this order: send `total`, then write `allocation`. When the first fails, the second
does not happen (`when_refused`). Source: behaviour/yarn 3.4 and 6.

A lost NodeManager may still have running containers (a work-preserving restart keeps them): calling their room free
at once would let Kubernetes over-book the node. When its reports are missing, YARN is believed to use what it used.
"""

import enum
import functools
import re
from collections.abc import Iterable

import msgspec

from koordinator import clock
from koordinator.api import labels, pod_resources, quantity, resources
from koordinator.api.annotations.codec import Annotation, Payload
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.pod_labels import is_terminated
from koordinator.api.quantity import ResourceList
from koordinator.api.resource_vector import AMOUNT_MAX
from koordinator.yarn import amounts
from koordinator.yarn.amounts import BatchAmount, Rounding, YarnResource

PORT_MAX = 65_535

_PORT = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


class SyncOutcome(enum.Enum):
    """The end of a pass."""

    SYNCED = "synced"
    NO_NODE_MANAGER = "no-nm"
    BAD_NODE_ID = "bad-node-id"
    BAD_ORIGIN = "bad-origin"
    NODE_GONE = "node-gone"


class NodeId(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """A NodeManager as YARN names it."""

    host: str
    port: int


class NodeManagerReport(msgspec.Struct, frozen=True):
    """The ResourceManager's report on a NodeManager; None where it says nothing."""

    node: NodeId
    state: str = "RUNNING"
    used: YarnResource | None = None
    total: YarnResource | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's way to count (flags `--rounding`, `--subtract-kube-batch-requests`) and to share
    (`--yarn-share`, `--lend-once`)."""

    rounding: Rounding = Rounding.EXACT
    is_kube_subtracted: bool = True
    yarn_percent: int = 100
    """The most of a node's pool that YARN is offered."""
    lends_once: bool = False
    """True where an amount offered to YARN is Kubernetes' no more, used or not."""


class NodeFacts(msgspec.Struct, frozen=True):
    """The facts about one node in Kubernetes. `outcome` is SYNCED unless something is missing or unreadable, which
    `reason` names. `returns_at_s`: when services have the node back (seconds since 1970), None while it does not
    return."""

    outcome: SyncOutcome = SyncOutcome.SYNCED
    reason: str = ""
    cluster: str = ""
    node: NodeId | None = None
    pool: BatchAmount = BatchAmount()
    taken: BatchAmount = BatchAmount()
    returns_at_s: float | None = None


class SyncPlan(msgspec.Struct, frozen=True):
    """The acts of one pass; None for an act that does not happen. `total` is what the node may give out through YARN,
    `reason` is for people."""

    outcome: SyncOutcome
    total: YarnResource | None = None
    allocation: BatchAmount | None = None
    reason: str = ""


class _Origin(Payload, frozen=True, kw_only=True):
    """The origin annotation, where no resources are not the same as none named."""

    resources: ResourceList | None = None


_ORIGIN = Annotation(labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE, _Origin)


def facts(node: Node | None, manager: Pod | None, taken: BatchAmount) -> NodeFacts:
    """Return what is known of a node whose NodeManager is `manager` and whose pods request `taken` in all.

    While a tidal pool lends the node as a whole, YARN has what the NodeManager requests of the machine; from when
    that takes the node back, nothing.
    """
    if node is None:
        return NodeFacts(SyncOutcome.NODE_GONE, "the node is gone")
    if manager is None:
        return NodeFacts(SyncOutcome.NO_NODE_MANAGER, "no NodeManager pod runs on the node")
    try:
        node_id = node_id_of(manager)
    except ProtocolError as error:
        return NodeFacts(SyncOutcome.BAD_NODE_ID, str(error))
    if node_id is None:
        return NodeFacts(SyncOutcome.NO_NODE_MANAGER, "the NodeManager has no address yet")
    cluster = cluster_of(manager)
    try:
        pool = origin(node)
    except (ProtocolError, quantity.QuantityError) as error:
        return NodeFacts(SyncOutcome.BAD_ORIGIN, str(error), cluster, node_id)
    phase = node.metadata.labels.get(labels.TIDAL_PHASE)
    if phase == labels.TIDAL_TO_ONLINE:
        return NodeFacts(cluster=cluster, node=node_id, taken=taken, returns_at_s=_returns_at_s(node))
    if phase == labels.TIDAL_BATCH:
        return NodeFacts(cluster=cluster, node=node_id, pool=machine_requested(manager))
    return NodeFacts(cluster=cluster, node=node_id, pool=pool, taken=taken)


def plan(known: NodeFacts, use: "NodeManagerUse", policy: Policy) -> SyncPlan:
    """Return what to tell the ResourceManager about a node, and what to record on it."""
    used = None if use.used is None else amounts.to_batch(use.used)
    match known.outcome:
        case SyncOutcome.NODE_GONE:
            return SyncPlan(known.outcome, reason=known.reason)
        case SyncOutcome.BAD_NODE_ID if use.held is not None:
            return SyncPlan(known.outcome, reason=known.reason)
        case SyncOutcome.NO_NODE_MANAGER | SyncOutcome.BAD_NODE_ID:
            return SyncPlan(SyncOutcome.NO_NODE_MANAGER, allocation=used, reason=known.reason)
        case SyncOutcome.BAD_ORIGIN:
            return SyncPlan(known.outcome, reason=known.reason)
    taken = known.taken if policy.is_kube_subtracted else BatchAmount()
    total = amounts.to_yarn(yarn_pool(known.pool, taken, policy.yarn_percent), policy.rounding)
    return SyncPlan(SyncOutcome.SYNCED, total, used)


def when_refused(allocation: BatchAmount | None, recorded: BatchAmount) -> BatchAmount | None:
    """Return what is written when the ResourceManager did not take the total: of what is `recorded` on the node nothing
    is given back, but what YARN has taken since is still told."""
    more = recorded if allocation is None else amounts.larger(allocation, recorded)
    return None if more == recorded else more


def node_manager(pods: Iterable[Pod]) -> Pod | None:
    """Return the NodeManager among pods: Running and Ready before others, then the newest, then the first."""
    found = [pod for pod in pods if is_node_manager(pod) and not is_terminated(pod)]
    return max(found, key=lambda pod: (_is_ready(pod), pod.metadata.creation_timestamp or ""), default=None)


def is_node_manager(pod: Pod) -> bool:
    """Return whether a pod says that it is one."""
    return pod.metadata.labels.get(amounts.COMPONENT_LABEL) == amounts.NODE_MANAGER


def node_id_of(pod: Pod) -> NodeId | None:
    """Return the NodeId that a NodeManager pod announces; None while host or port are still unset.

    Raises: ProtocolError when the annotation is missing or malformed.
    """
    text = pod.metadata.annotations.get(amounts.NODE_ID_ANNOTATION)
    if text is None:
        raise ProtocolError(
            pod.key, amounts.NODE_ID_ANNOTATION, "missing; the NodeManager sets it when it starts"
        )
    found = _node_id(text)
    if found is None:
        raise ProtocolError(pod.key, amounts.NODE_ID_ANNOTATION, f"{text!r} is not host:port")
    return found if found.host and found.port else None


@functools.lru_cache(1 << 15)  # a pod's text is read again whenever its node changes
def _node_id(text: str) -> NodeId | None:
    """Return what `host:port` says; None where it is something else."""
    host, colon, port = text.partition(":")
    if not colon or _PORT.fullmatch(port) is None or not 0 <= int(port) <= PORT_MAX:
        return None
    return NodeId(host, int(port))


def cluster_of(pod: Pod) -> str:
    """Return the YARN cluster of a NodeManager pod; empty text is the default cluster, too."""
    return pod.metadata.annotations.get(amounts.CLUSTER_ID_ANNOTATION) or amounts.DEFAULT_CLUSTER


def origin(node: Node) -> BatchAmount:
    """Return the batch pool of a node before anyone took from it.

    An older manager writes no annotation: then what the node says is all there is.

    Raises: ProtocolError, QuantityError.
    """
    found = _ORIGIN.read(node.metadata.annotations, node.key)
    return _batch(node.status.allocatable if found is None or found.resources is None else found.resources)


def kube_total(node: Node) -> BatchAmount:
    """Return what a node offers batch pods; nothing where it cannot be read."""
    try:
        return _batch(node.status.allocatable)
    except quantity.QuantityError:
        return BatchAmount()


def batch_requested(pod: Pod) -> BatchAmount:
    """Batch resources that a pod holds of its node; nothing once it has ended."""
    if is_terminated(pod):
        return BatchAmount()
    requests = pod_resources.requests(pod)
    return BatchAmount(
        *(min(requests.get(name, quantity.ZERO).value, AMOUNT_MAX) for name in resources.BATCH_RESOURCES)
    )


def machine_requested(pod: Pod) -> BatchAmount:
    """Return what a pod requests of the machine itself, in the units of the batch pool."""
    requests = pod_resources.requests(pod)
    cpu, memory = (requests.get(name, quantity.ZERO) for name in (resources.CPU, resources.MEMORY))
    return BatchAmount(min(cpu.milli, AMOUNT_MAX), min(memory.value, AMOUNT_MAX))


def _returns_at_s(node: Node) -> float:
    """Return when batch work has to be off a node that returns; at once when it says nothing that can be read."""
    try:
        return clock.parse_rfc3339(node.metadata.annotations.get(labels.TIDAL_RETURN_AT, ""))
    except ValueError:
        return 0.0


def yarn_pool(pool: BatchAmount, taken: BatchAmount, percent: int) -> BatchAmount:
    """Return what YARN may have of a node: what pods leave (`amounts.view_total`), `percent` of the pool at most."""
    left = amounts.view_total(pool, taken)
    return BatchAmount(
        min(left.cpu_milli, pool.cpu_milli * percent // 100),
        min(left.memory_bytes, pool.memory_bytes * percent // 100),
    )


def _batch(listed: ResourceList) -> BatchAmount:
    wire = (listed.get(name, 0) for name in resources.BATCH_RESOURCES)
    return BatchAmount(*(min(max(quantity.value(each), 0), AMOUNT_MAX) for each in wire))


def _is_ready(pod: Pod) -> bool:
    is_running = pod.status.phase in ("", "Running")
    return is_running and not any(c.type == "Ready" and c.status != "True" for c in pod.status.conditions)


HOLD_S = 600.0
"""Default of `--nm-lost-hold`, the same as the ResourceManager's own expiry of NodeManagers."""

_KNOWN_STATES = ("RUNNING", "DECOMMISSIONING")


class HeldFigure(msgspec.Struct, frozen=True):
    """The last good figure of a NodeManager, and when it was read (seconds since 1970)."""

    used: YarnResource
    at_s: float


class NodeManagerUse(msgspec.Struct, frozen=True):
    """The figures to count with; `used` None: nothing is known, so nothing may be written."""

    used: YarnResource | None
    held: HeldFigure | None


def use_to_count(
    report: NodeManagerReport | None,
    held: HeldFigure | None,
    has_polled: bool,
    now_s: float,
    hold_s: float = HOLD_S,
    is_recovering: bool = False,
) -> NodeManagerUse:
    """Return what a NodeManager uses, from its report if it has one, else from memory for `hold_s` seconds.

    `has_polled` tells whether this cluster's reports were read at all since the operator started. While the
    ResourceManager `is_recovering` (another one leads since a moment ago) it may not know all containers yet: the
    figure only grows.
    """
    if not has_polled:
        return NodeManagerUse(held.used if held is not None else None, held)
    if report is not None and report.state in _KNOWN_STATES:
        used = report.used or YarnResource()
        if is_recovering and held is not None:
            used = amounts.larger_yarn(used, held.used)
        return NodeManagerUse(used, HeldFigure(used, now_s))
    if held is not None and now_s - held.at_s < hold_s:
        return NodeManagerUse(held.used, held)
    return NodeManagerUse(YarnResource(), None)


def over_commit_timeout_ms(known: NodeFacts, usual_ms: int, now_s: float) -> int:
    """Return how long containers beyond the total may run, below 0: for ever. A node that returns is free by then."""
    if known.returns_at_s is None:
        return usual_ms
    left_ms = max(round((known.returns_at_s - now_s) * 1000), 0)
    return left_ms if usual_ms < 0 else min(left_ms, usual_ms)


def may_raise_total(report: NodeManagerReport | None) -> bool:
    """Return whether a NodeManager may be given more than it has: not one that is leaving."""
    return report is None or report.state != "DECOMMISSIONING"
