"""The gates of migrations, one by one: where each begins to refuse, and what switches it off."""

from typing import Any

import msgspec
import pytest

from koordinator.api.core import Pod
from koordinator.descheduler.migration import gates, jobs
from koordinator.descheduler.migration.gates import Gates, GateState, Workload
from koordinator.descheduler.plugins.built_in import BUILT_IN
from tests.descheduler.builders import job, pod

PODS = {one.key: one for one in (pod(f"p{number}", f"n{number % 2}") for number in range(6))}


def gates_of(**args: Any) -> Gates:
    return Gates(BUILT_IN["MigrationController"].read(args))


def state_of(*moving: str, replicas: int | None = 10, pods: dict[str, Pod] = PODS) -> GateState:
    """With jobs for some pods; None: the workload cannot be looked up."""
    counts = jobs.JobCounts([job(f"j-{name}", pods[f"default/{name}"]) for name in moving])
    members = tuple(pods.values())
    return GateState(
        open_jobs=counts,
        counted_jobs=counts,
        pod_of=pods.get,
        pods_of_node=lambda name: [one for one in members if one.spec.node_name == name],
        workload_of=lambda *_: None if replicas is None else Workload.of(replicas, members),
    )


def asked(name: str = "p0") -> Pod:
    return PODS[f"default/{name}"]


def test_a_pod_has_one_job_at_a_time() -> None:
    gate = gates_of()
    assert gate.existing_job(asked(), state_of("p0")) == "a migration job for it exists"
    assert gate.existing_job(asked("p1"), state_of("p0")) == ""


@pytest.mark.parametrize(
    ("limit", "at_limit", "below"),
    [
        ("maxMigratingGlobally", ("p1", "p2"), ("p0", "p1")),
        ("maxMigratingPerNamespace", ("p1", "p2"), ("p0", "p1")),
        ("maxMigratingPerNode", ("p2", "p4"), ("p0", "p2", "p1", "p3")),
        ("maxMigratingPerWorkload", ("p1", "p2"), ("p0", "p1")),
        ("maxUnavailablePerWorkload", ("p1", "p2"), ("p0", "p1")),
    ],
)
def test_a_limit_refuses_when_so_many_others_move_and_not_before(
    limit: str, at_limit: tuple[str, ...], below: tuple[str, ...]
) -> None:
    off = {
        "maxMigratingPerNode": 0,
        "maxMigratingPerWorkload": 9,
        "maxUnavailablePerWorkload": 9,
        "skipEvictionGates": [],
    }
    gate = gates_of(**{**off, limit: 2})
    refusal = gate.retryable(asked(), state_of(*at_limit))
    assert refusal.startswith("2 pods"), refusal
    assert "at most 2 may" in refusal
    assert gate.retryable(asked(), state_of(*below)) == ""
    name = limit[0].upper() + limit[1:]
    assert (
        gates_of(**{**off, limit: 2, "skipEvictionGates": [name]}).retryable(asked(), state_of(*at_limit))
        == ""
    )


@pytest.mark.parametrize("is_last", [True, False])
def test_a_pod_that_two_jobs_name_counts_whichever_of_them_comes_last(is_last: bool) -> None:
    own = job("own", asked())
    ref = msgspec.structs.replace(own.spec.pod_ref, uid="of the one before it")
    before = msgspec.structs.replace(own, spec=msgspec.structs.replace(own.spec, pod_ref=ref))
    counts = jobs.JobCounts([own, before] if is_last else [before, own])
    assert counts.other_pods_in_namespace(asked()) == ["default/p0"]


def test_a_limit_of_zero_is_none_and_pods_without_node_or_owner_have_none() -> None:
    moving = state_of("p1", "p2", "p3", "p4")
    none = {"maxMigratingPerNode": 0, "maxMigratingGlobally": 0, "maxMigratingPerNamespace": 0}
    loose = {"maxMigratingPerWorkload": 9, "maxUnavailablePerWorkload": 9}
    assert gates_of(**none, **loose).retryable(asked(), moving) == ""
    gate = gates_of(maxMigratingPerNode=1, maxMigratingPerWorkload=1, maxUnavailablePerWorkload=1)
    assert gate.retryable(pod("x", "", owner=""), moving) == ""
    assert gate.node(pod("x", "n0"), moving) == "2 pods of node n0 are migrating, at most 1 may"
    assert gate.workload(pod("x", "n0"), moving).startswith("4 pods of its workload are migrating")


