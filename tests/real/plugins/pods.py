"""Random parts of pods, rich in what is rare: each function draws one field as the API server would store it."""

import random
from typing import Any

Json = dict[str, Any]

NAMESPACES = ("default", "team-a", "team-b", "other")
KEYS = ("app", "tier", "version", "team")
VALUES = ("a", "b", "c", "")
TOPOLOGY = (*("zone", "kubernetes.io/hostname") * 4, *("rack", "topology.kubernetes.io/zone") * 2, "missing")
NODE_KEYS = ("zone", "rack", "disk", "level", "topology.kubernetes.io/zone", "topology.kubernetes.io/region")
EXTENDED = ("example.com/card", "example.com/other", "kubernetes.io/batch-cpu")
CPU = ("0", "1m", "50m", "100m", "250m", "1", "1500m", "0.5", "2", "1500u", "0.1m", "3", "1e1", "7999m")
MEMORY = ("0", "1", "128Mi", "200Mi", "1Gi", "1G", "1e9", "1.5Gi", "1500m", "4Gi", "7Gi", "123456789", "64Ki")
STORAGE = ("0", "1Gi", "10Gi", "500Mi", "1")
COUNT = ("0", "1", "2", "3", "1k")
HUGE = ("0", "2Mi", "4Mi", "1Gi")
HUGE_AMOUNTS = {"cpu": ("1M", "4503599627370"), "memory": ("1Pi", "4Pi", "3Pi", "2.5Pi")}
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TAINT_KEYS = ("gpu", "dedicated", "node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready", "level")
IMAGES = ("web", "web:1", "db:latest", "registry:5000/tool", "registry:5000/tool:2", "x@sha256:0000", "")


def chance(rng: random.Random, percent: int) -> bool:
    return rng.random() * 100 < percent


def some(rng: random.Random, choices: tuple[Any, ...], most: int) -> list[Any]:
    return rng.sample(choices, rng.randint(0, min(most, len(choices))))


def labels(rng: random.Random) -> dict[str, str]:
    return {key: rng.choice(VALUES) for key in some(rng, KEYS, 3)}


def amounts(rng: random.Random, *, odd: bool = True) -> dict[str, str]:
    found = {}
    if chance(rng, 75):
        found["cpu"] = rng.choice(CPU)
    if chance(rng, 70):
        found["memory"] = rng.choice(MEMORY)
    if odd and chance(rng, 25):
        found["ephemeral-storage"] = rng.choice(STORAGE)
    if odd and chance(rng, 25):
        found[rng.choice(EXTENDED)] = rng.choice(COUNT)
    if odd and chance(rng, 15):
        found["hugepages-2Mi"] = rng.choice(HUGE)
    if odd and chance(rng, 4):
        name = rng.choice(("cpu", "memory"))
        found[name] = rng.choice(HUGE_AMOUNTS[name])
    return found


def container(rng: random.Random, name: str, *, odd: bool = True) -> Json:
    found: Json = {"name": name, "image": rng.choice(IMAGES), "resources": {}}
    if chance(rng, 85):
        found["resources"] = {"requests": amounts(rng, odd=odd)}
    return found


def containers(rng: random.Random, *, odd: bool = True) -> Json:
    """`containers`, `initContainers`, `overhead`, `resources`."""
    found: Json = {"containers": [container(rng, f"c{n}", odd=odd) for n in range(rng.randint(1, 3))]}
    if odd and chance(rng, 35):
        found["initContainers"] = [container(rng, f"i{n}") for n in range(rng.randint(1, 3))]
        for each in found["initContainers"]:
            if chance(rng, 50):
                each["restartPolicy"] = "Always"
    if odd and chance(rng, 15):
        found["overhead"] = {"cpu": rng.choice(CPU), "memory": rng.choice(MEMORY)}
    if odd and chance(rng, 15):
        found["resources"] = {"requests": _whole(rng, found)}
    return found


def _whole(rng: random.Random, spec: Json) -> Json:
    """Requests of a pod as a whole: no less than those of its containers, as the API server wants it."""
    for each in (*spec["containers"], *spec.get("initContainers", ())):
        each["resources"] = {
            "requests": {"cpu": rng.choice(CPU[:3]), "memory": rng.choice(MEMORY[:3])}
            if chance(rng, 60)
            else {}
        }
        for name in some(rng, ("cpu", "memory"), 2):
            each["resources"]["requests"].pop(name, None)
    whole = {
        "cpu": rng.choice(("500m", "1", "2500m")),
        "memory": rng.choice(("800Mi", "1Gi", "3G")),
        "hugepages-2Mi": rng.choice(HUGE),
    }
    return {name: whole[name] for name in some(rng, tuple(whole), 3)}


