"""Checks of pods and pod templates, with node, pod and anti-affinity."""

import functools
from collections.abc import Iterable
from typing import Any

from koordinator.api import tolerations
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks import containers
from koordinator.local.schema.builtin.checks.common import (
    check_amounts,
    check_container_resource,
    check_label_selector,
    check_port,
    check_resource_list,
    check_selectors,
    check_unique,
    is_extended,
    nanos,
)

Json = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def check(affinity: Json, field: str) -> list[StatusCause]:
    """Check an Affinity."""
    causes: list[StatusCause] = []
    node = affinity.get("nodeAffinity") or {}
    if _REQUIRED in node:
        causes += check_node_selector(node[_REQUIRED], f"{field}.nodeAffinity.{_REQUIRED}")
    for index, item in enumerate(node.get(_PREFERRED) or ()):
        where = f"{field}.nodeAffinity.{_PREFERRED}[{index}].preference"
        causes += _check_node_term(item.get("preference") or {}, where)
    for name in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(name) or {}
        for index, term in enumerate(rules.get(_REQUIRED) or ()):
            causes += _check_pod_term(term, f"{field}.{name}.{_REQUIRED}[{index}]")
        for index, item in enumerate(rules.get(_PREFERRED) or ()):
            where = f"{field}.{name}.{_PREFERRED}[{index}].podAffinityTerm"
            causes += _check_pod_term(item.get("podAffinityTerm") or {}, where)
    return causes


def check_node_selector(selector: Json, field: str) -> list[StatusCause]:
    """Check a NodeSelector."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        return [errors.required(f"{field}.nodeSelectorTerms", "must have at least one node selector term")]
    return [
        cause
        for index, term in enumerate(terms)
        for cause in _check_node_term(term, f"{field}.nodeSelectorTerms[{index}]")
    ]


def _check_node_term(term: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for index, item in enumerate(term.get("matchExpressions") or ()):
        causes += _check_requirement(item, f"{field}.matchExpressions[{index}]")
    for index, item in enumerate(term.get("matchFields") or ()):
        where = f"{field}.matchFields[{index}]"
        if item.get("key") != "metadata.name":
            causes.append(
                errors.invalid(f"{where}.key", item.get("key", ""), "not a valid field selector key")
            )
        if item.get("operator") not in {"In", "NotIn"}:
            causes.append(
                errors.invalid(f"{where}.operator", item.get("operator", ""), "not a valid selector operator")
            )
        elif len(item.get("values") or ()) != 1:
            detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            causes.append(errors.required(f"{where}.values", detail))
    return causes


def _check_requirement(item: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    operator, values = item.get("operator", ""), item.get("values") or []
    match operator:
        case "In" | "NotIn":
            if not values:
                detail = "must be specified when `operator` is 'In' or 'NotIn'"
                causes.append(errors.required(f"{field}.values", detail))
        case "Exists" | "DoesNotExist":
            if values:
                detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                causes.append(errors.forbidden(f"{field}.values", detail))
        case "Gt" | "Lt":
            if len(values) != 1:
                detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                causes.append(errors.required(f"{field}.values", detail))
        case _:
            causes.append(errors.invalid(f"{field}.operator", operator, "not a valid selector operator"))
    causes += names.check(names.qualified_name, item.get("key", ""), f"{field}.key")
    return causes


def _check_pod_term(term: Json, field: str) -> list[StatusCause]:
    causes = check_selectors(term, field, ("labelSelector", "namespaceSelector"))
    key = term.get("topologyKey", "")
    return causes + names.check_given(names.qualified_name, key, f"{field}.topologyKey")


_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")


def check_pod(pod: Json) -> list[StatusCause]:
    """Check a Pod."""
    return check_spec(pod.get("spec") or {}, "spec")


def check_template(template: Json, field: str, more_volumes: Iterable[str] = ()) -> list[StatusCause]:
    """Check a pod template: labels, annotations and the pod's spec."""
    meta = template.get("metadata") or {}
    causes = names.check_labels(meta.get("labels"), f"{field}.metadata.labels")
    causes += names.check_annotations(meta.get("annotations"), f"{field}.metadata.annotations")
    return causes + check_spec(template.get("spec") or {}, f"{field}.spec", more_volumes)


