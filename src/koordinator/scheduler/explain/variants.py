"""The same pod with one demand less. Pure: each variant is a new pod object; whether it fits is asked later."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from koordinator.api import node_affinity, readable, resource_vector, resources, tolerations
from koordinator.api.affinity import Affinity, NodeAffinity, NodeSelector, PodAffinity, Taint, Toleration
from koordinator.api.core import Container, Pod, PodSpec
from koordinator.api.quantity import RawQuantity
from koordinator.scheduler.config.default_plugins import FIT

T = TypeVar("T")


class Variant(msgspec.Struct, frozen=True):
    """A changed pod. `kind` names the sort of change, `change` tells it to people, `plugin` is the filter
    that it should satisfy."""

    kind: str
    change: str
    plugin: str
    apply: Callable[[Pod], Pod]


def for_selectors(pod: Pod) -> list[Variant]:
    """Without one term of the node selector, one expression of the required affinity, or all of either."""
    found = [
        _variant(
            "nodeSelector", f"remove {key}={value} from the node selector", partial(_without_selector, {key})
        )
        for key, value in sorted(pod.spec.node_selector.items())
    ]
    if len(pod.spec.node_selector) > 1:
        keys = set(pod.spec.node_selector)
        apply = partial(_without_selector, keys)
        found.append(_variant("nodeSelector", "remove the whole node selector", apply))
    required = node_affinity.required(pod.spec)
    if required is None:
        return found
    if len(required.node_selector_terms) == 1:
        [term] = required.node_selector_terms
        if len(term.match_expressions) + len(term.match_fields) > 1:
            for number, each in enumerate(term.match_expressions):
                rest = replace(term, match_expressions=_without(term.match_expressions, number))
                text = f"remove {each.key} {each.operator} {each.values} from the required node affinity"
                wanted = NodeSelector(node_selector_terms=[rest])
                found.append(_variant("nodeAffinity", text, partial(_with_required, wanted)))
    found.append(_variant("nodeAffinity", "remove the required node affinity", partial(_with_required, None)))
    return found


def for_taints(taints: Iterable[Taint]) -> Variant:
    """Tolerating these taints."""
    listed = sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect))
    text = ", ".join(tolerations.text_of(taint) for taint in listed)
    more = [Toleration(key=t.key, operator="Equal", value=t.value, effect=t.effect) for t in listed]

    def apply(pod: Pod) -> Pod:
        return _with_spec(pod, tolerations=[*pod.spec.tolerations, *more])

    return Variant("toleration", f"tolerate {text}", "TaintToleration", apply)


def for_pod_terms(pod: Pod) -> list[Variant]:
    """Without one required term about other pods."""
    affinity = pod.spec.affinity
    if affinity is None:
        return []
    found = []
    for field, words in (("pod_affinity", "pod affinity"), ("pod_anti_affinity", "pod anti-affinity")):
        own: PodAffinity | None = getattr(affinity, field)
        for number, term in enumerate(own.required_during_scheduling_ignored_during_execution if own else ()):
            text = f"remove the required {words} term {number + 1} (over {term.topology_key})"
            apply = partial(_without_pod_term, field, number)
            found.append(Variant("podAffinity", text, "InterPodAffinity", apply))
    return found


def for_spreading(pod: Pod) -> list[Variant]:
    """Without one constraint that must hold."""
    found = []
    for number, each in enumerate(pod.spec.topology_spread_constraints):
        if each.when_unsatisfiable != "ScheduleAnyway":
            text = f"remove the spread constraint over {each.topology_key} (maxSkew {each.max_skew})"
            apply = partial(_without_spread, number)
            found.append(Variant("topologySpread", text, "PodTopologySpread", apply))
    return found


def for_ports(pod: Pod) -> list[Variant]:
    """Without one host port."""
    ports = sorted({port.host_port for c in _containers(pod.spec) for port in c.ports if port.host_port})
    return [
        Variant("hostPort", f"do without host port {port}", "NodePorts", partial(_without_port, port))
        for port in ports
    ]


def _exact(name: str, amount: int) -> str:
    """Return an amount that somebody will write into a manifest, and that must not be rounded up."""
    is_short = readable.is_cpu(name) or not readable.is_bytes(name)
    return (resource_vector.readable_cell if is_short else resource_vector.amount_text)(name, amount)


def for_requests(pod: Pod, wanted: Mapping[str, int], at_most: Mapping[str, int]) -> Variant:
    """Requesting no more than `at_most`; both map resources to column amounts, `wanted` is what the pod
    requests now."""
    parts = [
        f"{name} request from {resource_vector.readable_cell(name, wanted[name])} to at most "
        f"{_exact(name, amount)}"
        for name, amount in at_most.items()
    ]

    def apply(pod: Pod) -> Pod:
        for name, amount in at_most.items():
            pod = _lowered(pod, name, wanted[name], amount)
        return pod

    return Variant("requests", f"lower the {' and the '.join(parts)}", FIT, apply)


def _variant(kind: str, change: str, apply: Callable[[Pod], Pod]) -> Variant:
    return Variant(kind, change, "NodeAffinity", apply)


def _with_spec(pod: Pod, **members: Any) -> Pod:
    return replace(pod, spec=replace(pod.spec, **members))


def _without(items: list[T], number: int) -> list[T]:
    return items[:number] + items[number + 1 :]


def _without_selector(keys: set[str], pod: Pod) -> Pod:
    kept = {key: value for key, value in pod.spec.node_selector.items() if key not in keys}
    return _with_spec(pod, node_selector=kept)


def _with_required(required: NodeSelector | None, pod: Pod) -> Pod:
    affinity = pod.spec.affinity or Affinity()
    own = affinity.node_affinity or NodeAffinity()
    own = replace(own, required_during_scheduling_ignored_during_execution=required)
    return _with_spec(pod, affinity=replace(affinity, node_affinity=own))


def _without_pod_term(field: str, number: int, pod: Pod) -> Pod:
    assert pod.spec.affinity is not None, pod.key
    own: PodAffinity = getattr(pod.spec.affinity, field)
    terms = _without(own.required_during_scheduling_ignored_during_execution, number)
    own = replace(own, required_during_scheduling_ignored_during_execution=terms)
    return _with_spec(pod, affinity=replace(pod.spec.affinity, **{field: own}))


def _without_spread(number: int, pod: Pod) -> Pod:
    kept = _without(pod.spec.topology_spread_constraints, number)
    return _with_spec(pod, topology_spread_constraints=kept)


def _without_port(number: int, pod: Pod) -> Pod:
    def strip(container: Container) -> Container:
        return replace(container, ports=[port for port in container.ports if port.host_port != number])

    return replace(pod, spec=_each_container(pod.spec, strip))


def _containers(spec: PodSpec) -> list[Container]:
    return [*spec.containers, *spec.init_containers]


def _each_container(spec: PodSpec, change: Callable[[Container], Container]) -> PodSpec:
    return replace(
        spec,
        containers=[change(c) for c in spec.containers],
        init_containers=[change(c) for c in spec.init_containers],
    )


def _lowered(pod: Pod, name: str, wanted: int, at_most: int) -> Pod:
    """Return every container's request scaled by the same factor, rounded down; overhead stays as it is."""
    overhead = resource_vector.amount(name, pod.spec.overhead.get(name, 0))
    own, left = wanted - overhead, max(at_most - overhead, 0)

    def scale(requests: Mapping[str, RawQuantity]) -> dict[str, RawQuantity]:
        scaled = dict(requests)
        if name in scaled and own > 0:
            number = resource_vector.amount(name, scaled[name]) * left // own
            scaled[name] = f"{number}m" if name == resources.CPU else str(number)
        return scaled

    def lower(container: Container) -> Container:
        own_resources = replace(container.resources, requests=scale(container.resources.requests))
        return replace(container, resources=own_resources)

    spec = _each_container(pod.spec, lower)
    if spec.resources is not None:
        spec = replace(spec, resources=replace(spec.resources, requests=scale(spec.resources.requests)))
    return replace(pod, spec=spec)
