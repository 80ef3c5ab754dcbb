"""Warnings about pods and pod templates that the API server takes, and that will hardly do what was meant.

Source: pkg/api/pod/warnings.go and the strategies of workloads of kubernetes/kubernetes. Left out: overlapping paths in
volumes, volumes that no kubelet supports any more, annotations for seccomp and AppArmor.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from koordinator.local.schema import names
from koordinator.local.schema.builtin.checks.common import nanos

Json = dict[str, Any]

_TEMPLATES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (),
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): ("spec", "template"),
    ("apps", "DaemonSet"): ("spec", "template"),
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
    ("apps", "StatefulSet"): ("spec", "template"),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("batch", "Job"): ("spec", "template"),
}
"""Group and kind → where its pods are described."""

_FREELY_NAMED = ("DaemonSet", "PodTemplate", "StatefulSet")
"""Kinds whose name may be no DNS label without a warning."""

_NODE_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": (
        'deprecated since v1.17; use "topology.kubernetes.io/region" instead'
    ),
    "failure-domain.beta.kubernetes.io/zone": (
        'deprecated since v1.17; use "topology.kubernetes.io/zone" instead'
    ),
    "beta.kubernetes.io/instance-type": (
        'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead'
    ),
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
_BYTES = ("memory", "ephemeral-storage")
_SELECTS_NOTHING = "a null labelSelector results in matching no pod"


def warnings_of(group: str, kind: str, obj: Json, old: Json | None) -> list[str]:
    """Return the warnings about an object that was found valid; `old` is what it was before an update."""
    path = _TEMPLATES.get((group, kind))
    if path is None:
        return []
    if old is not None:
        is_same = obj["metadata"].get("generation") == old["metadata"].get("generation")
        return [] if is_same or kind == "Pod" else list(_of_template(obj, path))
    return [*_of_name(kind, obj["metadata"]["name"]), *_of_template(obj, path)]


def _of_name(kind: str, name: str) -> Iterator[str]:
    if kind not in _FREELY_NAMED and (reasons := list(names.faults(names.label_1123, name))):
        places = "the Pod's hostname" if kind == "Pod" else "Pod names and hostnames"
        surprise = "which can result in surprising behavior; a DNS label is recommended"
        yield f"metadata.name: this is used in {places}, {surprise}: [{' '.join(reasons)}]"


def _of_template(obj: Json, path: tuple[str, ...]) -> Iterator[str]:
    template = obj
    for name in path:
        template = template.get(name) or {}
    spec, field = template.get("spec") or {}, ".".join((*path, "spec"))
    for key in spec.get("nodeSelector") or {}:
        if key in _NODE_LABELS:
            yield f"{field}.nodeSelector[{key}]: {_NODE_LABELS[key]}"
    yield from _of_affinity(spec.get("affinity") or {}, f"{field}.affinity")
    for index, each in enumerate(spec.get("topologySpreadConstraints") or ()):
        where, key = f"{field}.topologySpreadConstraints[{index}]", each.get("topologyKey")
        if key in _NODE_LABELS:
            yield f"{where}.topologyKey: {key} is {_NODE_LABELS[key]}"
        if each.get("labelSelector") is None:
            yield f"{where}.labelSelector: {_SELECTS_NOTHING}"
    yield from _of_repeated(spec.get("hostAliases") or (), f"{field}.hostAliases", "ip")
    secrets = spec.get("imagePullSecrets") or ()
    yield from _of_repeated(secrets, f"{field}.imagePullSecrets", "name")
    for index, each in enumerate(secrets):
        if not each.get("name"):
            yield f'{field}.imagePullSecrets[{index}].name: invalid empty name ""'
    yield from _of_fractions(spec.get("overhead") or {}, f"{field}.overhead")
    yield from _of_containers(spec, field)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        detail = "must be >= 0; negative values are invalid and will be treated as 1"
        yield f"{field}.terminationGracePeriodSeconds: {detail}"


def _of_affinity(affinity: Json, field: str) -> Iterator[str]:
    node = affinity.get("nodeAffinity") or {}
    where = f"{field}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for index, term in enumerate(required.get("nodeSelectorTerms") or ()):
        yield from _of_node_term(term, f"{where}[{index}]")
    where = f"{field}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
    for index, each in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        term, at = each.get("preference") or {}, f"{where}[{index}].preference"
        yield from _of_node_term(term, at)
        for number, item in enumerate(term.get("matchExpressions") or ()):
            for place, value in enumerate(item.get("values") or ()):
                if reason := names.label_value(value):
                    yield f"{at}.matchExpressions[{number}].values[{place}]: {value} is invalid, {reason}"
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        where = f"{field}.{kind}.requiredDuringSchedulingIgnoredDuringExecution"
        for index, term in enumerate(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ()):
            if term.get("labelSelector") is None:
                yield f"{where}[{index}].labelSelector: {_SELECTS_NOTHING}"
        where = f"{field}.{kind}.preferredDuringSchedulingIgnoredDuringExecution"
        for index, term in enumerate(terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
            if (term.get("podAffinityTerm") or {}).get("labelSelector") is None:
                yield f"{where}[{index}].podAffinityTerm.labelSelector: {_SELECTS_NOTHING}"


def _of_node_term(term: Json, field: str) -> Iterator[str]:
    for index, item in enumerate(term.get("matchExpressions") or ()):
        if (key := item.get("key")) in _NODE_LABELS:
            yield f"{field}.matchExpressions[{index}].key: {key} is {_NODE_LABELS[key]}"


def _of_repeated(items: Any, field: str, name: str) -> Iterator[str]:
    seen = set()
    for index, each in enumerate(items):
        value = each.get(name) or ""
        if value in seen:
            yield f'{field}[{index}].{name}: duplicate {name} "{value}"'
        seen.add(value)


def _of_fractions(amounts: Json, field: str) -> Iterator[str]:
    """Warn about bytes in parts: `100m` of memory is a tenth of a byte."""
    for name in _BYTES:
        if name in amounts and nanos(amounts[name]) % 10**9:
            yield f'{field}[{name}]: fractional byte value "{amounts[name]}" is invalid, must be an integer'


def _of_containers(spec: Json, field: str) -> Iterator[str]:
    ports: dict[tuple[Any, Any], list[tuple[str, Json]]] = {}
    port_names: dict[str, str] = {}
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for number, container in enumerate(spec.get(group) or ()):
            where = f"{field}.{group}[{number}]"
            for kind in ("limits", "requests"):
                amounts = (container.get("resources") or {}).get(kind) or {}
                yield from _of_fractions(amounts, f"{where}.resources.{kind}")
            yield from _of_variables(container.get("env") or (), f"{where}.env")
            for index, port in enumerate(container.get("ports") or ()):
                at = f"{where}.ports[{index}]"
                others = ports.setdefault((port.get("containerPort"), port.get("protocol")), [])
                yield from _of_port(port, at, others)
                others.append((at, port))
                name = port.get("name")
                first = port_names.setdefault(name, at) if name else at
                if first != at:
                    use = f"services and probes that select ports by name will use {first}"
                    yield f'{at}: duplicate port name "{name}" with {first}, {use}'


def _of_variables(variables: Any, field: str) -> Iterator[str]:
    seen = set()
    for index, each in enumerate(variables):
        name, value = each.get("name"), each.get("value") or ""
        own = f"$({name})"
        if name in seen and (each.get("valueFrom") or value == own or own not in value):
            hides = f'hides previous definition of "{name}"'
            yield f"{field}[{index}]: {hides}, which may be dropped when using apply"
        seen.add(name)


def _of_port(port: Json, field: str, others: list[tuple[str, Json]]) -> Iterator[str]:
    """Warn about a port that other containers, or this one, have already."""
    address, number = port.get("hostIP") or "", port.get("hostPort") or 0
    for where, other in others:
        other_address, other_number = other.get("hostIP") or "", other.get("hostPort") or 0
        if (address, number) == (other_address, other_number):
            yield f"{field}: duplicate port definition with {where}"
        elif not number or not other_number:
            yield f"{field}: overlapping port definition with {where}"
        elif number == other_number and (not address) != (not other_address):
            yield f"{field}: dangerously ambiguous port definition with {where}"
