"""Find which pods are behind a Service, under which addresses and ports; plan its Endpoints object and EndpointSlices,
and the least writes that make them so. Pure.

Sources: k8s.io/endpointslice and the endpoints controller of kube-controller-manager, and how that packs subsets.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from koordinator.api import pod_resources
from koordinator.api.core import Pod, Service, ServicePort
from koordinator.api.groups import HEADLESS, MANAGED_BY, SERVICE_NAME, EndpointSlice
from koordinator.api.meta import find_condition
from koordinator.api.pod_labels import is_terminated
from koordinator.local.controllers import pod_health

Json = dict[str, Any]


ADDRESSES_MAX = 1_000
"""Addresses of one object; what is beyond is left to the slices."""
ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_CONTROLLER = "endpoint-controller"
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
TRUNCATED = "truncated"


def endpoints_labels(service: Service) -> dict[str, str]:
    """Return the labels of a Service's Endpoints."""
    reserved = {ENDPOINTS_MANAGED_BY: ENDPOINTS_CONTROLLER}
    return labels(service, reserved, is_headless(service))


def subsets_of(service: Service, pods: Iterable[Pod]) -> tuple[list[Json], bool]:
    """Return the subsets, in a steady order, and whether some addresses were left out for being too many.

    Ports that the same pods serve share a subset.
    """
    family = families(service)[0]
    even_unready = service.spec.publish_not_ready_addresses
    by_uid: dict[str, tuple[Json, bool]] = {}
    by_port: dict[bytes, tuple[Json | None, list[str]]] = {}
    for pod in pods:
        own = addresses(pod, family)
        if not own or not is_candidate(pod, with_terminating=even_unready):
            continue
        uid = pod.metadata.uid
        by_uid[uid] = _address(pod, service, own[0]), even_unready or pod_health.is_ready(pod)
        if not service.spec.ports and service.spec.cluster_ip == HEADLESS_IP:
            by_port.setdefault(b"", (None, []))[1].append(uid)
        for port in ports(service, pod):
            key = msgspec.json.encode(port, order="sorted")
            by_port.setdefault(key, (port, []))[1].append(uid)
    subsets: list[Json] = []
    for uids, shared in _same_pods(by_port).items():
        subset: Json = {}
        for field, is_ready in (("addresses", True), ("notReadyAddresses", False)):
            some = [by_uid[uid][0] for uid in uids if by_uid[uid][1] == is_ready]
            if some:
                subset[field] = sorted(some, key=lambda one: (one["ip"], one["targetRef"]["uid"]))
        if shared:
            subset["ports"] = sorted(shared, key=lambda port: (port.get("name", ""), port["port"]))
        subsets.append(subset)
    subsets.sort(key=lambda subset: msgspec.json.encode(subset, order="sorted"))
    return _cut(subsets)


def _address(pod: Pod, service: Service, ip: str) -> Json:
    address: Json = {"ip": ip, "nodeName": pod.spec.node_name, "targetRef": target(pod)}
    name = hostname(pod, service)
    return address | {"hostname": name} if name else address


def _same_pods(by_port: dict[bytes, tuple[Json | None, list[str]]]) -> dict[tuple[str, ...], list[Json]]:
    """Ports by the pods that serve them."""
    found: dict[tuple[str, ...], list[Json]] = {}
    for port, uids in by_port.values():
        # Endpoints leave out an empty name, slices have it.
        found.setdefault(tuple(uids), []).extend([_without_empty_name(port)] if port is not None else [])
    return found


def _without_empty_name(port: Json) -> Json:
    return port if port["name"] else {key: value for key, value in port.items() if key != "name"}


def _cut(subsets: list[Json]) -> tuple[list[Json], bool]:
    """At most `ADDRESSES_MAX` addresses, ready ones first, shared out to the subsets by their sizes."""
    counts = {
        field: sum(len(subset.get(field, ())) for subset in subsets)
        for field in ("addresses", "notReadyAddresses")
    }
    ready = counts["addresses"]
    if sum(counts.values()) <= ADDRESSES_MAX:
        return subsets, False
    field = "addresses" if ready > ADDRESSES_MAX else "notReadyAddresses"
    room = left = ADDRESSES_MAX if ready > ADDRESSES_MAX else ADDRESSES_MAX - ready
    cut: list[Json] = []
    for subset in subsets:
        all_of_them = subset.get(field, [])
        share = min(math.ceil(len(all_of_them) / counts[field] * room), left)
        kept = {**subset, field: all_of_them[:share]}
        if field == "addresses":
            kept.pop("notReadyAddresses", None)
        left -= len(kept[field])
        cut.append({name: value for name, value in kept.items() if value})
    return cut, True


