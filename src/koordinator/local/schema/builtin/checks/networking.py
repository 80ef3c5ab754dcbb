"""Checks of Services, of Endpoints and EndpointSlices (addresses that something can be reached at), of Ingresses and
their classes, and of NetworkPolicies.

Source: pkg/apis/core/validation, pkg/apis/discovery/validation and pkg/apis/networking/validation of
kubernetes/kubernetes.
"""

import ipaddress
from typing import Any

from koordinator.api.scalars import is_ip
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import NO_ADDRESS, check_ip, check_port, check_unique

Json = dict[str, Any]

_NODE_PORT_RANGE = "provided port is not in the valid range. The range of valid ports is 30000-32767"


def check_service(obj: Json) -> list[StatusCause]:
    """Check a Service."""
    spec = obj.get("spec") or {}
    kind, ports = spec.get("type", "ClusterIP"), spec.get("ports") or []
    address = spec.get("clusterIP", "")
    causes: list[StatusCause] = []
    if not ports and kind != "ExternalName" and address != "None":
        causes.append(errors.required("spec.ports"))
    causes += _check_ports(ports)
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
    elif address and not is_ip(address):
        causes.append(errors.invalid("spec.clusterIPs[0]", address, NO_ADDRESS))
    for index, external in enumerate(spec.get("externalIPs") or ()):
        causes += check_ip(external, f"spec.externalIPs[{index}]")
    causes += _check_reach(spec, kind)
    if kind == "ClusterIP":
        causes += [
            errors.forbidden(f"spec.ports[{index}].nodePort", "may not be used when `type` is 'ClusterIP'")
            for index, port in enumerate(ports)
            if port.get("nodePort")
        ]
    return causes


def _check_reach(spec: Json, kind: str) -> list[StatusCause]:
    """Check what only Services have that are reached from outside."""
    causes: list[StatusCause] = []
    field = "spec.LoadBalancerSourceRanges"
    ranges, policy = spec.get("loadBalancerSourceRanges"), spec.get("externalTrafficPolicy")
    if ranges and kind != "LoadBalancer":
        causes.append(errors.forbidden(field, "may only be used when `type` is 'LoadBalancer'"))
    for index, each in enumerate(ranges or ()):
        if _network(each) is None:
            causes.append(_bad_cidr(f"{field}[{index}]", each))
    is_external = kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and spec.get("externalIPs"))
    if policy and not is_external:
        why = "may only be set for externally-accessible services"
        causes.append(errors.invalid("spec.externalTrafficPolicy", policy, why))
    return causes


def _check_ports(ports: list[Json]) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for index, port in enumerate(ports):
        where = f"spec.ports[{index}]"
        name = port.get("name", "")
        if not name and len(ports) > 1:
            causes.append(errors.required(f"{where}.name"))
        causes += names.check_given(names.label_1123, name, f"{where}.name")
        if "port" not in port:
            causes += check_port(0, f"{where}.port")
        if "targetPort" in port:
            causes += check_port(port["targetPort"], f"{where}.targetPort")
        node_port = port.get("nodePort")
        if node_port and not 30_000 <= node_port <= 32_767:
            causes.append(errors.invalid(f"{where}.nodePort", node_port, _NODE_PORT_RANGE))
    causes += check_unique(
        (f"spec.ports[{i}].name", port["name"]) for i, port in enumerate(ports) if port.get("name")
    )
    seen: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        key = (port.get("protocol", "TCP"), port.get("port"))
        if key in seen:
            causes.append(errors.duplicate(f"spec.ports[{index}]", {"port": key[1], "protocol": key[0]}))
        seen.add(key)
    return causes


def check_service_update(obj: Json, old: Json) -> list[StatusCause]:
    """Check that the cluster IP of a Service stays as long as it has one."""
    new, before = obj.get("spec") or {}, old.get("spec") or {}
    if "ExternalName" in {new.get("type"), before.get("type")}:
        return []
    address, old_address = new.get("clusterIP", ""), before.get("clusterIP", "")
    if old_address and address != old_address:
        detail = "may not change once set"
        return [errors.invalid("spec.clusterIPs[0]", [address] if address else None, detail)]
    return []


_ENDPOINTS_MAX, _ADDRESSES_MAX = 1000, 100
_VERSIONS = {"IPv4": 4, "IPv6": 6}