def test_pods_that_are_not_ready_count_as_unavailable() -> None:
    gate = gates_of(maxMigratingPerWorkload=9, maxUnavailablePerWorkload=2)
    down = pod("down", "n0", nodeName="n0")
    for status in ({"phase": "Failed"}, {"conditions": []}):
        body = {**PODS, down.key: _with_status(down, status)}
        assert gate.workload(asked(), state_of("p1", pods=body)) == (
            "2 pods of its workload are unavailable, at most 2 may be"
        )
        assert gate.workload(asked(), state_of(pods=body)) == ""


def _with_status(one: Pod, status: dict[str, Any]) -> Pod:
    return msgspec.convert({**msgspec.to_builtins(one), "status": status}, Pod)


@pytest.mark.parametrize(
    ("replicas", "per_workload", "unavailable", "refusal"),
    [
        (1, 5, 5, "its workload has only 1 replicas"),
        (5, 5, 3, "its workload has only 5 replicas"),
        (5, 3, 5, "its workload has only 5 replicas"),
        (5, 3, 3, ""),
        (None, 3, 3, "its workload ReplicaSet rs cannot be looked up"),
    ],
)
def test_one_migration_must_not_touch_all_of_a_workload(
    replicas: int | None, per_workload: int, unavailable: int, refusal: str
) -> None:
    limits = {"maxMigratingPerWorkload": per_workload, "maxUnavailablePerWorkload": unavailable}
    seen = state_of(replicas=replicas)
    assert gates_of(**limits).non_retryable(asked(), seen) == refusal
    assert gates_of(**limits, skipEvictionGates=["ExpectedReplicas"]).non_retryable(asked(), seen) == ""
    unknown = refusal if replicas is None else ""
    assert gates_of(**limits, skipCheckExpectedReplicas=True).non_retryable(asked(), seen) == unknown


@pytest.mark.parametrize(
    "gate", ["BarePods", "LocalStorage", "SystemCritical", "PVC", "PriorityThreshold", ""]
)
def test_a_skipped_gate_spares_nobody_and_leaves_the_others(gate: str) -> None:
    args = BUILT_IN["MigrationController"].read(
        {
            "skipEvictionGates": [gate] if gate else [],
            "ignorePvcPods": True,
            "priorityThreshold": {"value": 7},
        },
    )
    options = gates.evictable_options(args)
    assert {
        "BarePods": options.evict_all_bare_pods and options.evict_failed_bare_pods,
        "LocalStorage": options.evict_local_storage_pods,
        "SystemCritical": options.evict_system_critical_pods,
        "PVC": not options.ignore_pvc_pods,
        "PriorityThreshold": options.priority_threshold is None,
    } == {
        name: name == gate
        for name in ("BarePods", "LocalStorage", "SystemCritical", "PVC", "PriorityThreshold")
    }
    assert (options.evict_all_bare_pods or options.evict_failed_bare_pods) == (gate == "BarePods")


@pytest.mark.parametrize(
    "name", ["evictAllBarePods", "evictFailedBarePods", "evictLocalStoragePods", "evictSystemCriticalPods"]
)
def test_what_may_be_evicted_is_said_for_each_kind(name: str) -> None:
    options = gates.evictable_options(BUILT_IN["MigrationController"].read({name: True}))
    said = {
        "evictAllBarePods": options.evict_all_bare_pods,
        "evictFailedBarePods": options.evict_failed_bare_pods,
        "evictLocalStoragePods": options.evict_local_storage_pods,
        "evictSystemCriticalPods": options.evict_system_critical_pods,
    }
    assert said == {each: each == name for each in said}
    assert not options.ignore_pvc_pods
