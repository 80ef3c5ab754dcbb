"""Checks of Services."""

import ipaddress
from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import check_unique

Json = dict[str, Any]

_NODE_PORT_RANGE = "provided port is not in the valid range. The range of valid ports is 30000-32767"


def check_service(obj: Json) -> list[StatusCause]:
    """A Service."""
    spec = obj.get("spec") or {}
    kind, ports = spec.get("type", "ClusterIP"), spec.get("ports") or []
    address = spec.get("clusterIP", "")
    causes: list[StatusCause] = []
    if not ports and kind != "ExternalName" and address != "None":
        causes.append(errors.required("spec.ports"))
    causes += _check_ports(ports, "spec.ports")
    causes += names.check_labels(spec.get("selector"), "spec.selector")
    if kind == "ExternalName":
        if not spec.get("externalName"):
            causes.append(errors.required("spec.externalName"))
        if address not in {"", "None"}:
            causes.append(
                errors.forbidden("spec.clusterIPs[0]", "may not be set when `type` is 'ExternalName'")
            )
    elif address == "None":
        if kind != "ClusterIP":
            detail = f"may not be set to 'None' for {kind} services"
            causes.append(errors.invalid("spec.clusterIPs[0]", address, detail))
    elif address and not _is_ip(address):
        detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        causes.append(errors.invalid("spec.clusterIPs[0]", address, detail))
    for index, external in enumerate(spec.get("externalIPs") or ()):
        if not _is_ip(external):
            detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(errors.invalid(f"spec.externalIPs[{index}]", external, detail))
    if kind == "ClusterIP":
        causes += [
            errors.forbidden(f"spec.ports[{index}].nodePort", "may not be used when `type` is 'ClusterIP'")
            for index, port in enumerate(ports)
            if port.get("nodePort")
        ]
    return causes


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_ports(ports: list[Json], field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for index, port in enumerate(ports):
        where = f"{field}[{index}]"
        name = port.get("name", "")
        if not name and len(ports) > 1:
            causes.append(errors.required(f"{where}.name"))
        reason = names.label_1123(name) if name else ""
        if reason:
            causes.append(errors.invalid(f"{where}.name", name, reason))
        if "port" not in port:
            causes.append(errors.invalid(f"{where}.port", 0, "must be between 1 and 65535, inclusive"))
        target = port.get("targetPort")
        if isinstance(target, int) and target and not 1 <= target <= 65535:
            causes.append(
                errors.invalid(f"{where}.targetPort", target, "must be between 1 and 65535, inclusive")
            )
        elif isinstance(target, str) and target:
            reason = names.port_name(target)
            if reason:
                causes.append(errors.invalid(f"{where}.targetPort", target, reason))
        node_port = port.get("nodePort")
        if node_port and not 30_000 <= node_port <= 32_767:
            causes.append(errors.invalid(f"{where}.nodePort", node_port, _NODE_PORT_RANGE))
    causes += check_unique(
        (f"{field}[{i}].name", port["name"]) for i, port in enumerate(ports) if port.get("name")
    )
    seen: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        key = (port.get("protocol", "TCP"), port.get("port"))
        if key in seen:
            causes.append(errors.duplicate(f"{field}[{index}]", {"port": key[1], "protocol": key[0]}))
        seen.add(key)
    return causes


def check_service_update(obj: Json, old: Json) -> list[StatusCause]:
    """The cluster IP of a Service stays as long as it has one."""
    new, before = obj.get("spec") or {}, old.get("spec") or {}
    if "ExternalName" in {new.get("type"), before.get("type")}:
        return []
    address, old_address = new.get("clusterIP", ""), before.get("clusterIP", "")
    if old_address and address != old_address:
        detail = "may not change once set"
        return [errors.invalid("spec.clusterIPs[0]", [address] if address else None, detail)]
    return []


__all__ = ["check_service", "check_service_update"]
