"""What the reference answers about the node agent, worked out from what we answer."""

import json
import math
from typing import Any
from unittest import mock

import msgspec

from koordinator.api import cpuset, labels, quantity, resources
from koordinator.host.cgroup_knobs import quota_of_milli
from koordinator.koordlet.qos import cpu_suppress, memory_evict, resctrl
from koordinator.koordlet.qos.eviction import Arbitration, EvictionTask, ReleaseTarget
from tests.vectors.deviations.question import Ask, Case

_GROUPS = {"LSR": "lsrClass", "LS": "lsClass", "BE": "beClass"}


def with_whole_seconds(case: Case, ask: Ask) -> Any:
    """Fractions of seconds are lost at every step of a bucket."""
    if case["op"] != "sequence":
        return None
    rounds = [{**each, "seconds": math.floor(each.get("seconds", 1))} for each in case["rounds"]]
    return None if rounds == case["rounds"] else ask({**case, "rounds": rounds})


def with_partial_picks(case: Case, ask: Ask) -> Any:
    """Where fewer CPUs are usable than wanted, each of the two kinds gives what is wanted of it, or nothing."""
    if case["op"] != "cpuset":
        return None
    own_pick = cpu_suppress.suppressed_cpus
    wanted: list[int] = []
    own_count = cpu_suppress.wanted_cpu_count

    def count(*of: int) -> int:
        wanted.append(own_count(*of))
        return wanted[-1]

    def picked(_: int, usable: cpu_suppress.UsableCPUs) -> cpuset.CPUSet:
        return own_pick(wanted[-1], usable)

    with (
        mock.patch.object(cpu_suppress, "wanted_cpu_count", count),
        mock.patch.object(cpu_suppress, "suppressed_cpus", picked),
    ):
        return ask(case)


def with_pinned_quotas(case: Case, ask: Ask) -> Any:
    """A container that has a limit but no quota gets its limit, and the pod's quota moves along from -1."""
    if case["op"] != "quota_step" or not any(map(_is_pinned, case["containers"])):
        return None
    found: Case = {"containers": {}, "pod": case["podQuota"], "operations": {}, "writes": []}
    for container in case["containers"]:
        base = quota_of_milli(quantity.milli(container.get("limitCPU", 0)))
        is_pinned = _is_pinned(container)
        alone = {**container, "quota": base} if is_pinned else container
        step = ask({**case, "podQuota": found["pod"], "containers": [alone]})
        if is_pinned:
            step = _lifted(container["name"], base, found["pod"], step["operations"])
        for name in ("containers", "operations"):
            found[name] |= step[name]
        found["pod"] = step["pod"]
        found["writes"] += step["writes"]
    return found


def _is_pinned(container: Case) -> bool:
    has_limit = quantity.milli(container.get("limitCPU", 0)) > 0
    return container["quota"] == -1 and has_limit and container.get("running", True)


def _lifted(name: str, base: int, pod: int, operations: Case) -> Case:
    moved = pod + base + 1 if pod > 0 else pod
    writes = [f"pod={moved}"] if pod > 0 else []
    return {
        "containers": {name: base},
        "pod": moved,
        "operations": operations,
        "writes": [*writes, f"{name}={base}"],
    }


def with_limits_of_no_containers(case: Case, ask: Ask) -> Any:
    """A best-effort pod whose batch resources name no container gets a memory limit of 0."""
    if (case["op"], case.get("qos"), case.get("extended")) != ("pod", "BE", {}):
        return None
    return {"cpuShares": 2, "cfsQuota": -1, "memoryLimit": 0}


def without_narrow_ways(case: Case, ask: Ask) -> Any:
    """A range within one way of the cache is a mask of no way, which the kernel refuses."""
    if case["op"] == "l3_mask":
        is_narrow = _is_narrow(case["cbm"], case["startPercent"], case["endPercent"])
        return {"mask": "0"} if is_narrow else None
    if case["op"] != "groups":
        return None
    lines, found = ask(case)["lines"], False
    for group, name in _GROUPS.items():
        settings = (case["strategy"].get(name) or {}).get("resctrlQOS") or {}
        start, end = settings.get("catRangeStartPercent"), settings.get("catRangeEndPercent")
        if start is not None and end is not None and _is_narrow(case["cbm"], start, end):
            nothing = resctrl.l3_line(dict.fromkeys(case["cacheIds"], 0))
            lines = {**lines, group: [nothing, *lines[group][1:]]}
            found = True
    return {"lines": lines} if found else None


