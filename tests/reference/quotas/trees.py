"""Histories of trees of quotas: what can happen after what, and histories drawn from nothing."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from koordinator.api import labels, resource_list
from koordinator.api.resource_list import Amounts
from tests.vectors.adapters.scheduler_quota_tree import NOW_S, POLICIES, is_ignored

Json = dict[str, Any]

ROOT = labels.ROOT_QUOTA_NAME
RESERVED = (ROOT, labels.SYSTEM_QUOTA_NAME, labels.DEFAULT_QUOTA_NAME)
SHARES = ("runtime", "autoScaleMin")
COUNTED = (
    *(
        "request",
        "limitedRequest",
        "childRequest",
        "selfRequest",
        "used",
        "selfUsed",
        "nonPreemptibleRequest",
    ),
    *("selfNonPreemptibleRequest", "nonPreemptibleUsed", "selfNonPreemptibleUsed", "pods", "exists"),
)
KEPT = ("allocated", "guaranteed")
SIZES = {
    "cpu": ("0", "1", "2", "5", "10", "500m", "1500m", "333m", "40", "7", "96"),
    "memory": ("0", "1", "3", "10", "40", "1Gi", "7", "3Gi", "100Mi", "1000000007"),
    "nvidia.com/gpu": ("0", "1", "2", "3", "5", "8", "16"),
}


_POD = {"quota": str, "pod": dict}
_NEEDS: dict[str, dict[str, type]] = {
    "nodeAdd": {"name": str, "allocatable": dict},
    "nodeUpdate": {"name": str, "new": dict},
    "nodeDelete": {"name": str},
    "setQuota": {"quota": dict},
    "deleteQuota": {"name": str},
    **dict.fromkeys(("podAdd", "podUpdate", "podDelete", "reserve", "unreserve"), _POD),
    "refresh": {"quotas": list},
    "check": {"id": str, "read": dict},
}
"""What a step must say."""


class History:
    """What is known after some steps, as events of an API server tell it: each event says what was there before, and
    the webhook has refused what contradicts itself."""

    def __init__(self, options: Json) -> None:
        self._policy = POLICIES[options.get("terminatingMode", "count")]
        self._nodes: dict[str, Json] = {}
        self._quotas: dict[str, Json] = {}
        self._pods: dict[tuple[str, str], Json] = {}
        self.steps: list[Json] = []

    def add(self, step: Json) -> None:
        """Note a step, made one that can follow those before; nothing where there is none."""
        if not all(isinstance(step.get(name), kind) for name, kind in _NEEDS[step["op"]].items()):
            return
        how: Callable[[Json], Json | None] | None = getattr(self, f"_{step['op']}", None)
        found = step if how is None else how(step)
        if found is not None:
            self.steps.append(found)

    def _nodeAdd(self, step: Json) -> Json | None:
        if step["name"] in self._nodes:
            return None
        self._nodes[step["name"]] = step["allocatable"]
        return step

    def _nodeUpdate(self, step: Json) -> Json | None:
        if step["name"] not in self._nodes:
            return None
        former, self._nodes[step["name"]] = self._nodes[step["name"]], step["new"]
        return {**step, "old": former}

    def _nodeDelete(self, step: Json) -> Json | None:
        known = self._nodes.pop(step["name"], None)
        return None if known is None else {**step, "allocatable": known}

    def _setQuota(self, step: Json) -> Json | None:
        quota = step["quota"]
        name, parent, known = quota["name"], quota.get("parent") or ROOT, self._quotas.get(quota["name"])
        if (
            name in RESERVED
            or parent == name
            or (parent != ROOT and (parent not in self._quotas or name in self._above(parent)))
        ):
            return None
        above, is_used = self._quotas.get(parent), self._is_used(name)
        if above is not None and not above.get("isParent"):
            return None
        names = (above or (known if is_used else None) or {"max": quota.get("max") or {}})["max"].keys()
        ceiling = {key: (quota.get("max") or {}).get(key, "10") for key in names}
        least = {key: value for key, value in (quota.get("min") or {}).items() if key in names}
        quota = {**quota, "parent": parent, "max": ceiling, "min": _lower(least, ceiling)}
        if known is not None and is_used:
            quota["isParent"] = known.get("isParent", False)
        self._quotas[name] = quota
        return {**step, "quota": quota}

    def _is_used(self, name: str) -> bool:
        """Return whether it has pods or children."""
        return any(place[0] == name for place in self._pods) or any(
            each["parent"] == name for each in self._quotas.values()
        )

    def _above(self, name: str) -> Iterable[str]:
        while name in self._quotas:
            yield name
            name = self._quotas[name]["parent"]

    def _deleteQuota(self, step: Json) -> Json | None:
        name = step["name"]
        if name not in self._quotas or any(each["parent"] == name for each in self._quotas.values()):
            return None
        del self._quotas[name]
        self._pods = {key: pod for key, pod in self._pods.items() if key[0] != name}
        return step

    def _is_known(self, quota: str) -> bool:
        return quota in self._quotas or quota in RESERVED

    def _counts(self, pod: Json) -> bool:
        leaving = pod.get("terminating")
        if not leaving:
            return True
        deleted_s = NOW_S - leaving["secondsSinceDeletionTimestamp"]
        return not is_ignored(self._policy, NOW_S, deleted_s, leaving.get("gracePeriodSeconds"))

    def _podAdd(self, step: Json) -> Json | None:
        place = step["quota"], step["pod"]["name"]
        if place in self._pods or not self._is_known(step["quota"]):
            return None
        if self._counts(step["pod"]):
            self._pods[place] = step["pod"]
        return step

    def _podUpdate(self, step: Json) -> Json | None:
        quota, name = step["quota"], step["pod"]["name"]
        before = step.get("oldQuota") or quota
        if not (self._is_known(quota) and self._is_known(before)):
            return None
        if before != quota and (quota, name) in self._pods:
            return None
        known = self._pods.pop((before, name), step["pod"])
        if self._counts(step["pod"]):
            self._pods[quota, name] = step["pod"]
        return {**step, "oldQuota": before, "old": known}

    def _podDelete(self, step: Json) -> Json | None:
        known = self._pods.pop((step["quota"], step["pod"]["name"]), None)
        return None if known is None else {**step, "pod": known}

    def _reserve(self, step: Json) -> Json | None:
        known = self._pods.get((step["quota"], step["pod"]["name"]))
        return None if known is None else {**step, "pod": known}

    _unreserve = _reserve


def _lower(amounts: Json, ceiling: Json) -> Json:
    """The amounts, none of them above its ceiling."""
    most: Amounts = resource_list.of(ceiling)
    return {
        key: ceiling[key] if amount > most[key] else amounts[key]
        for key, amount in resource_list.of(amounts).items()
    }


def mended(asked: Json) -> Json | None:
    """The question with a history that can happen."""
    if any("-" in str(value) for value in amounts_in(asked)):
        return None
    history = History(asked.get("options") or {})
    for step in asked["steps"]:
        history.add(step)
    return {**asked, "steps": history.steps} if history.steps else None


def amounts_in(value: Any) -> Iterable[Any]:
    """All amounts of resources in it."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key in SIZES:
                yield each
            else:
                yield from amounts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from amounts_in(each)