IPV4, IPV6 = "IPv4", "IPv6"
HEADLESS_IP = "None"


def has_endpoints(service: Service) -> bool:
    """Return whether addresses of pods are published for a Service at all; without a selector, others do it."""
    return bool(service.spec.selector) and service.spec.type != "ExternalName"


def is_headless(service: Service) -> bool:
    return service.spec.cluster_ip in ("", HEADLESS_IP)


def families(service: Service) -> list[str]:
    """Return the families of addresses that a Service has, the first one first."""
    wanted = [family for family in service.spec.ip_families if family in (IPV4, IPV6)]
    if wanted:
        return wanted
    if is_headless(service):
        return [IPV4, IPV6]
    return [IPV6 if ":" in service.spec.cluster_ip else IPV4]


def is_candidate(pod: Pod, *, with_terminating: bool) -> bool:
    """Return whether a pod is there to be reached: it has an address and has not ended."""
    if is_terminated(pod) or not (pod.status.pod_ip or pod.status.pod_ips):
        return False
    return with_terminating or pod.metadata.deletion_timestamp is None


def addresses(pod: Pod, family: str) -> list[str]:
    """Return the pod's addresses of a family."""
    return [one.ip for one in pod.status.pod_ips if one.ip and (":" in one.ip) == (family == IPV6)]


def hostname(pod: Pod, service: Service) -> str:
    """Return the name under which the Service makes the pod known; empty without one."""
    return pod.spec.hostname if pod.spec.subdomain == service.metadata.name else ""


def target(pod: Pod) -> Json:
    """Return the reference from an address to its pod."""
    meta = pod.metadata
    return {"kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}


def ports(service: Service, pod: Pod) -> list[Json]:
    """Return the Service's ports as this pod serves them; a port whose name the pod does not know is left out."""
    found: list[Json] = []
    for wanted in service.spec.ports:
        number = _number(pod, wanted)
        if number is not None:
            port: Json = {"name": wanted.name, "port": number, "protocol": wanted.protocol or "TCP"}
            if wanted.app_protocol is not None:
                port["appProtocol"] = wanted.app_protocol
            found.append(port)
    return found


def differ_per_pod(service: Service) -> bool:
    """Return whether `ports` depends on the pod."""
    return any(isinstance(port.target_port, str) for port in service.spec.ports)


def _number(pod: Pod, wanted: ServicePort) -> int | None:
    if isinstance(wanted.target_port, int):
        return wanted.target_port
    protocol = wanted.protocol or "TCP"
    for container in pod_resources.running_together(pod.spec):
        for port in container.ports:
            if port.name == wanted.target_port and (port.protocol or "TCP") == protocol:
                return port.container_port
    return None


def labels(service: Service, reserved: Json, is_headless: bool) -> dict[str, str]:
    """Return the labels of what is published for a Service: its own, and those that are `reserved` for us."""
    own = {key: value for key, value in service.metadata.labels.items() if key not in (HEADLESS, *reserved)}
    return own | ({HEADLESS: ""} if is_headless else {}) | reserved


def matters(old: Pod | None, new: Pod | None) -> bool:
    """Return whether a change of a selected pod may change what is published."""
    if old is None or new is None:
        return True
    return (
        old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        or pod_health.is_ready(old) != pod_health.is_ready(new)
        or old.status.pod_ips != new.status.pod_ips
        or (old.status.phase != new.status.phase and not pod_health.is_active(new))
        or (old.spec.hostname, old.spec.subdomain) != (new.spec.hostname, new.spec.subdomain)
    )


class TriggerTimes:
    """The times when the causes of a change of the endpoints happened: the annotation that latency is measured by.

    The first look at a Service gives its creation; later ones the earliest of the times that are new.
    """

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, str]] = {}

    def of(self, service: Service, pods: Sequence[Pod]) -> str:
        """Return the time as RFC 3339 text, empty when no change is known."""
        meta = service.metadata
        before = self._seen.get(meta.uid)
        now = {pod.metadata.name: since for pod in pods if (since := _ready_changed(pod))}
        self._seen[meta.uid] = now
        if before is None:
            return meta.creation_timestamp or ""
        return min((since for name, since in now.items() if since > before.get(name, "")), default="")

    def forget(self, service: Service) -> None:
        self._seen.pop(service.metadata.uid, None)


