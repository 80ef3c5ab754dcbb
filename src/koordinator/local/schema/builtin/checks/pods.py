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
    check_unique,
    is_extended,
    nanos,
)

Json = dict[str, Any]

_HOSTNAME_BYTES_MAX = 64


def check_node_selector(selector: Json, field: str) -> list[StatusCause]:
    """Check a NodeSelector."""
    if selector.get("nodeSelectorTerms"):
        return []
    return [errors.required(f"{field}.nodeSelectorTerms", "must have at least one node selector term")]


def check_node_term(term: Json, field: str) -> list[StatusCause]:
    """Check a NodeSelectorTerm."""
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


_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")


def check_spec(spec: Json, field: str) -> list[StatusCause]:
    """Check what the parts of a PodSpec may not have in common, and what is kept from init and ephemeral containers."""
    causes: list[StatusCause] = []
    for index, container in enumerate(spec.get("initContainers") or ()):
        causes += _check_init(container, f"{field}.initContainers[{index}]")
    causes += _check_ephemeral(spec, f"{field}.ephemeralContainers")
    for groups in (("volumes",), ("containers", "initContainers")):
        causes += check_unique(
            (f"{field}.{group}[{index}].name", each["name"])
            for group in groups
            for index, each in enumerate(spec.get(group) or ())
            if each.get("name")
        )
    causes += _check_host_ports(spec.get("containers") or (), f"{field}.containers")
    causes += _check_sysctls(spec, field) + _check_node_ports(spec, field)
    causes += _check_hostname_override(spec, f"{field}.hostnameOverride")
    causes += _check_spread(spec.get("topologySpreadConstraints") or (), f"{field}.topologySpreadConstraints")
    gates = [
        (f"{field}.schedulingGates[{index}]", gate.get("name") or "")
        for index, gate in enumerate(spec.get("schedulingGates") or ())
    ]
    causes += [cause for path, gate in gates for cause in names.check(names.qualified_name, gate, path)]
    return causes + check_unique(gates)


def _check_hostname_override(spec: Json, field: str) -> list[StatusCause]:
    name = spec.get("hostnameOverride")
    if name is None:
        return []
    causes = [
        errors.forbidden(field, f"may not be specified when {other} is true")
        for other in ("setHostnameAsFQDN", "hostNetwork")
        if spec.get(other)
    ]
    if len(name) > _HOSTNAME_BYTES_MAX:
        causes.append(errors.too_long(field, _HOSTNAME_BYTES_MAX))
    return causes + names.check(names.subdomain_1123, name, field)


def check_topology_key(key: str, field: str) -> list[StatusCause]:
    """Check the key of a PodAffinityTerm."""
    causes = [] if key else [errors.required(field, "can not be empty")]
    return causes + names.check(names.qualified_name, key, field)


def check_namespaces(namespaces: list[str], field: str) -> list[StatusCause]:
    """Check the namespaces of a PodAffinityTerm; as upstream, the field is told in the singular."""
    where = field.removesuffix("s")
    return [cause for name in namespaces for cause in names.check(names.label_1123, name, where)]


def _check_node_ports(spec: Json, field: str) -> list[StatusCause]:
    """Check that containers in their node's network have its ports."""
    if not spec.get("hostNetwork"):
        return []
    return [
        errors.invalid(
            f"{field}.{group}[{i}].ports[{j}].hostPort",
            port["hostPort"],
            "must match `containerPort` when `hostNetwork` is true",
        )
        for group in ("containers", "initContainers")
        for i, container in enumerate(spec.get(group) or ())
        for j, port in enumerate(container.get("ports") or ())
        if port.get("hostPort") and port["hostPort"] != port.get("containerPort", 0)
    ]


def _check_sysctls(spec: Json, field: str) -> list[StatusCause]:
    """Check that a pod in its node's network sets none of its parameters."""
    if not spec.get("hostNetwork"):
        return []
    return [
        errors.invalid(
            f"{field}.securityContext.sysctls[{index}].name",
            each["name"],
            "may not be specified when 'hostNetwork' is true",
        )
        for index, each in enumerate((spec.get("securityContext") or {}).get("sysctls") or ())
        if (each.get("name") or "").replace("/", ".").startswith("net.")
    ]


def check_mounts(spec: Json, field: str, more_volumes: Iterable[str] = ()) -> list[StatusCause]:
    """Check that a pod has the volumes that its containers mount. `more_volumes` are names that it will get from its
    workload (claim templates of a StatefulSet)."""
    volumes = {volume.get("name", "") for volume in spec.get("volumes") or ()}.union(more_volumes)
    return [
        errors.not_found(f"{field}.{group}[{index}].volumeMounts[{number}].name", mount["name"])
        for group in ("initContainers", "containers", "ephemeralContainers")
        for index, container in enumerate(spec.get(group) or ())
        for number, mount in enumerate(container.get("volumeMounts") or ())
        if mount.get("name") and mount["name"] not in volumes
    ]


def check_pod(pod: Json) -> list[StatusCause]:
    """Check a Pod."""
    return check_mounts(pod.get("spec") or {}, "spec")


def check_template(template: Json, field: str) -> list[StatusCause]:
    """Check a pod template: labels and annotations."""
    meta = template.get("metadata") or {}
    causes = names.check_labels(meta.get("labels"), f"{field}.labels")  # as the API server names them
    if (template.get("spec") or {}).get("ephemeralContainers"):
        why = "ephemeral containers not allowed in pod template"
        causes.append(errors.forbidden(f"{field}.spec.ephemeralContainers", why))
    return causes + names.check_annotations(meta.get("annotations"), f"{field}.annotations")


