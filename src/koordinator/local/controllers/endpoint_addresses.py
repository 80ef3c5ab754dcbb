"""Find which pods are behind a Service, under which addresses and ports, and plan its Endpoints object. Pure.

Sources: k8s.io/endpointslice and the endpoints controller of kube-controller-manager, and how that packs subsets.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from koordinator.api.core import Container, Pod, Service, ServicePort
from koordinator.api.groups import HEADLESS
from koordinator.api.pod_resize import is_sidecar
from koordinator.local.controllers import pod_health

Json = dict[str, Any]


ADDRESSES_MAX = 1_000
"""Addresses of one object; what is beyond is left to the slices."""
MANAGED_BY = "endpoints.kubernetes.io/managed-by"
CONTROLLER = "endpoint-controller"
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
TRUNCATED = "truncated"


def labels_of(service: Service) -> dict[str, str]:
    """Return the labels of a Service's Endpoints."""
    reserved = {MANAGED_BY: CONTROLLER}
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
    status = pod.status
    if status.phase in (pod_health.SUCCEEDED, pod_health.FAILED) or not (status.pod_ip or status.pod_ips):
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
    sidecars = filter(is_sidecar, pod.spec.init_containers)
    return _named(pod.spec.containers, wanted) or _named(sidecars, wanted)


def _named(containers: Iterable[Container], wanted: ServicePort) -> int | None:
    protocol = wanted.protocol or "TCP"
    for container in containers:
        for port in container.ports:
            if port.name == wanted.target_port and (port.protocol or "TCP") == protocol:
                return port.container_port
    return None


def labels(service: Service, reserved: Json, is_headless: bool) -> dict[str, str]:
    """The labels of what is published for a Service: its own, and those that are `reserved` for us."""
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
    for condition in pod.status.conditions:
        if condition.type == "Ready":
            return condition.last_transition_time or ""
    return ""
