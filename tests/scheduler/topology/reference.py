"""PodTopologySpread and InterPodAffinity straight from the specification.

Source: behaviour/scheduler B2 and B9. plain Python over JSON objects, pod by pod and node by node, without anything
that the plugins use. Slow and obvious on purpose.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]
Scores = dict[str, int] | None
"""By node; None is Skip."""

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SPREAD_KEY = "node(s) didn't match pod topology spread constraints (missing required label)"
SPREAD_SKEW = "node(s) didn't match pod topology spread constraints"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI = "node(s) didn't match pod anti-affinity rules"
EXISTING = "node(s) didn't satisfy existing pods anti-affinity rules"
SYSTEM = [
    {"maxSkew": 3, "topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway"},
    {"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"},
]


class Cluster:
    """Objects as users wrote them. `pods` are those on nodes: uid → (pod, node name)."""

    def __init__(self) -> None:
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, tuple[Json, str]] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self.owners: dict[tuple[str, str, str], Json] = {}
        """(kind, namespace, name) → selector."""
        self.services: dict[tuple[str, str], dict[str, str]] = {}

    def placed(self) -> Iterator[tuple[Json, Json]]:
        """(pod, node) for pods whose node exists."""
        for pod, name in self.pods.values():
            if name in self.nodes:
                yield pod, self.nodes[name]


def labels_of(obj: Json) -> dict[str, str]:
    found: dict[str, str] = obj["metadata"].get("labels", {})
    return found


def selected(selector: Json | None, labels: dict[str, str]) -> bool:
    """Absent matches nothing, empty everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions", []))