def check_subset(subset: Json, field: str) -> list[StatusCause]:
    """Check a subset of Endpoints."""
    ports = subset.get("ports") or []
    causes: list[StatusCause] = []
    if not subset.get("addresses") and not subset.get("notReadyAddresses"):
        causes.append(errors.required(field, "must specify `addresses` or `notReadyAddresses`"))
    for part in ("addresses", "notReadyAddresses"):
        for number, address in enumerate(subset.get(part) or ()):
            causes += _check_address(address.get("ip") or "", f"{field}.{part}[{number}].ip")
    for number, port in enumerate(ports):
        where, name = f"{field}.ports[{number}]", port.get("name") or ""
        causes += names.check_given(names.label_1123, name, f"{where}.name")
        if not name and len(ports) > 1:
            causes.append(errors.required(f"{where}.name"))
        causes += check_port(port.get("port", 0), f"{where}.port")
    return causes


def check_endpoint(endpoint: Json, field: str) -> list[StatusCause]:
    """Check an endpoint of a slice: that it has addresses, and its names."""
    causes: list[StatusCause] = []
    if not endpoint.get("addresses"):
        causes.append(errors.required(f"{field}.addresses", "must contain at least 1 address"))
    causes += names.check_given(names.label_1123, endpoint.get("hostname"), f"{field}.hostname")
    return causes + names.check_given(names.subdomain_1123, endpoint.get("nodeName"), f"{field}.nodeName")


def check_slice(endpoint_slice: Json) -> list[StatusCause]:
    """Check an EndpointSlice."""
    endpoints = endpoint_slice.get("endpoints") or []
    if len(endpoints) > _ENDPOINTS_MAX:
        return [errors.too_many("endpoints", len(endpoints), _ENDPOINTS_MAX)]
    version = _VERSIONS.get(endpoint_slice.get("addressType") or "")
    causes: list[StatusCause] = []
    for index, port in enumerate(endpoint_slice.get("ports") or ()):
        causes += names.check_given(names.label_1123, port.get("name"), f"ports[{index}].name")
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


def _check_address(text: str, field: str) -> list[StatusCause]:
    # Unlike Kubernetes, loopback addresses are taken: what serves this cluster (webhooks) runs on this machine.
    address = _address(text)
    if address is None:
        return [errors.invalid(field, text, NO_ADDRESS)]
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


_CLASS_ANNOTATION = "kubernetes.io/ingress.class"
_BAD_SEQUENCES = ("//", "/./", "/../", "%2f", "%2F")
_BAD_SUFFIXES = ("/..", "/.")
_POLICY_TYPES = ("Ingress", "Egress")


def check_ingress(ingress: Json) -> list[StatusCause]:
    """Check an Ingress."""
    spec, field = ingress.get("spec") or {}, "spec"
    rules, default = spec.get("rules") or [], spec.get("defaultBackend")
    causes: list[StatusCause] = []
    if not rules and default is None:
        why = "either `defaultBackend` or `rules` must be specified"
        causes.append(errors.invalid(field, spec.get("rules"), why))
    name = spec.get("ingressClassName")
    if name is not None:
        causes += names.check(names.subdomain_1123, name, f"{field}.ingressClassName")
        annotated = (ingress["metadata"].get("annotations") or {}).get(_CLASS_ANNOTATION)
        if annotated is not None and annotated != name:
            why = "must match `ingressClassName` when both are specified"
            causes.append(errors.invalid(f"annotations.{_CLASS_ANNOTATION}", annotated, why))
    return causes


def _check_host(host: str, field: str) -> list[StatusCause]:
    return names.check(names.wildcard_subdomain if "*" in host else names.subdomain_1123, host, field)


def check_hosts(hosts: list[str], field: str) -> list[StatusCause]:
    """Check the hosts of an IngressTLS."""
    return [cause for index, host in enumerate(hosts) for cause in _check_host(host, f"{field}[{index}]")]


def check_names(hosts: list[str], field: str) -> list[StatusCause]:
    """Check plain host names."""
    return [
        cause
        for index, host in enumerate(hosts)
        for cause in names.check(names.subdomain_1123, host, f"{field}[{index}]")
    ]


def check_rule_host(host: str, field: str) -> list[StatusCause]:
    """Check the host of an IngressRule."""
    if not host:
        return []
    trouble = [errors.invalid(field, host, "must be a DNS name, not an IP address")] if is_ip(host) else []
    return trouble + _check_host(host, field)


def check_path(path: Json, field: str) -> list[StatusCause]:
    """Check an HTTPIngressPath."""
    kind, text = path.get("pathType"), path.get("path") or ""
    if kind is None:
        return [errors.required(f"{field}.pathType", "pathType must be specified")]
    causes: list[StatusCause] = []
    where = f"{field}.path"
    is_exact = kind in ("Exact", "Prefix")
    if not text.startswith("/") and (is_exact or (text and kind == "ImplementationSpecific")):
        causes.append(errors.invalid(where, text, "must be an absolute path"))
    if is_exact and text:
        causes += [
            errors.invalid(where, text, f"must not contain '{part}'")
            for part in _BAD_SEQUENCES
            if part in text
        ]
        causes += [
            errors.invalid(where, text, f"cannot end with '{part}'")
            for part in _BAD_SUFFIXES
            if text.endswith(part)
        ]
    return causes