def _is_narrow(cbm: str, start: int, end: int) -> bool:
    full = resctrl.full_mask_of(cbm)
    if resctrl.l3_mask(full, start, end) is None:
        return False
    ways = int(cbm, 16).bit_length()
    return -(-ways * start // 100) == -(-ways * end // 100)


def with_caches_of_other_machines(case: Case, ask: Ask) -> Any:
    """A cache that the machine does not have makes a pod's line for the caches void."""
    if case["op"] != "annotation":
        return None
    own = (json.loads(case["annotation"]).get("llc") or {}).get("schemataPerCache") or []
    if all(each["cacheID"] in case["cacheIds"] for each in own):
        return None
    answer = ask(case)
    lines = answer["schemata"].splitlines(keepends=True)
    return {**answer, "schemata": "".join(line for line in lines if not line.startswith("L3:"))}


def with_requests_of_ended_pods(case: Case, ask: Ask) -> Any:
    """What pods have requested counts until they are deleted."""
    if case["op"] != "allocatable":
        return None
    pods = [
        {**pod, "status": {**pod["status"], "phase": "Running"}} if _is_over(pod) else pod
        for pod in case["pods"]
    ]
    return None if pods == case["pods"] else ask({**case, "pods": pods})


def with_protected_pods(case: Case, ask: Ask) -> Any:
    """Pods labelled LSE and LSR may be evicted like those labelled LS."""
    if case["op"] not in ("candidates", "round"):
        return None
    pods = [_unprotected(pod) for pod in case["pods"]]
    return None if pods == case["pods"] else ask({**case, "pods": pods})


def _unprotected(pod: Case) -> Case:
    metadata = pod["metadata"]
    found = metadata.get("labels") or {}
    if found.get(labels.QOS_CLASS) not in ("LSE", "LSR"):
        return pod
    return {**pod, "metadata": {**metadata, "labels": {**found, labels.QOS_CLASS: "LS"}}}


def with_a_thousand_of_each_byte(case: Case, ask: Ask) -> Any:
    """All but `BEMemoryEvict` count a thousand times the memory that a victim uses."""
    if case["op"] != "round":
        return None
    own_count = Arbitration._count

    def count(self: Arbitration, uid: str) -> None:
        own_tasks = self._tasks
        used = case["podUsed"].get(uid, 0.0)
        used *= 1 if own_tasks[self._task].feature == memory_evict.BE_MEMORY else 1000
        gives = {uid: {resources.MEMORY: int(used)}}
        self._tasks = tuple(
            msgspec.structs.replace(task, gives=gives) if task.target is ReleaseTarget.USED else task
            for task in own_tasks
        )
        own_count(self, uid)
        self._tasks = own_tasks

    with mock.patch.object(Arbitration, "_count", count):
        return ask(case)


def with_hasty_later_tasks(case: Case, ask: Ask) -> Any:
    """A later task for the same target ends after its first victim when what was given back before is as much as it
    then lacked."""
    own_left = Arbitration.left
    begun: dict[int, tuple[dict[str, int], int]] = {}

    def left(self: Arbitration, task: EvictionTask) -> dict[str, int]:
        index = next((at for at, each in enumerate(self._tasks) if each is task and at == self._task), None)
        if index is None:
            return own_left(self, task)
        lacked, victims = begun.setdefault(index, (own_left(self, task), len(self.evicted)))
        if len(self.evicted) == victims:
            return lacked
        released = self.released.get(task.target, {})
        return {name: amount for name, amount in lacked.items() if amount > released.get(name, 0)}

    with mock.patch.object(Arbitration, "left", left):
        return ask(case) if case["op"] in ("arbitrate", "round") else None


def with_young_pods_that_ended(case: Case, ask: Ask) -> Any:
    """Pods younger than the cold start count with their requests also when they have ended, as they do while they
    terminate."""
    pods = [_terminating(pod) if _is_young_and_over(pod, case) else pod for pod in case["pods"]]
    return None if pods == case["pods"] else ask({**case, "pods": pods})


def without_requests_of_unpredicted_pods(case: Case, ask: Ask) -> Any:
    """A pod that nothing is predicted of is missing from what its class requested."""
    predicted = case["predictions"]["pods"]
    pods = [
        pod
        for pod in case["pods"]
        if pod["metadata"]["uid"] in predicted or pod["ageSeconds"] <= case["coldStartSeconds"]
    ]
    if pods == case["pods"]:
        return None
    answer, by_class = ask(case), ask({**case, "pods": pods})["byClass"]
    least = {name: min(amount, by_class[name]) for name, amount in answer["byPods"].items()}
    return {**answer, "byClass": by_class, "reclaimable": least}


def _is_young_and_over(pod: Case, case: Case) -> bool:
    return _is_over(pod) and pod["ageSeconds"] <= case["coldStartSeconds"]


def _is_over(pod: Case) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _terminating(pod: Case) -> Case:
    metadata = {**pod["metadata"], "deletionTimestamp": "2024-01-01T00:00:00Z"}
    return {**pod, "metadata": metadata, "status": {**pod["status"], "phase": "Running"}}


# cpuset-hook

NO_CPUS = "999999"
"""A CPU that no machine has, in the place of none."""


def with_pools_without_cpus(case: Case, ask: Ask) -> Any:
    """Pools are joined with commas also where one has no CPU."""
    topology = dict(case.get("topology") or {})
    for name in ("sharePools", "beSharePools"):
        if topology.get(name):
            topology[name] = [{**pool, "cpuset": pool.get("cpuset") or NO_CPUS} for pool in topology[name]]
    if case["op"] != "container" or topology == (case.get("topology") or {}):
        return None
    answer = ask({**case, "topology": topology})
    cpuset = answer["cpuset"]
    return answer if cpuset is None else {**answer, "cpuset": cpuset.replace(NO_CPUS, "")}


# resource-update-order


def with_wide_lists_of_cpus(case: Case, ask: Ask) -> Any:
    """A list of CPUs that moves stays as wide as it was on the way."""
    if case["op"] != "leveled":
        return None
    answer = ask(case)
    writes: dict[str, list[str]] = {}
    for write in answer["writes"]:
        name, _, text = write.partition("=")
        writes.setdefault(name, []).append(text)
    wide = {name: of[0] for name, of in writes.items() if name.endswith("/cpuset.cpus") and len(of) > 1}
    narrow = {f"{name}={of[-1]}" for name, of in writes.items() if name in wide}
    kept = [write for write in answer["writes"] if write not in narrow]
    return {"writes": kept, "final": {**answer["final"], **wide}} if wide else None
