"""Checks of Endpoints and EndpointSlices: addresses that something can be reached at.

Source: pkg/apis/core/validation and pkg/apis/discovery/validation of kubernetes/kubernetes.
"""

import ipaddress
from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import check_port

Json = dict[str, Any]

_ENDPOINTS_MAX, _ADDRESSES_MAX = 1000, 100
_VERSIONS = {"IPv4": 4, "IPv6": 6}
_NO_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def check_endpoints(endpoints: Json) -> list[StatusCause]:
    """Endpoints."""
    causes: list[StatusCause] = []
    for index, subset in enumerate(endpoints.get("subsets") or ()):
        field, ports = f"subsets[{index}]", subset.get("ports") or []
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            causes.append(errors.required(field, "must specify `addresses` or `notReadyAddresses`"))
        for part in ("addresses", "notReadyAddresses"):
            for number, address in enumerate(subset.get(part) or ()):
                causes += _check_address(address.get("ip") or "", f"{field}.{part}[{number}].ip")
        for number, port in enumerate(ports):
            where, name = f"{field}.ports[{number}]", port.get("name") or ""
            reason = names.label_1123(name) if name else ""
            if reason:
                causes.append(errors.invalid(f"{where}.name", name, reason))
            elif not name and len(ports) > 1:
                causes.append(errors.required(f"{where}.name"))
            causes += check_port(port.get("port", 0), f"{where}.port")
    return causes


def check_slice(endpoint_slice: Json) -> list[StatusCause]:
    """An EndpointSlice."""
    endpoints = endpoint_slice.get("endpoints") or []
    if len(endpoints) > _ENDPOINTS_MAX:
        return [errors.too_many("endpoints", len(endpoints), _ENDPOINTS_MAX)]
    version = _VERSIONS.get(endpoint_slice.get("addressType") or "")
    causes: list[StatusCause] = []
    for index, endpoint in enumerate(endpoints):
        field, addresses = f"endpoints[{index}].addresses", endpoint.get("addresses") or []
        if len(addresses) > _ADDRESSES_MAX:
            causes.append(errors.too_many(field, len(addresses), _ADDRESSES_MAX))
        if version is None:
            continue
        for number, address in enumerate(addresses):
            found = _address(address)
            if found is not None and found.version != version:
                causes.append(errors.invalid(field, address, f"must be an IPv{version} address"))
            causes += _check_address(address, f"{field}[{number}]")
    return causes


def check_slice_update(endpoint_slice: Json, old: Json) -> list[StatusCause]:
    """A slice keeps the type of its addresses."""
    new, before = endpoint_slice.get("addressType"), old.get("addressType")
    return [] if new == before else [errors.invalid("addressType", new, "field is immutable")]


def _check_address(text: str, field: str) -> list[StatusCause]:
    # Unlike Kubernetes, loopback addresses are taken: what serves this cluster (webhooks) runs on this machine.
    address = _address(text)
    if address is None:
        return [errors.invalid(field, text, _NO_ADDRESS)]
    troubles = (
        (address.is_unspecified, f"may not be unspecified ({text})"),
        (address.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
    )
    return [errors.invalid(field, text, why) for holds, why in troubles if holds]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


__all__ = ["check_endpoints", "check_slice", "check_slice_update"]