def _ready_changed(pod: Pod) -> str:
    ready = find_condition(pod.status.conditions, "Ready")
    return (ready.last_transition_time or "") if ready is not None else ""


SLICE_MAX = 100
"""Endpoints of one slice."""
CONTROLLER = "endpointslice-controller.k8s.io"
SAME_NODE = "PreferSameNode"
NEAR = ("PreferClose", "PreferSameZone", SAME_NODE)
TOPOLOGY_MODE, AWARE_HINTS = (
    "service.kubernetes.io/topology-mode",
    "service.kubernetes.io/topology-aware-hints",
)
"""With `Auto`, hints are shared out by the zones' CPUs there; here there are none."""

Zone = Callable[[str], str | None]
"""The zone of a node by name, empty when it has none, None when there is no such node."""
_Identity = tuple[Any, ...]


class SliceUpdate(msgspec.Struct, frozen=True):
    """A slice as it should become."""

    old: EndpointSlice
    ports: list[Json]
    endpoints: list[Json]


class SlicePlan(msgspec.Struct, frozen=True):
    """The writes. `creates` are (ports, endpoints, family); `lost` are pods whose node is not known (yet)."""

    creates: list[tuple[list[Json], list[Json], str]]
    updates: list[SliceUpdate]
    deletes: list[EndpointSlice]
    lost: list[Pod]


def labels_of(service: Service) -> dict[str, str]:
    """Return the labels of a Service's slices."""
    reserved = {SERVICE_NAME: service.metadata.name, MANAGED_BY: CONTROLLER}
    return labels(service, reserved, is_headless(service))


def endpoint_of(pod: Pod, service: Service, family: str, zone: str) -> Json:
    """Return one pod as a slice shows it."""
    serving = pod_health.is_ready(pod)
    terminating = pod.metadata.deletion_timestamp is not None
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    endpoint: Json = {
        "addresses": addresses(pod, family),
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": target(pod),
    }
    name = hostname(pod, service)
    if name:
        endpoint["hostname"] = name
    if pod.spec.node_name:
        endpoint["nodeName"] = pod.spec.node_name
    if zone:
        endpoint["zone"] = zone
    hints = _hints(service, pod.spec.node_name, zone) if ready else {}
    return endpoint | {"hints": hints} if hints else endpoint


def _hints(service: Service, node: str, zone: str) -> Json:
    """Return for whom an endpoint is, by the Service's wish for traffic that stays near."""
    wish, annotations = service.spec.traffic_distribution, service.metadata.annotations
    if wish not in NEAR:
        return {}
    if annotations.get(AWARE_HINTS, annotations.get(TOPOLOGY_MODE, "")) in ("Auto", "auto"):
        return {}
    hints: Json = {"forZones": [{"name": zone}]} if zone else {}
    return hints | {"forNodes": [{"name": node}]} if node and wish == SAME_NODE else hints


def plan(
    service: Service,
    pods: Sequence[Pod],
    existing: Sequence[EndpointSlice],
    zone_of: Zone,
    *,
    slice_max: int = SLICE_MAX,
) -> SlicePlan:
    """Return what to write. `existing` are the slices that carry the Service's name and are managed by us."""
    wanted_families = families(service)
    creates: list[tuple[list[Json], list[Json], str]] = []
    updates: list[SliceUpdate] = []
    deletes = [one for one in existing if one.address_type not in wanted_families]
    lost: list[Pod] = []
    for family in wanted_families:
        wanted = _wanted(service, pods, family, zone_of, lost)
        ours = [one for one in existing if one.address_type == family]
        strange = [one for one in ours if not _is_owned(one, service)]
        kept = [one for one in ours if _is_owned(one, service)]
        made = _fit(service, wanted, kept, family, slice_max)
        creates += made.creates
        updates += made.updates
        deletes += strange + made.deletes
    return SlicePlan(creates, updates, deletes, lost)


def _wanted(
    service: Service, pods: Iterable[Pod], family: str, zone_of: Zone, lost: list[Pod]
) -> dict[bytes, tuple[list[Json], dict[_Identity, Json]]]:
    """Per set of ports: the ports, and the endpoints by identity."""
    found: dict[bytes, tuple[list[Json], dict[_Identity, Json]]] = {}
    differ = differ_per_pod(service)
    same: tuple[list[Json], bytes] | None = None
    for pod in pods:
        if not is_candidate(pod, with_terminating=True):
            continue
        if differ or same is None:
            shown = ports(service, pod)
            same = shown, _ports_key(shown)
        shown, key = same
        _, endpoints = found.setdefault(key, (shown, {}))
        zone = zone_of(pod.spec.node_name)
        if zone is None and not service.spec.publish_not_ready_addresses:
            lost.append(pod)
            continue
        endpoint = endpoint_of(pod, service, family, zone or "")
        if endpoint["addresses"]:
            endpoints[_identity(endpoint)] = endpoint
    return found