def check_backend(backend: Json, field: str) -> list[StatusCause]:
    """Check an IngressBackend."""
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        return [errors.invalid(field, "", "cannot set both resource and service backends")]
    if resource is not None:
        return [
            errors.required(f"{field}.resource.{part}") for part in ("kind", "name") if not resource.get(part)
        ]
    if service is None:
        return [errors.invalid(field, "", "resource or service backend is required")]
    causes: list[StatusCause] = []
    name, port = service.get("name") or "", service.get("port") or {}
    causes += names.check_required(names.label_1035, name, f"{field}.service.name")
    if port.get("name") and port.get("number"):
        causes.append(errors.invalid(field, "", "cannot set both port name & port number"))
    elif port.get("name"):
        causes += check_port(port["name"], f"{field}.service.port.name")
    elif port.get("number"):
        causes += check_port(port["number"], f"{field}.service.port.number")
    else:
        causes.append(errors.required(field, "port name or number is required"))
    return causes


def check_ingress_class(ingress_class: Json) -> list[StatusCause]:
    """Check an IngressClass."""
    spec = ingress_class.get("spec") or {}
    controller = spec.get("controller") or ""
    field = "spec.controller"
    if not controller:
        return [errors.required(field)]
    domain, slash, _ = controller.partition("/")
    if not slash:
        why = 'must be a domain-prefixed path (such as "acme.io/foo")'
        return [errors.invalid(field, controller, why)]
    reason = names.subdomain_1123(domain)
    return [errors.invalid(field, controller, reason)] if reason else []


def check_policy_types(types: list[str], field: str) -> list[StatusCause]:
    """Check what a NetworkPolicy is about."""
    if len(types) > len(_POLICY_TYPES):
        return [errors.invalid(field, types, "may not specify more than two policyTypes")]
    return [
        errors.not_supported(f"{field}[{index}]", each, _POLICY_TYPES, is_sorted=True)
        for index, each in enumerate(types)
        if each not in _POLICY_TYPES
    ]


def check_policy_port(entry: Json, field: str) -> list[StatusCause]:
    """Check a NetworkPolicyPort."""
    port, end = entry.get("port"), entry.get("endPort")
    where = f"{field}.endPort"
    if port is None:
        if end is None:
            return []
        return [errors.invalid(where, end, "may not be specified when `port` is not specified")]
    causes = check_port(port, f"{field}.port")
    if end is None:
        return causes
    if isinstance(port, str):
        why = "may not be specified when `port` is non-numeric"
        return [errors.invalid(where, end, why), *causes]
    if end < port:
        # The API server shows the port here, not its end.
        causes.append(errors.invalid(where, port, "must be greater than or equal to `port`"))
    return causes + check_port(end, where)


def check_peer(peer: Json, field: str) -> list[StatusCause]:
    """Check that a NetworkPolicyPeer is of one kind."""
    has_selector = peer.get("podSelector") is not None or peer.get("namespaceSelector") is not None
    has_block = peer.get("ipBlock") is not None
    if not has_selector and not has_block:
        return [errors.required(field, "must specify a peer")]
    if has_selector and has_block:
        return [errors.forbidden(field, "may not specify both ipBlock and another peer")]
    return []


def check_block(block: Json, field: str) -> list[StatusCause]:
    """Check an IPBlock."""
    cidr = block.get("cidr") or ""
    if not cidr:
        return [errors.required(f"{field}.cidr")]
    network = _network(cidr)
    if network is None:
        return [_bad_cidr(f"{field}.cidr", cidr)]
    causes: list[StatusCause] = []
    for index, text in enumerate(block.get("except") or ()):
        where = f"{field}.except[{index}]"
        inner = _network(text)
        if inner is None:
            causes.append(_bad_cidr(where, text))
        elif (
            inner.version != network.version
            or inner.network_address not in network
            or inner.prefixlen <= network.prefixlen
        ):
            causes.append(errors.invalid(where, text, "must be a strict subset of `cidr`"))
    return causes


def _bad_cidr(field: str, text: str) -> StatusCause:
    why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
    return errors.invalid(field, text, why)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    address, slash, bits = text.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()):
        return None
    try:
        return ipaddress.ip_network(f"{address}/{int(bits)}", strict=False)
    except ValueError:
        return None