def resized(rng: random.Random, spec: Json) -> Json:
    """`status` of a pod on a node, in the middle of a resize: now and then a container has none, or half of it."""
    if not chance(rng, 25):
        return {}
    sidecars = [each for each in spec.get("initContainers", ()) if "restartPolicy" in each]
    found: Json = {
        "containerStatuses": [_resized(rng, each) for each in spec["containers"] if chance(rng, 80)],
        "initContainerStatuses": [_resized(rng, each) for each in sidecars if chance(rng, 80)],
    }
    if chance(rng, 40):
        reason = rng.choice(("Infeasible", "Deferred"))
        found["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return found


def _resized(rng: random.Random, container: Json) -> Json:
    pools = {"cpu": CPU, "memory": MEMORY}
    names = [name for name in container["resources"].get("requests", {}) if name in pools and chance(rng, 85)]
    found: Json = {"name": container["name"], "image": "", "imageID": "", "ready": True, "restartCount": 0}
    if chance(rng, 70):
        found["resources"] = {"requests": {name: rng.choice(pools[name]) for name in names}}
    if chance(rng, 70):
        found["allocatedResources"] = {name: rng.choice(pools[name]) for name in names}
    return found


def node_expression(rng: random.Random) -> Json:
    operator = rng.choice(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    key = "level" if operator in ("Gt", "Lt") and chance(rng, 80) else rng.choice(NODE_KEYS)
    found: Json = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        found["values"] = rng.sample(("a", "b", "c", "1", "5", ""), rng.randint(1, 3))
    elif operator in ("Gt", "Lt"):
        found["values"] = [
            rng.choice(("0", "1", "3", "5", "x", "9223372036854775807", "9223372036854775808", "007"))
        ]
    return found


def node_field(rng: random.Random, names: tuple[str, ...]) -> Json:
    return {
        "key": "metadata.name",
        "operator": "In" if chance(rng, 75) else "NotIn",
        "values": [rng.choice((*names, "nobody"))],
    }


def node_term(rng: random.Random, names: tuple[str, ...]) -> Json:
    """Without names, no field is asked for."""
    found: Json = {}
    if chance(rng, 80):
        found["matchExpressions"] = [node_expression(rng) for _ in range(rng.randint(1, 2))]
    if names and chance(rng, 25):
        found["matchFields"] = [node_field(rng, names) for _ in range(1 if chance(rng, 80) else 2)]
    return found


def node_affinity(rng: random.Random, names: tuple[str, ...]) -> Json:
    found: Json = {}
    if chance(rng, 55):
        terms = [node_term(rng, names) for _ in range(rng.randint(1, 3))]
        found["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if chance(rng, 55):
        found["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": rng.choice((1, 5, 50, 100)), "preference": node_term(rng, names)}
            for _ in range(rng.randint(1, 3))
        ]
    return found


def node_selector(rng: random.Random) -> dict[str, str]:
    return {key: rng.choice(("a", "b", "1", "")) for key in some(rng, NODE_KEYS, 2)}


def tolerations(rng: random.Random) -> list[Json]:
    found = []
    for _ in range(rng.randint(0, 3)):
        operator = rng.choice(("Exists", "Equal", "Equal", ""))
        each: Json = {"key": rng.choice(TAINT_KEYS)}
        if operator:
            each["operator"] = operator
        if operator != "Exists":
            each["value"] = rng.choice(("a", "b", ""))
        elif chance(rng, 15):
            each["key"] = ""
        if chance(rng, 60):
            each["effect"] = rng.choice(EFFECTS)
        if each.get("effect") == "NoExecute" and chance(rng, 50):
            each["tolerationSeconds"] = rng.choice((0, 300))
        found.append(each)
    return found


def taints(rng: random.Random) -> list[Json]:
    return [
        {"key": key, "value": rng.choice(("a", "b", "")), "effect": rng.choice(EFFECTS)}
        for key in some(rng, TAINT_KEYS, 3)
    ]


def selector(rng: random.Random) -> Json:
    found: Json = {}
    if chance(rng, 65):
        found["matchLabels"] = {rng.choice(KEYS): rng.choice(VALUES)}
    if chance(rng, 40):
        operator = rng.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        each: Json = {"key": rng.choice(KEYS), "operator": operator}
        if operator in ("In", "NotIn"):
            each["values"] = rng.sample(VALUES, rng.randint(1, 2))
        found["matchExpressions"] = [each]
    return found


def merged(selector: Json | None, keys: list[str], own: dict[str, str], operator: str) -> Json | None:
    """A selector as the API server stores it beside `matchLabelKeys`."""
    more = [{"key": key, "operator": operator, "values": [own[key]]} for key in keys if key in own]
    if selector is None or not more:
        return selector
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", []), *more]}


def pod_term(rng: random.Random, own: dict[str, str]) -> Json:
    found: Json = {"topologyKey": rng.choice(TOPOLOGY)}
    chosen = selector(rng) if chance(rng, 92) else None
    if chosen is not None and chance(rng, 20):
        keys = some(rng, ("version", "team"), 2)
        found["matchLabelKeys"] = keys
        chosen = merged(chosen, keys, own, "In")
    elif chosen is not None and chance(rng, 15):
        found["mismatchLabelKeys"] = ["team"]
        chosen = merged(chosen, ["team"], own, "NotIn")
    if chosen is not None:
        found["labelSelector"] = chosen
    if chance(rng, 25):
        found["namespaces"] = rng.sample(NAMESPACES, rng.randint(1, 2))
    if chance(rng, 25):
        found["namespaceSelector"] = {} if chance(rng, 30) else selector(rng)
    return found


def pod_affinity(rng: random.Random, own: dict[str, str]) -> Json:
    found: Json = {}
    for kind, percent in (("podAffinity", 45), ("podAntiAffinity", 45)):
        part: Json = {}
        if chance(rng, percent):
            part["requiredDuringSchedulingIgnoredDuringExecution"] = [
                pod_term(rng, own) for _ in range(1 if chance(rng, 75) else 2)
            ]
        if chance(rng, percent):
            part["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": rng.choice((1, 7, 50, 100)), "podAffinityTerm": pod_term(rng, own)}
                for _ in range(rng.randint(1, 2))
            ]
        if part or chance(rng, 5):
            found[kind] = part
    return found


def spread(rng: random.Random, own: dict[str, str]) -> list[Json]:
    found: list[Json] = []
    used = set()
    for _ in range(rng.randint(0, 3)):
        each: Json = {
            "maxSkew": rng.choice((1, 1, 2, 5)),
            "topologyKey": rng.choice(TOPOLOGY),
            "whenUnsatisfiable": rng.choice(("DoNotSchedule", "ScheduleAnyway")),
        }
        if (each["topologyKey"], each["whenUnsatisfiable"]) in used:
            continue
        used.add((each["topologyKey"], each["whenUnsatisfiable"]))
        if chance(rng, 92):
            alike = {"matchLabels": dict(list(own.items())[:1])} if own else selector(rng)
            each["labelSelector"] = rng.choice(({}, selector(rng), selector(rng), alike, alike, alike))
        if each["whenUnsatisfiable"] == "DoNotSchedule" and chance(rng, 35):
            each["minDomains"] = rng.choice((1, 2, 3, 6))
        for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if chance(rng, 40):
                each[field] = rng.choice(("Honor", "Ignore"))
        if "labelSelector" in each and chance(rng, 25):
            taken = {one["key"] for one in each["labelSelector"].get("matchExpressions", ())}
            taken |= set(each["labelSelector"].get("matchLabels", ()))
            keys = [key for key in some(rng, ("version", "team"), 2) if key not in taken]
            each["matchLabelKeys"] = keys
            if chance(rng, 50):
                each["labelSelector"] = merged(each["labelSelector"], keys, own, "In")
        found.append(each)
    return found


def ports(rng: random.Random) -> list[Json]:
    found = []
    for _ in range(rng.randint(0, 2)):
        number = rng.choice((80, 443, 53))
        each: Json = {"containerPort": number, "protocol": rng.choice(("TCP", "TCP", "UDP", "SCTP"))}
        if chance(rng, 80):
            each["hostPort"] = number
        if chance(rng, 50):
            each["hostIP"] = rng.choice(("0.0.0.0", "127.0.0.1", "10.0.0.1", ""))
        found.append(each)
    return found