def check_spec(spec: Json, field: str, more_volumes: Iterable[str] = ()) -> list[StatusCause]:
    """Check a PodSpec, after decoding and defaults. Required, enumerated and ranged fields are checked by `rules`.

    `more_volumes` are names that the pod will get from its workload (claim templates of a StatefulSet).
    """
    causes: list[StatusCause] = []
    volumes = {volume.get("name", "") for volume in spec.get("volumes") or ()}.union(more_volumes)
    causes += _check_volumes(spec.get("volumes") or (), f"{field}.volumes")
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{field}.{group}[{index}]"
            causes += _check_container(container, where, volumes, is_init=group == "initContainers")
    causes += containers.check_lifecycles(spec, field)
    causes += _check_ephemeral(spec, f"{field}.ephemeralContainers", volumes)
    named = [
        (f"{field}.{group}[{index}].name", container.get("name"))
        for group in ("containers", "initContainers")
        for index, container in enumerate(spec.get(group) or ())
    ]
    causes += check_unique((path, name) for path, name in named if name)
    causes += _check_host_ports(spec.get("containers") or (), f"{field}.containers")
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        causes += check_toleration(toleration, f"{field}.tolerations[{index}]")
    if spec.get("nodeSelector"):
        causes += names.check_labels(spec["nodeSelector"], f"{field}.nodeSelector")
    if spec.get("affinity"):
        causes += check(spec["affinity"], f"{field}.affinity")
    causes += _check_spread(spec.get("topologySpreadConstraints") or (), f"{field}.topologySpreadConstraints")
    causes += _check_names(spec, field)
    if spec.get("overhead"):
        causes += check_resource_list(spec["overhead"], f"{field}.overhead")
    return causes


