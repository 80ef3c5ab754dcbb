"""Plan the EndpointSlices of a Service, and the least writes that make them so. Pure.

Source: k8s.io/endpointslice, the reconciler of kube-controller-manager.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from koordinator.api.core import Pod, Service
from koordinator.api.groups import MANAGED_BY, SERVICE_NAME, EndpointSlice
from koordinator.local.controllers import endpoint_addresses, pod_health
from koordinator.local.controllers.endpoint_addresses import Json

SLICE_MAX = 100
"""Endpoints of one slice."""
CONTROLLER = "endpointslice-controller.k8s.io"
_GENERATED_MAX = 63 - 5  # names end in five drawn characters, and stay usable as labels

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
    return endpoint_addresses.labels(service, reserved, endpoint_addresses.is_headless(service))


def name_prefix(service: str) -> str:
    """Return the `generateName` of a Service's slices."""
    return f"{service[: _GENERATED_MAX - 1]}-"


def endpoint_of(pod: Pod, service: Service, family: str, zone: str) -> Json:
    """Return one pod as a slice shows it."""
    serving = pod_health.is_ready(pod)
    terminating = pod.metadata.deletion_timestamp is not None
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    endpoint: Json = {
        "addresses": endpoint_addresses.addresses(pod, family),
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": endpoint_addresses.target(pod),
    }
    name = endpoint_addresses.hostname(pod, service)
    if name:
        endpoint["hostname"] = name
    if pod.spec.node_name:
        endpoint["nodeName"] = pod.spec.node_name
    if zone:
        endpoint["zone"] = zone
    return endpoint


def plan(
    service: Service,
    pods: Sequence[Pod],
    existing: Sequence[EndpointSlice],
    zone_of: Zone,
    *,
    slice_max: int = SLICE_MAX,
) -> SlicePlan:
    """Return what to write. `existing` are the slices that carry the Service's name and are managed by us."""
    families = endpoint_addresses.families(service)
    creates: list[tuple[list[Json], list[Json], str]] = []
    updates: list[SliceUpdate] = []
    deletes = [one for one in existing if one.address_type not in families]
    lost: list[Pod] = []
    for family in families:
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
    differ = endpoint_addresses.differ_per_pod(service)
    same: tuple[list[Json], bytes] | None = None
    for pod in pods:
        if not endpoint_addresses.is_candidate(pod, with_terminating=True):
            continue
        if differ or same is None:
            ports = endpoint_addresses.ports(service, pod)
            same = ports, _ports_key(ports)
        ports, key = same
        _, endpoints = found.setdefault(key, (ports, {}))
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