class Drawn:
    """A random history: a tree of several levels, pods that come, go, move and find nodes, and quotas that change."""

    def __init__(self, chance: random.Random, options: Json, fields: tuple[str, ...]) -> None:
        self._chance, self._fields = chance, fields
        self._resources = chance.sample(sorted(SIZES), chance.choice((1, 2, 2, 3)))
        self.names = ["a", "b", "c", "d", "aa", "q1", "q10", "q2", "z", "e", "f"][: chance.randint(1, 11)]
        self._parents = {name for name in self.names if chance.random() < 0.4}
        self._has_pods_in_parents = chance.random() < 0.1
        self._options = options
        self._history = History(options)
        self._checks = 0

    def question(self, **more: Any) -> Json:
        """The whole of it."""
        chance, add = self._chance, self._history.add
        for number in range(chance.randint(1, 3)):
            add({"op": "nodeAdd", "name": f"n{number}", "allocatable": self._sizes(large=True)})
        for name in [*sorted(self._parents), *sorted(self._parents), *self.names]:
            add(self._quota(name))
        for _ in range(chance.choice((1, 1, 2, 3))):
            for _ in range(chance.randint(1, 30)):
                add(self._step())
            self._check()
        return {**more, "options": self._options, "steps": self._history.steps}

    def _sizes(self, *, large: bool = False) -> Json:
        chance = self._chance
        found = {}
        for name in self._resources:
            sizes = [size for size in SIZES[name] if not large or size not in ("0", "1", "333m")]
            if large or chance.random() < 0.9:
                found[name] = chance.choice(sizes)
        return found

    def _quota(self, name: str) -> Json:
        chance = self._chance
        parents = [each for each in sorted(self._parents) if each != name]
        quota: Json = {
            "name": name,
            "parent": chance.choice(parents) if parents and chance.random() < 0.6 else ROOT,
            "isParent": name in self._parents,
            "lend": chance.random() < 0.7,
            "min": self._sizes(),
            "max": {key: self._sizes(large=True)[key] for key in self._resources},
        }
        if chance.random() < 0.5:
            quota["weight"] = self._sizes()
        return {"op": "setQuota", "quota": quota}

    def pod(self) -> Json:
        """A pod."""
        chance = self._chance
        pod: Json = {"name": chance.choice("pqrstuvw"), "request": self._sizes()}
        if chance.random() < 0.5:
            pod["node"] = "n1"
        if chance.random() < 0.3:
            pod["nonPreemptible"] = True
        if chance.random() < 0.1:
            pod["phase"] = chance.choice(("Running", "Succeeded", "Failed"))
        if chance.random() < 0.1:
            pod["terminating"] = {
                "secondsSinceDeletionTimestamp": chance.choice((0, 29, 30, 31)),
                "gracePeriodSeconds": chance.choice((0, 30)),
            }
        return pod

    def _step(self) -> Json:
        chance = self._chance
        leaves = [name for name in self.names if name not in self._parents or self._has_pods_in_parents]
        quotas = [*leaves, *leaves, *leaves, labels.DEFAULT_QUOTA_NAME, labels.SYSTEM_QUOTA_NAME]
        quota, pod = chance.choice(quotas), self.pod()
        match chance.choice(
            ("add",) * 6 + ("update",) * 4 + ("delete", "reserve", "unreserve", "quota", "node", "other")
        ):
            case "add":
                return {"op": "podAdd", "quota": quota, "pod": pod}
            case "update":
                was_in = chance.choice(quotas) if chance.random() < 0.3 else quota
                return {"op": "podUpdate", "quota": quota, "oldQuota": was_in, "old": pod, "pod": pod}
            case "delete":
                return {"op": "podDelete", "quota": quota, "pod": pod}
            case "reserve" | "unreserve" as op:
                return {"op": op, "quota": quota, "pod": pod}
            case "quota":
                return self._quota(chance.choice(self.names))
            case "node":
                name, sizes = f"n{chance.randint(0, 3)}", self._sizes(large=True)
                return chance.choice(
                    (
                        {"op": "nodeAdd", "name": name, "allocatable": sizes},
                        {"op": "nodeUpdate", "name": name, "new": sizes},
                        {"op": "nodeDelete", "name": name},
                    )
                )
            case _:
                if chance.random() < 0.3:
                    return {"op": "deleteQuota", "name": chance.choice(self.names)}
                return {
                    "op": "refresh",
                    "quotas": chance.sample(self.names, chance.randint(1, len(self.names))),
                }

    def _check(self) -> None:
        """Look at all quotas, each brought up to date often enough for what it depends on."""
        self._checks += 1
        names = [*self.names]
        self._chance.shuffle(names)
        self._history.add({"op": "refresh", "quotas": names * 2 * len(self._parents | {""})})
        read: dict[str, list[str]] = {name: list(self._fields) for name in self.names}
        for name in RESERVED[1:]:
            read[name] = [field for field in self._fields if field not in (*SHARES, *KEPT)]
        read[ROOT] = ["pool", "total", *(field for field in self._fields if field in ("request", "used"))]
        self._history.add({"op": "check", "id": f"check-{self._checks}", "read": read})