def _check_names(spec: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for name, rule in (
        ("nodeName", names.subdomain_1123),
        ("serviceAccountName", names.subdomain_1123),
        ("priorityClassName", names.subdomain_1123),
        ("schedulerName", names.qualified_name),
        ("hostname", names.label_1123),
        ("subdomain", names.label_1123),
        ("runtimeClassName", names.subdomain_1123),
    ):
        value = spec.get(name)
        causes += names.check_given(rule, value, f"{field}.{name}")
    gates = [
        (f"{field}.schedulingGates[{i}]", g.get("name"))
        for i, g in enumerate(spec.get("schedulingGates") or ())
    ]
    for path, value in gates:
        reason = names.qualified_name(value or "")
        if reason:
            causes.append(errors.invalid(path, value, reason))
    return causes + check_unique(gates)


def _check_container(container: Json, field: str, volumes: set[str], is_init: bool) -> list[StatusCause]:
    causes: list[StatusCause] = []
    name = container.get("name", "")
    causes += names.check_given(names.label_1123, name, f"{field}.name")
    image = container.get("image", "")
    if not image:
        causes.append(errors.required(f"{field}.image"))
    elif image != image.strip():
        causes.append(errors.invalid(f"{field}.image", image, "must not have leading or trailing whitespace"))
    causes += _check_ports(container.get("ports") or (), f"{field}.ports")
    causes += _check_env(container.get("env") or (), f"{field}.env")
    causes += containers.check_security(container.get("securityContext"), f"{field}.securityContext")
    causes += _check_mounts(container.get("volumeMounts") or (), f"{field}.volumeMounts", volumes)
    if container.get("resources"):
        causes += _check_resources(container["resources"], f"{field}.resources")
    restart = container.get("restartPolicy")
    sidecar = is_init and restart == "Always"
    if is_init and restart not in {None, "Always", "Never", "OnFailure"}:
        causes.append(errors.not_supported(f"{field}.restartPolicy", restart, ["Always"]))
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe not in container:
            continue
        if is_init and not sidecar:
            detail = "may not be set for init containers without restartPolicy=Always"
            causes.append(errors.forbidden(f"{field}.{probe}", detail))
        causes += _check_handler(container[probe], f"{field}.{probe}")
        if probe != "readinessProbe" and container[probe].get("successThreshold", 1) != 1:
            value = container[probe]["successThreshold"]
            causes.append(errors.invalid(f"{field}.{probe}.successThreshold", value, "must be 1"))
    return causes


def _check_ephemeral(spec: Json, field: str, volumes: set[str]) -> list[StatusCause]:
    others = {
        each.get("name") for group in ("containers", "initContainers") for each in spec.get(group) or ()
    }
    taken = set(others)
    causes: list[StatusCause] = []
    for index, container in enumerate(spec.get("ephemeralContainers") or ()):
        where, name = f"{field}[{index}]", container.get("name", "")
        causes += _check_container(container, where, volumes, is_init=False)
        if name in taken:
            causes.append(errors.duplicate(f"{where}.name", name))
        taken.add(name)
        causes += containers.check_ephemeral(container, where, others)
    return causes


def _check_handler(probe: Json, field: str) -> list[StatusCause]:
    handlers = [name for name in _HANDLERS if name in probe]
    if not handlers:
        return [errors.required(field, "must specify a handler type")]
    causes = [
        errors.forbidden(f"{field}.{name}", "may not specify more than 1 handler type")
        for name in handlers[1:]
    ]
    for name in ("httpGet", "tcpSocket"):
        port = (probe.get(name) or {}).get("port")
        if port is not None:
            causes += check_port(port, f"{field}.{name}.port")
    return causes


def _check_ports(ports: Any, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for index, port in enumerate(ports):
        where = f"{field}[{index}]"
        causes += names.check(names.port_name, port["name"], f"{where}.name") if port.get("name") else []
        host = port.get("hostPort")
        if host and not 1 <= host <= 65535:
            causes.append(errors.invalid(f"{where}.hostPort", host, "must be between 1 and 65535, inclusive"))
    return causes + check_unique(
        (f"{field}[{index}].name", port["name"]) for index, port in enumerate(ports) if port.get("name")
    )


def _check_host_ports(containers: Any, field: str) -> list[StatusCause]:
    return check_unique(
        (
            f"{field}[{i}].ports[{j}].hostPort",
            f"{port.get('protocol', 'TCP')}/{port.get('hostIP', '')}/{port['hostPort']}",
        )
        for i, container in enumerate(containers)
        for j, port in enumerate(container.get("ports") or ())
        if port.get("hostPort")
    )


def _check_env(env: Any, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for index, item in enumerate(env):
        name = item.get("name", "")
        causes += names.check_given(names.env_name, name, f"{field}[{index}].name")
        source = item.get("valueFrom")
        if source is None:
            continue
        where = f"{field}[{index}].valueFrom"
        if not source:
            detail = (
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or "
                "`fileKeyRef`"
            )
            causes.append(errors.invalid(where, "", detail))
        elif item.get("value"):
            causes.append(errors.invalid(where, "", "may not be specified when `value` is not empty"))
        elif len(source) > 1:
            causes.append(errors.invalid(where, "", "may not have more than one field specified at a time"))
        causes += containers.check_source(source, where)
    return causes


def _check_mounts(mounts: Any, field: str, volumes: set[str]) -> list[StatusCause]:
    causes = [
        errors.not_found(f"{field}[{index}].name", mount["name"])
        for index, mount in enumerate(mounts)
        if mount.get("name") and mount["name"] not in volumes
    ]
    for index, mount in enumerate(mounts):
        if ".." in mount.get("subPath", "").split("/"):
            causes.append(
                errors.invalid(f"{field}[{index}].subPath", mount["subPath"], "must not contain '..'")
            )
    paths = [(f"{field}[{i}].mountPath", m["mountPath"]) for i, m in enumerate(mounts) if m.get("mountPath")]
    seen: set[str] = set()
    for where, path in paths:
        if path in seen:
            causes.append(errors.invalid(where, path, "must be unique"))
        seen.add(path)
    return causes


def _check_resources(resources: Json, field: str) -> list[StatusCause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return list(_resource_causes(tuple(limits.items()), tuple(requests.items()), field))


@functools.lru_cache(maxsize=4096)
def _resource_causes(
    limits: tuple[tuple[str, str], ...], requests: tuple[tuple[str, str], ...], field: str
) -> tuple[StatusCause, ...]:
    """Replicas ask for the same again and again."""
    causes: list[StatusCause] = []
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, _ in amounts:
            causes += check_container_resource(name, f"{field}.{part}[{name}]")
        causes += check_amounts(dict(amounts), f"{field}.{part}")
    limit_of = dict(limits)
    for name, amount in requests:
        limit = limit_of.get(name)
        if limit is None:
            if is_extended(name):
                detail = "Limit must be set for non overcommitable resources"
                causes.append(errors.required(f"{field}.limits", detail))
            continue
        if is_extended(name) and nanos(amount) != nanos(limit):
            detail = f"must be equal to {name} limit of {limit}"
            causes.append(errors.invalid(f"{field}.requests", amount, detail))
        elif nanos(amount) > nanos(limit):
            detail = f"must be less than or equal to {name} limit of {limit}"
            causes.append(errors.invalid(f"{field}.requests", amount, detail))
    return tuple(causes)


def _check_volumes(volumes: Any, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for index, volume in enumerate(volumes):
        where = f"{field}[{index}]"
        name = volume.get("name", "")
        causes += names.check_given(names.label_1123, name, f"{where}.name")
        sources = [key for key in volume if key != "name"]
        causes += containers.check_volume(volume, where)
        causes += [
            errors.forbidden(f"{where}.{source}", "may not specify more than 1 volume type")
            for source in sources[1:]
        ]
    return causes + check_unique(
        (f"{field}[{index}].name", volume["name"])
        for index, volume in enumerate(volumes)
        if volume.get("name")
    )


def check_toleration(toleration: Json, field: str) -> list[StatusCause]:
    """One toleration."""
    causes: list[StatusCause] = []
    key, operator = toleration.get("key", ""), toleration.get("operator", "") or "Equal"
    value, effect = toleration.get("value", ""), toleration.get("effect", "")
    causes += names.check_given(names.qualified_name, key, f"{field}.key")
    if not key and operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        causes.append(errors.invalid(f"{field}.operator", operator, detail))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        causes.append(errors.invalid(f"{field}.effect", effect, detail))
    if operator == "Exists" and value:
        causes.append(
            errors.invalid(f"{field}.operator", toleration, "value must be empty when `operator` is 'Exists'")
        )
    elif value and operator == "Equal":
        causes += names.check(names.label_value, value, f"{field}.operator")
    elif operator in ("Lt", "Gt") and tolerations.integer(value) is None:
        detail = "must be a decimal integer of 64 bits, without a plus sign or leading zeros"
        causes.append(errors.invalid(f"{field}.value", value, detail))
    return causes


def _check_spread(constraints: Any, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    seen: set[tuple[str, str]] = set()
    for index, item in enumerate(constraints):
        where = f"{field}[{index}]"
        pair = (item.get("topologyKey", ""), item.get("whenUnsatisfiable", ""))
        if pair in seen:
            causes.append(
                errors.duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{pair[0]}, {pair[1]}}}")
            )
        seen.add(pair)
        if item.get("labelSelector"):
            causes += check_label_selector(item["labelSelector"], f"{where}.labelSelector")
        if item.get("minDomains") is not None and pair[1] != "DoNotSchedule":
            detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {pair[1]}"
            causes.append(errors.invalid(f"{where}.minDomains", item["minDomains"], detail))
    return causes
