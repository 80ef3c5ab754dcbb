"""Plan the Endpoints object of a Service. Pure.

Source: the endpoints controller of kube-controller-manager, and how it packs subsets.
"""

import math
from collections.abc import Iterable

import msgspec

from koordinator.api.core import Pod, Service
from koordinator.local.controllers import endpoint_addresses, pod_health
from koordinator.local.controllers.endpoint_addresses import Json

ADDRESSES_MAX = 1_000
"""Addresses of one object; what is beyond is left to the slices."""
MANAGED_BY = "endpoints.kubernetes.io/managed-by"
CONTROLLER = "endpoint-controller"
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
TRUNCATED = "truncated"


def labels_of(service: Service) -> dict[str, str]:
    """Return the labels of a Service's Endpoints."""
    reserved = {MANAGED_BY: CONTROLLER}
    return endpoint_addresses.labels(service, reserved, endpoint_addresses.is_headless(service))


def subsets_of(service: Service, pods: Iterable[Pod]) -> tuple[list[Json], bool]:
    """Return the subsets, in a steady order, and whether some addresses were left out for being too many.

    Ports that the same pods serve share a subset.
    """
    family = endpoint_addresses.families(service)[0]
    even_unready = service.spec.publish_not_ready_addresses
    addresses: dict[str, tuple[Json, bool]] = {}
    by_port: dict[bytes, tuple[Json | None, list[str]]] = {}
    for pod in pods:
        own = endpoint_addresses.addresses(pod, family)
        if not own or not endpoint_addresses.is_candidate(pod, with_terminating=even_unready):
            continue
        uid = pod.metadata.uid
        addresses[uid] = _address(pod, service, own[0]), even_unready or pod_health.is_ready(pod)
        ports: list[Json] = endpoint_addresses.ports(service, pod)
        if not service.spec.ports and service.spec.cluster_ip == endpoint_addresses.HEADLESS_IP:
            by_port.setdefault(b"", (None, []))[1].append(uid)
        for port in ports:
            key = msgspec.json.encode(port, order="sorted")
            by_port.setdefault(key, (port, []))[1].append(uid)
    subsets: list[Json] = []
    for uids, shared in _same_pods(by_port).items():
        subset: Json = {}
        for field, is_ready in (("addresses", True), ("notReadyAddresses", False)):
            some = [addresses[uid][0] for uid in uids if addresses[uid][1] == is_ready]
            if some:
                subset[field] = sorted(some, key=lambda one: (one["ip"], one["targetRef"]["uid"]))
        if shared:
            subset["ports"] = sorted(shared, key=lambda port: (port.get("name", ""), port["port"]))
        subsets.append(subset)
    subsets.sort(key=lambda subset: msgspec.json.encode(subset, order="sorted"))
    return _cut(subsets)


def _address(pod: Pod, service: Service, ip: str) -> Json:
    address: Json = {"ip": ip, "nodeName": pod.spec.node_name, "targetRef": endpoint_addresses.target(pod)}
    name = endpoint_addresses.hostname(pod, service)
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
