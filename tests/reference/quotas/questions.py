"""What questions about quotas must keep to, and questions drawn from nothing."""

import random
from typing import Any

from koordinator.api import resource_list
from tests.reference.quotas import trees
from tests.reference.quotas.trees import COUNTED, KEPT, SHARES, Drawn, Json, mended

_EACH = "1.8.0 rounds each share by itself, a later commit hands what is left to the largest remainders"


def _runtime(asked: Json) -> Json | None:
    if asked.get("kind") != "level":
        return mended(asked)
    children = {each["name"]: each for each in asked["children"]}
    numbers = [
        each.get(name, 0) for each in children.values() for name in ("weight", "request", "min", "guarantee")
    ]
    return {**asked, "children": list(children.values())} if numbers and min(numbers) >= 0 else None


def _drawn_runtime(chance: random.Random) -> Json:
    if chance.random() < 0.5:
        return Drawn(chance, {"minScale": chance.random() < 0.5}, SHARES).question(kind="tree")
    largest = chance.choice((1, 3, 10, 1000, 10**6, 10**11, 10**15))
    few = [chance.randint(0, largest) for _ in range(chance.randint(1, 5))]

    def number() -> int:
        return chance.choice(few) if chance.random() < 0.4 else chance.randint(0, largest)

    children: list[Json] = [
        {
            "name": f"q{index}",
            "weight": number(),
            "request": number(),
            "min": number() if chance.random() < 0.5 else 0,
            "guarantee": number() if chance.random() < 0.1 else 0,
            "lend": chance.random() < 0.8,
        }
        for index in range(chance.choice((1, 2, 3, 5, 9, 30, 70)))
    ]
    whole = sum(each["request"] for each in children)
    return {
        "kind": "level",
        "total": chance.choice((whole, whole // 2, number(), chance.randint(0, whole))),
        "children": children,
    }


def _tree(options: Json, *fields: str) -> Any:
    """Histories of trees, looked at in these fields."""

    def draw(chance: random.Random) -> Json:
        mode = chance.choice(("count", "count", "afterGrace", "immediate"))
        return Drawn(chance, {"terminatingMode": mode, **options}, fields).question()

    return draw


def _admission(asked: Json) -> Json | None:
    """Quotas of one tree, whose names differ; what the plugin is told about runtimes and ancestors is said."""
    args = {"enableRuntimeQuota": True, "enableCheckParentQuota": False, **asked["args"]}
    if any("-" in str(amount) for amount in trees.amounts_in(asked)):
        return None
    if asked["kind"] == "events":
        found = mended({**asked, "args": args}) if "steps" in asked else None
        return found and {**found, "steps": [*found["steps"], _refreshed_often(found["steps"])]}
    quotas = {each["name"]: each for each in asked.get("quotas") or ()}
    if any(name in trees.RESERVED for name in quotas) or _has_a_loop(quotas):
        return None
    return {**asked, "args": args, "quotas": [_counting(each) for each in quotas.values()]}


def _counting(quota: Json) -> Json:
    """The quota, whose pods count in no other resources than it names."""
    fields = ("used", "nonPreemptibleUsed")
    named = {
        field: {key: value for key, value in (quota.get(field) or {}).items() if key in quota["max"]}
        for field in fields
    }
    return {**quota, **named}


def _refreshed_often(steps: list[Json]) -> Json:
    """A step after which runtimes no longer depend on who was asked for first."""
    names = dict.fromkeys(step["quota"]["name"] for step in steps if step["op"] == "setQuota")
    return {"op": "refresh", "quotas": [*names] * 8}


def _has_a_loop(quotas: dict[str, Json]) -> bool:
    for name in quotas:
        seen = set[str]()
        while name in quotas and name not in seen:
            seen.add(name)
            name = quotas[name].get("parent") or trees.ROOT
        if name in seen:
            return True
    return False


def _drawn_admission(chance: random.Random) -> Json:
    args = {"enableRuntimeQuota": chance.random() < 0.8, "enableCheckParentQuota": chance.random() < 0.6}
    if chance.random() < 0.5:
        drawn = Drawn(chance, {}, ())
        asked = drawn.question(kind="events", args=args)
        return {**asked, "pod": {**drawn.pod(), "quota": chance.choice(drawn.names)}}
    names = chance.sample(("a", "b", "c", "d"), chance.randint(1, 4))
    resources = chance.sample(sorted(trees.SIZES), chance.randint(1, 3))

    def sizes(share: float) -> Json:
        return {name: chance.choice(trees.SIZES[name]) for name in resources if chance.random() < share}

    quotas = [
        {
            "name": name,
            "parent": chance.choice((trees.ROOT, *names[:index], "gone")) if index == 0 else names[index - 1],
            "max": sizes(0.95),
            "min": sizes(0.5),
            "used": sizes(0.7),
            "nonPreemptibleUsed": sizes(0.5),
            "runtime": sizes(0.95),
        }
        for index, name in enumerate(names)
    ]
    pod = {"quota": chance.choice(names), "request": sizes(0.8), "nonPreemptible": chance.random() < 0.4}
    return {"kind": "snapshot", "args": args, "quotas": quotas, "pod": pod}


def _over_use(asked: Json) -> Json | None:
    """Pods that can be told apart by importance: the order of others is nobody's promise. Times that pass."""
    if asked["kind"] == "monitor":
        times = [each.get("t") for each in asked.get("checks") or ()]
        is_timed = (
            all(isinstance(time, int) for time in times)
            and times == sorted(set(times))
            and min(times, default=0) >= 0
        )
        return asked if is_timed and isinstance(asked.get("delayEvictSeconds"), int) else None
    pods = {}
    for each in asked["assignedPods"]:
        pods.setdefault((each.get("priority", 0), each.get("start", 0)), each)
    named = {each["name"]: each for each in pods.values()}
    return {**asked, "assignedPods": list(named.values())}


def _drawn_over_use(chance: random.Random) -> Json:
    if chance.random() < 0.3:
        time, checks = 0, []
        for _ in range(chance.randint(1, 9)):
            time += chance.choice((1, 5, 10, 60, 120, 121))
            used = {"cpu": chance.choice(("4", "5", "6"))}
            checks.append({"t": time, "used": used, "runtime": {"cpu": chance.choice(("5", "5", "6"))}})
        return {"kind": "monitor", "delayEvictSeconds": chance.choice((0, 5, 60, 120)), "checks": checks}
    resources = chance.sample(sorted(trees.SIZES), chance.randint(1, 3))
    pods = [
        {
            "name": f"p{index}",
            "priority": chance.randint(0, 4),
            "start": index,
            "nonPreemptible": chance.random() < 0.2,
            "request": {
                name: chance.choice(trees.SIZES[name]) for name in resources if chance.random() < 0.85
            },
        }
        for index in chance.sample(range(20), chance.randint(0, 9))
    ]
    used: resource_list.Amounts = resource_list.sum_of(resource_list.of(each["request"]) for each in pods)
    runtime = {name: str(chance.choice((0, 1, 3, 10, 40))) for name in resources}
    return {"kind": "select", "used": resource_list.to_wire(used), "runtime": runtime, "assignedPods": pods}


def _preemption(asked: Json) -> Json | None:
    """Objects whose names differ, one quota for each namespace, pods that can be told apart by importance."""
    kind = asked["kind"]
    if kind == "resolve":
        objects = {each["name"]: each for each in asked["elasticQuotas"]}
        taken = [name for each in objects.values() for name in each.get("namespaces") or ()]
        if len(taken) != len(set(taken)) or not objects.keys().isdisjoint(trees.RESERVED):
            return None
        return {**asked, "elasticQuotas": list(objects.values())}
    if kind == "pdbSplit":
        return {**asked, "pods": list({each["name"]: each for each in asked["pods"]}.values())}
    if kind == "victims":
        if any("-" in str(amount) for amount in trees.amounts_in(asked)):
            return None
        pods = {}
        for each in asked["node"]["pods"]:
            pods.setdefault((each.get("priority", 0), each.get("start", 0)), each)
        named = {each["name"]: each for each in pods.values()}
        cached = sorted(named.keys() & set(asked.get("inQuotaCache") or ()))
        used = resource_list.sum_of(resource_list.of(named[name]["request"]) for name in cached)
        used = resource_list.maximum(used, resource_list.of(asked["quotaUsed"]))
        node = {**asked["node"], "pods": list(named.values())}
        return {**asked, "node": node, "inQuotaCache": cached, "quotaUsed": resource_list.to_wire(used)}
    return asked


def _drawn_preemption(chance: random.Random) -> Json:
    return {"victims": _drawn_victims, "resolve": _drawn_resolve, "pdbSplit": _drawn_split}[
        chance.choice(("victims", "victims", "resolve", "pdbSplit"))
    ](chance)


def _drawn_victims(chance: random.Random) -> Json:
    resources = chance.sample(sorted(trees.SIZES), chance.randint(1, 2))

    def sizes(share: float = 0.9) -> Json:
        return {
            name: chance.choice(("0", "1", "2", "3", "5")) for name in resources if chance.random() < share
        }

    pods = [
        {
            "name": f"p{index}",
            "priority": chance.randint(0, 11),
            "start": index,
            "nonPreemptible": chance.random() < 0.1,
            "request": sizes(),
            "quota": "q" if chance.random() < 0.85 else "z",
        }
        for index in chance.sample(range(20), chance.randint(1, 7))
    ]
    of_quota = [each for each in pods if each["quota"] == "q"]
    used = resource_list.sum_of(resource_list.of(each["request"]) for each in of_quota)
    limit = {name: str(chance.randint(0, 12)) for name in resources}
    whole = resource_list.sum_of(resource_list.of(each["request"]) for each in pods)
    room = chance.choice((limit, resource_list.to_wire(whole), dict.fromkeys(resources, "1000")))
    return {
        "kind": "victims",
        "pod": {"priority": 10, "request": sizes(), "quota": "q"},
        "node": {"allocatable": {**dict.fromkeys(resources, "0"), **room}, "pods": pods},
        "quotaUsed": resource_list.to_wire(used),
        "quotaLimit": limit,
        "inQuotaCache": [each["name"] for each in of_quota],
    }


def _drawn_resolve(chance: random.Random) -> Json:
    names = ("a", "b", "c", "koordinator-default-quota", "koordinator-system-quota")
    objects: list[Json] = [
        {"name": name, "namespace": chance.choice("abcd"), "treeId": chance.choice(("", "t1", "t2"))}
        for name in chance.sample(names[:3], chance.randint(0, 3))
    ]
    if objects:
        objects[0]["namespaces"] = chance.sample("abcd", chance.randint(1, 2))
    pod = {"namespace": chance.choice("abcd"), "quotaLabel": chance.choice(("", *names))}
    gates = [gate for gate in ("MultiQuotaTree", "DisableDefaultQuota") if chance.random() < 0.4]
    return {"kind": "resolve", "pod": pod, "elasticQuotas": objects, "gates": gates}


def _drawn_split(chance: random.Random) -> Json:
    def labels() -> Json:
        return {name: chance.choice("xy") for name in ("app", "tier") if chance.random() < 0.6}

    names = [f"p{index}" for index in range(chance.randint(0, 6))]
    pods = [
        {"name": name, "namespace": chance.choice(("ns1", "ns1", "ns2")), "labels": labels()}
        for name in names
    ]
    budgets = [
        {
            "namespace": chance.choice(("ns1", "ns1", "ns2")),
            "matchLabels": labels(),
            "disruptionsAllowed": chance.randint(0, 2),
            "disruptedPods": chance.sample(names, min(len(names), chance.choice((0, 0, 1)))),
        }
        for _ in range(chance.randint(0, 3))
    ]
    return {"kind": "pdbSplit", "pods": pods, "pdbs": budgets}


def _hint(asked: Json) -> Json | None:
    """Quotas whose names differ, in a tree; what changes is a quota of the same name."""
    quotas = {each["name"]: each for each in asked.get("snapshotQuotas") or ()}
    old, new = asked.get("old"), asked.get("new")
    if (
        not quotas.keys().isdisjoint(trees.RESERVED)
        or _has_a_loop(quotas)
        or (old and new and old["name"] != new["name"])
    ):
        return None
    return {**asked, "snapshotQuotas": list(quotas.values())}


def _drawn_hint(chance: random.Random) -> Json:
    names = ("a", "b", "c", "d")

    def quota(name: str, *parents: str) -> Json:
        return {
            "name": name,
            "treeId": chance.choice(("", "t1", "t1")),
            "parent": chance.choice((trees.ROOT, *parents)),
            "max": {"cpu": chance.choice(("10", "20"))},
            "min": {"cpu": chance.choice(("0", "5"))},
            "lend": chance.random() < 0.8,
            **({"weight": {"cpu": chance.choice(("10", "0"))}} if chance.random() < 0.3 else {}),
        }

    def pod() -> Json:
        return {
            "quotaLabel": chance.choice(
                (*names, "unknown", "koordinator-default-quota", "koordinator-system-quota")
            )
        }

    name = chance.choice(names)
    return {
        "kind": chance.choice(("quotaUpdate", "podDelete")),
        "gates": [gate for gate in ("MultiQuotaTree", "DisableDefaultQuota") if chance.random() < 0.5],
        "enableCheckParentQuota": chance.random() < 0.6,
        "snapshotPresent": chance.random() < 0.8,
        "snapshotQuotas": [
            quota(each, *names[:index]) for index, each in enumerate(names) if chance.random() < 0.8
        ],
        "pod": pod(),
        "old": quota(name) if chance.random() < 0.9 else None,
        "new": quota(name) if chance.random() < 0.9 else None,
        "deletedPod": {**pod(), "assigned": chance.random() < 0.7} if chance.random() < 0.9 else None,
    }


MEND = {
    "quota-runtime": _runtime,
    "quota-accounting": mended,
    "quota-guarantee": mended,
    "quota-min-scale": mended,
    "quota-admission": _admission,
    "quota-overuse-revoke": _over_use,
    "quota-preemption": _preemption,
    "quota-requeue-hint": _hint,
}
DRAW = {
    "quota-runtime": _drawn_runtime,
    "quota-accounting": _tree({}, *COUNTED),
    "quota-guarantee": _tree({"guaranteeUsage": True}, *KEPT, *SHARES, "used", "request"),
    "quota-min-scale": _tree({"minScale": True}, *SHARES),
    "quota-admission": lambda chance: _admission(_drawn_admission(chance)) or _drawn_admission(chance),
    "quota-overuse-revoke": _drawn_over_use,
    "quota-preemption": _drawn_preemption,
    "quota-requeue-hint": _drawn_hint,
}
OUTDATED = {
    "quota-runtime": dict.fromkeys(
        (
            "doc-example-no-lend",
            "gpu-residual-order-by-name-lexicographic",
            "remainder-tie-name",
            "memory-bytes-huge-weights",
            "residual-one-pass",
            "mixed-04",
            "mixed-05",
            "tree-gpu-two-level",
            "tree-cpu-milli-rounding",
            "tree-deep-four-levels",
        ),
        _EACH,
    ),
    "quota-min-scale": dict.fromkeys(
        ("three-children-short-then-enough", "order-matters-stale-sibling"), _EACH
    ),
}