def check_container(container: Json, field: str) -> list[StatusCause]:
    """Check a container of any kind."""
    causes: list[StatusCause] = []
    image = container.get("image", "")
    if not image:
        causes.append(errors.required(f"{field}.image"))
    elif image != image.strip():
        causes.append(errors.invalid(f"{field}.image", image, "must not have leading or trailing whitespace"))
    causes += check_unique(
        (f"{field}.ports[{index}].name", port["name"])
        for index, port in enumerate(container.get("ports") or ())
        if port.get("name")
    )
    causes += _check_paths(container.get("volumeMounts") or (), f"{field}.volumeMounts")
    for probe in ("livenessProbe", "startupProbe"):
        threshold = (container.get(probe) or {}).get("successThreshold", 1)
        if threshold != 1:
            causes.append(errors.invalid(f"{field}.{probe}.successThreshold", threshold, "must be 1"))
    period_s = (container.get("readinessProbe") or {}).get("terminationGracePeriodSeconds")
    if period_s is not None:
        where, why = (
            f"{field}.readinessProbe.terminationGracePeriodSeconds",
            "must not be set for readinessProbes",
        )
        causes.append(errors.invalid(where, period_s, why))
    return causes


def _check_init(container: Json, field: str) -> list[StatusCause]:
    restart = container.get("restartPolicy")
    if restart == "Always":
        return []
    why = "may not be set for init containers without restartPolicy=Always"
    return [
        errors.forbidden(f"{field}.{part}", why)
        for part in (*_PROBES, "lifecycle")
        if container.get(part) is not None
    ]


def _check_ephemeral(spec: Json, field: str) -> list[StatusCause]:
    others = {
        each.get("name") for group in ("containers", "initContainers") for each in spec.get(group) or ()
    }
    taken = set(others)
    causes: list[StatusCause] = []
    for index, container in enumerate(spec.get("ephemeralContainers") or ()):
        where, name = f"{field}[{index}]", container.get("name", "")
        if name in taken:
            causes.append(errors.duplicate(f"{where}.name", name))
        taken.add(name)
        causes += containers.check_ephemeral(container, where, others)
    return causes


def check_handler(handler: Json, field: str) -> list[StatusCause]:
    """Check that a probe or hook has one handler."""
    handlers = [name for name in _HANDLERS if handler.get(name) is not None]
    if not handlers:
        return [errors.required(field, "must specify a handler type")]
    why = "may not specify more than 1 handler type"
    return [errors.forbidden(f"{field}.{name}", why) for name in handlers[1:]]


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


def check_variable(variable: Json, field: str) -> list[StatusCause]:
    """Check that an EnvVar has its value from one place."""
    source, where = variable.get("valueFrom"), f"{field}.valueFrom"
    if source is None:
        return []
    if not source:
        detail = (
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or "
            "`fileKeyRef`"
        )
        return [errors.invalid(where, "", detail)]
    if variable.get("value"):
        return [errors.invalid(where, "", "may not be specified when `value` is not empty")]
    if len(source) > 1:
        return [errors.invalid(where, "", "may not have more than one field specified at a time")]
    return []


def _check_descending(path: str, field: str) -> list[StatusCause]:
    """Check that a path stays below where it begins."""
    causes = [errors.invalid(field, path, "must be a relative path")] if path.startswith("/") else []
    if ".." in path.split("/"):
        causes.append(errors.invalid(field, path, "must not contain '..'"))
    return causes


def _check_paths(mounts: Any, field: str) -> list[StatusCause]:
    causes = []
    for index, mount in enumerate(mounts):
        for name in ("subPath", "subPathExpr"):
            # As upstream, these fields are named without the number of the mount.
            causes += _check_descending(mount.get(name) or "", f"{field}.{name}")
        if mount.get("subPath") and mount.get("subPathExpr"):
            detail = "subPathExpr and subPath are mutually exclusive"
            causes.append(errors.invalid(f"{field}[{index}].subPathExpr", mount["subPathExpr"], detail))
    paths = [(f"{field}[{i}].mountPath", m["mountPath"]) for i, m in enumerate(mounts) if m.get("mountPath")]
    seen: set[str] = set()
    for where, path in paths:
        if path in seen:
            causes.append(errors.invalid(where, path, "must be unique"))
        seen.add(path)
    return causes


def check_resources(resources: Json, field: str) -> list[StatusCause]:
    """Check what containers request, and their limits."""
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


def check_volume(volume: Json, field: str) -> list[StatusCause]:
    """Check that a Volume has one source."""
    sources = [key for key in volume if key != "name"]
    why = "may not specify more than 1 volume type"
    return [errors.forbidden(f"{field}.{source}", why) for source in sources[1:]]


def check_toleration(toleration: Json, field: str) -> list[StatusCause]:
    """One toleration."""
    causes: list[StatusCause] = []
    key, given = toleration.get("key", ""), toleration.get("operator", "")
    operator = given or "Equal"
    value, effect = toleration.get("value", ""), toleration.get("effect", "")
    if not key and operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        causes.append(errors.invalid(f"{field}.operator", given, detail))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        causes.append(errors.invalid(f"{field}.effect", effect, detail))
    if operator == "Exists" and value:
        why = "value must be empty when `operator` is 'Exists'"
        causes.append(errors.invalid(f"{field}.operator", value, why))
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
        if not pair[0]:
            causes.append(errors.required(f"{where}.topologyKey", "can not be empty"))
        if pair in seen:
            causes.append(
                errors.duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{pair[0]}, {pair[1]}}}")
            )
        seen.add(pair)
        if item.get("minDomains") is not None and pair[1] != "DoNotSchedule":
            detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {pair[1]}"
            causes.append(errors.invalid(f"{where}.minDomains", item["minDomains"], detail))
    return causes