def _holds(condition: Json, labels: dict[str, str]) -> bool:
    key, values = condition["key"], condition.get("values", [])
    match condition["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise AssertionError(condition)


# InterPodAffinity


def _terms(pod: Json, kind: str, when: str) -> list[Json]:
    found: list[Json] = pod["spec"].get("affinity", {}).get(kind, {}).get(when, [])
    return found


def _means(cluster: Cluster, owner: Json, term: Json, pod: Json) -> bool:
    """Whether a term of `owner` is about `pod`."""
    if not selected(term.get("labelSelector"), labels_of(pod)):
        return False
    namespace = pod["metadata"]["namespace"]
    named, selector = term.get("namespaces", []), term.get("namespaceSelector")
    if not named and selector is None:
        return bool(namespace == owner["metadata"]["namespace"])
    return namespace in named or selected(selector, cluster.namespaces.get(namespace, {}))


def affinity_filter(cluster: Cluster, pod: Json) -> dict[str, str]:
    """Node → reason, "" where the pod may run."""
    wanted = _terms(pod, "podAffinity", REQUIRED)
    unwanted = _terms(pod, "podAntiAffinity", REQUIRED)
    existing: Counter[tuple[str, str]] = Counter()
    near: Counter[tuple[str, str]] = Counter()
    away: Counter[tuple[str, str]] = Counter()
    for other, node in cluster.placed():
        labels = labels_of(node)
        for term in _terms(other, "podAntiAffinity", REQUIRED):
            if _means(cluster, other, term, pod) and term["topologyKey"] in labels:
                existing[(term["topologyKey"], labels[term["topologyKey"]])] += 1
        if wanted and all(_means(cluster, pod, term, other) for term in wanted):
            for term in wanted:
                if term["topologyKey"] in labels:
                    near[(term["topologyKey"], labels[term["topologyKey"]])] += 1
        for term in unwanted:
            if _means(cluster, pod, term, other) and term["topologyKey"] in labels:
                away[(term["topologyKey"], labels[term["topologyKey"]])] += 1
    is_first = not near and all(_means(cluster, pod, term, pod) for term in wanted)
    found = {}
    for name, node in cluster.nodes.items():
        labels = labels_of(node)
        keys = [term["topologyKey"] for term in wanted]
        has_keys = all(key in labels for key in keys)
        if wanted and not (has_keys and (is_first or all((key, labels[key]) in near for key in keys))):
            found[name] = AFFINITY
        elif any((key, value) in away for key, value in labels.items()):
            found[name] = ANTI
        elif any((key, value) in existing for key, value in labels.items()):
            found[name] = EXISTING
        else:
            found[name] = ""
    return found


def affinity_score(cluster: Cluster, pod: Json, feasible: Iterable[str], hard: int, ignores: bool) -> Scores:
    """Normalised scores of the feasible nodes. `hard`: hardPodAffinityWeight; `ignores`: whether pods without
    preferences of their own get no score."""
    liked, disliked = _terms(pod, "podAffinity", PREFERRED), _terms(pod, "podAntiAffinity", PREFERRED)
    if ignores and not liked and not disliked:
        return None
    sums: dict[tuple[str, str], int] = {}
    for other, node in cluster.placed():
        booked: list[tuple[Json, int]] = []
        for sign, own, theirs in ((1, liked, "podAffinity"), (-1, disliked, "podAntiAffinity")):
            for each in own:
                if _means(cluster, pod, each["podAffinityTerm"], other):
                    booked.append((each["podAffinityTerm"], sign * each["weight"]))
            for each in _terms(other, theirs, PREFERRED):
                if _means(cluster, other, each["podAffinityTerm"], pod):
                    booked.append((each["podAffinityTerm"], sign * each["weight"]))
        for term in _terms(other, "podAffinity", REQUIRED):
            if hard and _means(cluster, other, term, pod):
                booked.append((term, hard))
        for term, weight in booked:
            key = term["topologyKey"]
            if key in labels_of(node):
                pair = (key, labels_of(node)[key])
                sums[pair] = sums.get(pair, 0) + weight
    if not sums:
        return None
    raw = {
        name: sum(sums.get(pair, 0) for pair in labels_of(cluster.nodes[name]).items()) for name in feasible
    }
    lowest, highest = min(raw.values(), default=0), max(raw.values(), default=0)
    if lowest == highest:
        return dict.fromkeys(raw, 0)
    return {name: int(100 * ((score - lowest) / (highest - lowest))) for name, score in raw.items()}


# PodTopologySpread


def _constraints(cluster: Cluster, pod: Json, defaults: list[Json], when: str) -> tuple[list[Json], bool]:
    """(constraints, whether they are the pod's own); selectors as lists to be met together."""
    meta = pod["metadata"]
    own = pod["spec"].get("topologySpreadConstraints", [])
    if own:
        found = []
        for each in own:
            if each["whenUnsatisfiable"] == when:
                same = [
                    {"matchLabels": {key: labels_of(pod)[key]}}
                    for key in each.get("matchLabelKeys", [])
                    if key in labels_of(pod)
                ]
                found.append({**each, "selectors": [each.get("labelSelector"), *same]})
        return found, True
    selectors: list[Json] = [
        {"matchLabels": wanted}
        for (namespace, _), wanted in cluster.services.items()
        if namespace == meta["namespace"] and wanted and selected({"matchLabels": wanted}, labels_of(pod))
    ]
    for ref in meta.get("ownerReferences", []):
        owner = cluster.owners.get((ref["kind"], meta["namespace"], ref["name"]))
        if ref.get("controller") and owner is not None:
            selectors.append(owner)
    if not selectors:
        return [], False
    chosen = [each for each in defaults if each["whenUnsatisfiable"] == when]
    return [{**each, "selectors": selectors} for each in chosen], False


def _counts_pod(constraint: Json, pod: Json, other: Json) -> bool:
    meta = other["metadata"]
    if not any(constraint["selectors"]) and None not in constraint["selectors"]:
        return False  # an empty selector: kube-scheduler counts the pod itself only
    return (
        meta["namespace"] == pod["metadata"]["namespace"]
        and "deletionTimestamp" not in meta
        and all(selected(each, labels_of(other)) for each in constraint["selectors"])
    )


def _honoured(constraint: Json, pod: Json, node: Json) -> bool:
    """The inclusion policies."""
    spec = pod["spec"]
    if constraint.get("nodeAffinityPolicy") != "Ignore":
        if not selected({"matchLabels": spec.get("nodeSelector", {})}, labels_of(node)):
            return False
        required = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
        if required is not None and not any(
            selected(term, labels_of(node)) for term in required["nodeSelectorTerms"]
        ):
            return False
    if constraint.get("nodeTaintsPolicy") == "Honor":
        bears = {each["key"] for each in spec.get("tolerations", [])}
        for taint in node["spec"].get("taints", []):
            if taint["effect"] in ("NoSchedule", "NoExecute") and taint["key"] not in bears:
                return False
    return True


def spread_filter(cluster: Cluster, pod: Json, defaults: list[Json]) -> dict[str, str]:
    """Node → reason, "" where the pod may run."""
    constraints, _ = _constraints(cluster, pod, defaults, "DoNotSchedule")
    found = dict.fromkeys(cluster.nodes, "")
    keys = [each["topologyKey"] for each in constraints]
    tables = []
    for each in constraints:
        key = each["topologyKey"]
        domains: Counter[str] = Counter()
        for name, node in cluster.nodes.items():
            labels = labels_of(node)
            if all(one in labels for one in keys) and _honoured(each, pod, node):
                domains[labels[key]] += sum(
                    _counts_pod(each, pod, other) for other, at in cluster.pods.values() if at == name
                )
        lowest = min(domains.values(), default=2**31 - 1)
        if len(domains) < each.get("minDomains", 1):
            lowest = 0
        tables.append((each, domains, lowest))
    for name, node in cluster.nodes.items():
        for each, domains, lowest in tables:
            value = labels_of(node).get(each["topologyKey"])
            if value is None:
                found[name] = SPREAD_KEY
                break
            is_self = all(selected(one, labels_of(pod)) for one in each["selectors"])
            if domains.get(value, 0) + is_self - lowest > each["maxSkew"]:
                found[name] = SPREAD_SKEW
                break
    return found


def spread_score(
    cluster: Cluster, pod: Json, feasible: Iterable[str], defaults: list[Json], is_system: bool
) -> Scores:
    """Normalised scores of the feasible nodes. `is_system`: `defaults` are the built-in ones."""
    constraints, is_own = _constraints(cluster, pod, defaults, "ScheduleAnyway")
    if not constraints:
        return None
    needs_keys = is_own or not is_system
    keys = [each["topologyKey"] for each in constraints]

    def has_keys(node: Json) -> bool:
        return not needs_keys or all(key in labels_of(node) for key in keys)

    names = list(feasible)
    scored = [name for name in names if has_keys(cluster.nodes[name])]
    raw: dict[str, float] = dict.fromkeys(scored, 0.0)
    for each in constraints:
        key = each["topologyKey"]
        if key == HOSTNAME:
            domain_count = len(scored)
        else:
            domain_count = len({labels_of(cluster.nodes[name]).get(key) for name in scored})
        by_value: dict[str, int] = defaultdict(int)
        by_node: dict[str, int] = defaultdict(int)
        for other, node in cluster.placed():
            if _counts_pod(each, pod, other):
                by_node[node["metadata"]["name"]] += 1
                if has_keys(node) and _honoured(each, pod, node) and key in labels_of(node):
                    by_value[labels_of(node)[key]] += 1
        for name in scored:
            value = labels_of(cluster.nodes[name]).get(key)
            if value is not None:
                count = by_node[name] if key == HOSTNAME else by_value[value]
                raw[name] += count * math.log(domain_count + 2) + (each["maxSkew"] - 1)
    rounded = {name: math.floor(score + 0.5) for name, score in raw.items()}
    highest, lowest = max(rounded.values(), default=0), min(rounded.values(), default=0)
    found = dict.fromkeys(names, 0)
    for name, score in rounded.items():
        found[name] = 100 * (highest + lowest - score) // highest if highest > 0 else 100
    return found
