"""A pod as the scheduler works with it: the view plus what is computed from it once, at the edge; and the pods for
which preemption made room. Source: behaviour/scheduler B7 (filtering with nominated pods) and C3."""

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping

import msgspec

from koordinator.api import gang_labels, pod_resources, resource_vector, resources
from koordinator.api.core import Container, Pod, PodSpec
from koordinator.api.errors import ProtocolError
from koordinator.api.pod_labels import is_terminated
from koordinator.api.pod_resize import counted_spec
from koordinator.api.quantity import QuantityError, RawQuantity
from koordinator.api.resource_vector import ResourceRegistry

POD_AMOUNT_MAX = 1 << 52
"""Requests saturate here (4 PiB of memory), so that a node's sum of thousands stays within 64 bits."""

NONZERO_DEFAULTS: dict[str, RawQuantity] = {resources.CPU: "100m", resources.MEMORY: "200Mi"}
"""Amounts that a container counts for in scores when its requests lack the key (an explicit 0 stays 0)."""

HostPort = tuple[str, str, int]
"""(host IP, protocol, port); the IP 0.0.0.0 stands for all."""


class PodInfo(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A pod with its requests as integers.

    `requests` are (column, amount) of each resource requested with more than 0, in the units of `api.resource_vector`;
    `nonzero_amounts` are milli-cores and bytes with `NONZERO_DEFAULTS` applied.
    """

    pod: Pod
    key: str
    uid: str
    priority: int
    requests: tuple[tuple[int, int], ...]
    nonzero_amounts: tuple[int, ...]
    request_key: Hashable
    """Equal for pods that request the same."""
    host_ports: tuple[HostPort, ...]
    labelled: Hashable
    """Equal for pods of a namespace with equal labels: selectors do not tell them apart."""

    @classmethod
    def of(cls, pod: Pod, registry: ResourceRegistry) -> "PodInfo":
        """Raises: ProtocolError when an amount is no quantity."""
        meta = pod.metadata
        try:
            spec = counted_spec(pod)
            requested = _requests(spec, registry)
            nonzero = _nonzero(spec, requested)
            requests = tuple(requested.items())
        except QuantityError as error:
            raise ProtocolError(f"Pod {pod.key}", "resources", str(error)) from error
        return cls(
            pod=pod,
            key=pod.key,
            uid=meta.uid or pod.key,
            priority=pod.spec.priority or 0,
            requests=requests,
            nonzero_amounts=nonzero,
            request_key=(requests, nonzero),
            host_ports=_host_ports(pod),
            labelled=_labelled(pod),
        )

    def updated(self, pod: Pod, registry: ResourceRegistry) -> "PodInfo":
        """Return the same pod in a new state. Its amounts are worked out anew only when containers changed or are
        resized; else its `request_key` is the same object. Raises: ProtocolError when an amount is no quantity."""
        try:
            is_same = self.uid == (pod.metadata.uid or pod.key) and pod_resources.have_same_amounts(
                self.pod, pod
            )
        except QuantityError as error:
            raise ProtocolError(f"Pod {pod.key}", "resources", str(error)) from error
        if not is_same:
            return PodInfo.of(pod, registry)
        is_labelled_alike = pod.metadata.labels == self.pod.metadata.labels
        return msgspec.structs.replace(
            self,
            pod=pod,
            priority=pod.spec.priority or 0,
            labelled=self.labelled if is_labelled_alike else _labelled(pod),
        )

    def holding(self, amounts: Mapping[int, int], nonzero: tuple[int, ...] | None = None) -> "PodInfo":
        """Return the same pod holding these amounts instead, by column, in the units of `api.resource_vector`; with
        `nonzero` instead of its own where that is given."""
        requests = tuple((column, amount) for column, amount in amounts.items() if amount > 0)
        if nonzero is None:
            nonzero = self.nonzero_amounts
        return msgspec.structs.replace(
            self, nonzero_amounts=nonzero, requests=requests, request_key=(requests, nonzero)
        )

    def asks_like(self, other: "PodInfo") -> bool:
        """Return whether both hold the same amounts of the same resources."""
        return self.request_key == other.request_key

    @property
    def node_name(self) -> str:
        return self.pod.spec.node_name

    @property
    def is_terminal(self) -> bool:
        """Succeeded or Failed: it holds no resources any more."""
        return is_terminated(self.pod)


# What several plugins look at in pods: see `Plugin.keyed_by`.

KeyPart = Callable[[PodInfo], Hashable]
NODE_NAME: KeyPart = operator.attrgetter("node_name")
HOST_PORTS: KeyPart = operator.attrgetter("host_ports")
REQUESTS: KeyPart = operator.attrgetter("request_key")


def tolerations(pod: PodInfo) -> Hashable:
    """Return the taints that the pod tolerates."""
    return tuple(pod.pod.spec.tolerations)


def images(pod: PodInfo) -> Hashable:
    """Return the images of its containers."""
    spec = pod.pod.spec
    return tuple([each.image for each in (*spec.init_containers, *spec.containers)])


def node_selection(pod: PodInfo) -> Hashable:
    """Return the node selector and the node affinity."""
    spec = pod.pod.spec
    selector = tuple(sorted(spec.node_selector.items())) if spec.node_selector else ()
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return selector, None if affinity is None else msgspec.json.encode(affinity)


def annotations(*names: str) -> KeyPart:
    """Return what tells the texts of these annotations; pods without any are like those that have others."""
    absent = (None,) * len(names)

    def texts(pod: PodInfo) -> Hashable:
        own = pod.pod.metadata.annotations
        return tuple([own.get(name) for name in names]) if own else absent

    return texts


def _labelled(pod: Pod) -> Hashable:
    return pod.metadata.namespace, frozenset(pod.metadata.labels.items())


def _requests(spec: PodSpec, registry: ResourceRegistry) -> dict[int, int]:
    """Column → amount. `pods` is counted apart: it is no resource that a container can ask for."""
    requested: dict[int, int] = {}
    for name, raw in pod_resources.wire_sum(spec).items():
        number = resource_vector.amount(name, raw)
        if number > 0 and name != resources.PODS:
            requested[registry.column(name)] = min(number, POD_AMOUNT_MAX)
    return requested


def _nonzero(spec: PodSpec, requested: dict[int, int]) -> tuple[int, ...]:
    defaults = _defaults(spec)
    if any(
        not c.resources.requests.keys() >= defaults.keys() for c in (*spec.containers, *spec.init_containers)
    ):
        filled = msgspec.structs.replace(
            spec,
            containers=[_filled(c, defaults) for c in spec.containers],
            init_containers=[_filled(c, defaults) for c in spec.init_containers],
        )
        amounts = pod_resources.wire_sum(filled)
        numbers = [resource_vector.amount(name, amounts.get(name, 0)) for name in NONZERO_DEFAULTS]
    else:
        columns = (resource_vector.CPU_COLUMN, resource_vector.MEMORY_COLUMN)
        numbers = [requested.get(column, 0) for column in columns]
    return tuple([max(0, min(number, POD_AMOUNT_MAX)) for number in numbers])


def _defaults(spec: PodSpec) -> dict[str, RawQuantity]:
    """Return what stands in for missing requests: where the pod as a whole requests something, only what nobody
    names."""
    whole = spec.resources
    if whole is None or not any(map(pod_resources.is_pod_level, whole.requests)):
        return NONZERO_DEFAULTS
    named = pod_resources.wire_sum(spec)
    return {name: amount for name, amount in NONZERO_DEFAULTS.items() if name not in named}


def _filled(container: Container, defaults: dict[str, RawQuantity]) -> Container:
    requests = defaults | container.resources.requests
    return msgspec.structs.replace(
        container, resources=msgspec.structs.replace(container.resources, requests=requests)
    )


def _host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Ports on the node that the pod holds while it runs: containers and sidecars."""
    return tuple(
        (port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port)
        for container in pod_resources.running_together(pod.spec)
        for port in container.ports
        if port.host_port > 0
    )


class Nominations:
    """Nominated pods by node, in order of nomination: until they are placed, others must leave that room to them."""

    def __init__(self) -> None:
        self._node_of: dict[str, str] = {}
        self._pods: dict[str, dict[str, PodInfo]] = {}
        self._of_others: set[str] = set()

    def __len__(self) -> int:
        return len(self._node_of)

    @property
    def nodes(self) -> Iterable[str]:
        return self._pods.keys()

    def node_of(self, uid: str) -> str:
        """Return the node of a nominated pod, "" when it has none."""
        return self._node_of.get(uid, "")

    def node_for(self, pod: PodInfo) -> str:
        """Return the same, or what the pod's status says where nobody here knows of a nomination."""
        return self._node_of.get(pod.uid) or pod.pod.status.nominated_node_name

    def set(self, pod: PodInfo, node_name: str, *, by_others: bool = False) -> None:
        """Nominate, or with "" take the nomination back. `by_others`: another scheduler did."""
        self.remove(pod.uid)
        if node_name:
            self._node_of[pod.uid] = node_name
            self._pods.setdefault(node_name, {})[pod.uid] = pod
            if by_others:
                self._of_others.add(pod.uid)

    def refresh(self, pod: PodInfo) -> None:
        """Note that a nominated pod changed: from now on it counts as it is."""
        node_name = self._node_of.get(pod.uid)
        if node_name is not None:
            self._pods[node_name][pod.uid] = pod

    def remove(self, uid: str) -> PodInfo | None:
        """Drop the nomination of a pod that is placed or gone; return it, None when there was none."""
        self._of_others.discard(uid)
        node_name = self._node_of.pop(uid, "")
        if not node_name:
            return None
        pods = self._pods[node_name]
        found = pods.pop(uid)
        if not pods:
            del self._pods[node_name]
        return found

    def on(self, node_name: str) -> tuple[PodInfo, ...]:
        return tuple(self._pods.get(node_name, {}).values())

    def that_count(self, node_name: str, pod: PodInfo) -> tuple[PodInfo, ...]:
        """Return pods nominated to the node that `pod` has to respect: at least as important (those of other schedulers
        more so), not itself, and not of the same job, whose members preempt together."""
        there = self.on(node_name)
        job = job_of(pod.pod) if there else ()
        return tuple(
            other
            for other in there
            if other.uid != pod.uid
            and other.priority >= pod.priority + (other.uid in self._of_others)
            and not (job and job == job_of(other.pod))
        )


def job_of(pod: Pod) -> tuple[str, ...]:
    """Return the gangs that are placed together with the pod's, its own among them; empty when it has none."""
    meta = pod.metadata
    name = gang_labels.gang_name(meta.labels, meta.annotations)
    if not name:
        return ()
    own = f"{meta.namespace}/{name}"
    try:
        groups = gang_labels.groups(meta.annotations)
    except ProtocolError:
        groups = []
    return tuple(sorted({*groups, own}))