def _fit(
    service: Service,
    wanted: dict[bytes, tuple[list[Json], dict[_Identity, Json]]],
    existing: Sequence[EndpointSlice],
    family: str,
    slice_max: int,
) -> SlicePlan:
    """Return the writes for one family: per set of ports its slices, and one empty slice where there would be none."""
    by_ports: dict[bytes, list[EndpointSlice]] = {}
    for one in existing:
        by_ports.setdefault(_ports_key(one.ports), []).append(one)
    creates: list[tuple[list[Json], list[Json], str]] = []
    updates: list[SliceUpdate] = []
    deletes: list[EndpointSlice] = []
    for key, (ports, endpoints) in wanted.items():
        slices = by_ports.pop(key, [])
        new, changed, emptied = _fill(service, ports, endpoints, slices, slice_max)
        creates += [(ports, some, family) for some in new]
        updates += changed
        deletes += emptied
    deletes += [one for slices in by_ports.values() for one in slices]
    if len(deletes) == len(existing) and not creates:
        is_placeholder = (
            len(deletes) == 1
            and not deletes[0].endpoints
            and not deletes[0].ports
            and deletes[0].metadata.labels == labels_of(service)
        )
        if is_placeholder:
            deletes = []
        else:
            creates.append(([], [], family))
    # What would be made beside what goes takes its place.
    while creates and deletes:
        ports, some, _ = creates.pop()
        updates.append(SliceUpdate(deletes.pop(0), ports, some))
    return SlicePlan(creates, updates, deletes, [])


def _fill(
    service: Service,
    ports: list[Json],
    wanted: dict[_Identity, Json],
    slices: Sequence[EndpointSlice],
    slice_max: int,
) -> tuple[list[list[Json]], list[SliceUpdate], list[EndpointSlice]]:
    """Endpoints stay in their slices; new ones go into slices that change anyway, then where they all fit, then into
    new ones. Returns what the new ones hold, the updates, and the slices that are left empty."""
    left = dict(wanted)
    labels = labels_of(service)
    changed: dict[str, SliceUpdate] = {}
    unchanged: dict[str, EndpointSlice] = {}
    emptied: list[EndpointSlice] = []
    for one in slices:
        kept = [found for old in one.endpoints if (found := left.pop(_identity(old), None)) is not None]
        if kept != one.endpoints:
            if kept:
                changed[one.metadata.name] = SliceUpdate(one, one.ports, kept)
            else:
                emptied.append(one)
        elif one.metadata.labels != labels:
            changed[one.metadata.name] = SliceUpdate(one, one.ports, kept)
        else:
            unchanged[one.metadata.name] = one
    rest = list(left.values())
    for update in sorted(changed.values(), key=lambda one: -len(one.endpoints)):
        room = max(slice_max - len(update.endpoints), 0)
        update.endpoints.extend(rest[:room])
        rest = rest[room:]
    new: list[list[Json]] = []
    while rest:
        fitting = [one for one in unchanged.values() if len(one.endpoints) + len(rest) <= slice_max]
        if fitting:
            fullest = max(fitting, key=lambda one: len(one.endpoints))
            name = fullest.metadata.name
            changed[name] = SliceUpdate(fullest, fullest.ports, [*fullest.endpoints, *rest])
            break
        new.append(rest[:slice_max])
        rest = rest[slice_max:]
    return new, list(changed.values()), emptied


def _is_owned(one: EndpointSlice, service: Service) -> bool:
    uid = service.metadata.uid
    return any(owner.uid == uid and owner.kind == "Service" for owner in one.metadata.owner_references)


def _identity(endpoint: Json) -> _Identity:
    about = endpoint.get("targetRef") or {}
    return (
        *sorted(endpoint.get("addresses") or ()),
        endpoint.get("hostname", ""),
        about.get("namespace", ""),
        about.get("name", ""),
    )


def _ports_key(ports: Sequence[Json]) -> bytes:
    return b"".join(sorted(msgspec.json.encode(port, order="sorted") for port in ports))
