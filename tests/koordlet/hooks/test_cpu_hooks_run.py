"""CPU lists, batch limits and normalized quotas on trees: who gets what, when, and what others do meanwhile."""

import asyncio
import itertools
from pathlib import Path

import pytest

from koordinator.api import labels
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.koordlet import node_pods
from koordinator.koordlet.config import HookConfig
from koordinator.koordlet.writing.update_plan import Update
from tests.koordlet.hooks.hook_node import BEST_EFFORT, BURSTABLE, ROOT, HookNode, batch, native, pod, slo

POOLS = '[{"socket":0,"node":0,"cpuset":"0-1"},{"socket":0,"node":1,"cpuset":"2"}]'
WEB, JOB, PINNED = f"{BURSTABLE}/podweb", f"{BEST_EFFORT}/podjob", f"{ROOT}/podpinned"
BOUND = {labels.RESOURCE_STATUS: '{"cpuset":"3"}'}


def started(root: Path, **how: object) -> HookNode:
    node = HookNode(root, **how)  # type: ignore[arg-type]
    node.hooks.start()
    return node


# CPU lists


def test_bound_pods_get_their_cpus_and_lose_their_quota(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.topology(cpu_shared_pools=POOLS)
    pinned = pod("pinned", "LSR", resources=[native("1")], annotations=BOUND)
    for group in (PINNED, f"{PINNED}/pinned-c0", f"{PINNED}/sandbox"):
        node.group(group)
        node.host.files.write(node.host.cgroups.path(Knob.CPU_QUOTA, group), "100000")

    node.run_pods(pinned)

    for group in (f"{PINNED}/pinned-c0", f"{PINNED}/sandbox"):
        assert node.says(Knob.CPUSET, group) == "3"
    assert {node.says(Knob.CPU_QUOTA, each) for each in (PINNED, f"{PINNED}/pinned-c0")} == {"-1"}


def test_bound_pods_keep_their_quota_when_asked_for(tmp_path: Path) -> None:
    node = started(tmp_path, hooks=HookConfig(keep_cpu_quota=True))
    node.group(PINNED)
    node.host.files.write(node.host.cgroups.path(Knob.CPU_QUOTA, PINNED), "100000")

    node.run_pods(pod("pinned", "LSR", resources=[native("1")], annotations=BOUND))

    assert node.says(Knob.CPU_QUOTA, PINNED) == "100000"


def test_services_follow_the_share_pools_as_they_change(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_pods(pod("web"), pod("job", "BE", resources=[batch(1000)]))
    assert node.says(Knob.CPUSET, f"{WEB}/web-c0") == "0-3", "unknown topology changes nothing"

    node.topology(cpu_shared_pools=POOLS)
    assert node.says(Knob.CPUSET, f"{WEB}/web-c0") == "0-2"
    assert node.says(Knob.CPUSET, f"{JOB}/job-c0") == "0-3", "best-effort CPUs are not ours"

    node.topology(cpu_shared_pools=POOLS.replace("0-1", "1"))
    assert node.says(Knob.CPUSET, f"{WEB}/web-c0") == "1-2"
    assert node.says(Knob.CPUSET, f"{WEB}/sandbox") == "1-2"


def test_a_broken_topology_keeps_the_last_good_one(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.topology(cpu_shared_pools=POOLS)

    node.topology(cpu_shared_pools="[")
    node.topology(cpu_shared_pools=POOLS.replace("0-1", "1"), system_qos_resource='{"cpuset":"7,"}')
    node.run_pods(pod("web"))

    assert node.says(Knob.CPUSET, f"{WEB}/web-c0") == "0-2"


def test_a_pod_with_a_broken_allocation_is_reported_once_and_stops_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = started(tmp_path)
    node.topology(cpu_shared_pools=POOLS)
    broken = pod("broken", annotations={labels.RESOURCE_STATUS: "{"})

    node.run_pods(broken, pod("web"))
    node.refresh()

    assert node.says(Knob.CPUSET, f"{WEB}/web-c0") == "0-2"
    assert node.says(Knob.CPUSET, f"{BURSTABLE}/podbroken/broken-c0") == "0-3"
    reported = [record for record in caplog.records if record.getMessage() == "hook failed"]
    assert {record.__dict__["what"].partition(":")[0] for record in reported} == {"Pod shop/broken"}
    assert len({record.__dict__["what"] for record in reported}) == len(reported)


def test_a_host_application_of_ls_runs_on_the_share_pools(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.group("host-latency-sensitive")
    node.group("host-latency-sensitive/nginx")
    node.topology(cpu_shared_pools=POOLS)

    node.policy(slo(hostApplications=[{"name": "nginx", "qos": "LS"}, {"name": "../..", "qos": "LS"}]))
    node.hooks._groups()

    assert node.says(Knob.CPUSET, "host-latency-sensitive/nginx") == "0-2"


def test_a_host_application_is_placed_as_soon_as_nodeslo_names_it(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.group("nginx")
    node.topology(cpu_shared_pools=POOLS)
    node.policy(slo())
    path = {"base": "CgroupRoot", "relativePath": "nginx"}

    node.policy(slo(hostApplications=[{"name": "nginx", "qos": "LS", "cgroupPath": path}]))

    assert node.says(Knob.CPUSET, "nginx") == "0-2"


# Batch limits


@pytest.mark.parametrize("version", [V1, V2])
def test_best_effort_pods_get_the_limits_of_their_batch_resources(tmp_path: Path, version: int) -> None:
    node = started(tmp_path, version=version)

    node.run_pods(pod("job", "BE", resources=[batch(1000, "1Gi"), batch(500, "2Gi")]))

    cgroups = node.host.cgroups
    assert (cgroups.quota_us(JOB), cgroups.memory_limit_bytes(JOB)) == (150_000, 3 << 30)
    assert cgroups.quota_us(f"{JOB}/job-c1") == 50_000
    assert cgroups.memory_limit_bytes(f"{JOB}/job-c0") == 1 << 30
    shares = cgroups.shares(f"{JOB}/job-c0")
    assert shares is not None
    assert abs(shares - 1024) < 27, "a weight is coarser than shares"


def test_a_container_whose_group_comes_late_gets_its_limits_with_the_next_refresh(tmp_path: Path) -> None:
    node = started(tmp_path)
    job = pod("job", "BE", resources=[batch(1000)])
    node.group(JOB)
    node.view.pods = {"job": node_pods.record(job, node.view.driver)}
    node.refresh()

    node.group(f"{JOB}/job-c0")
    node.refresh()

    assert node.says(Knob.CPU_QUOTA, f"{JOB}/job-c0") == "100000"


def test_a_container_without_batch_resources_leaves_the_pod_without_limit(tmp_path: Path) -> None:
    node = started(tmp_path)

    node.run_pods(pod("job", "BE", resources=[batch(1000), {}]))

    assert node.says(Knob.CPU_QUOTA, JOB) == "-1"
    assert node.says(Knob.CPU_QUOTA, f"{JOB}/job-c0") == "100000"


def test_a_side_car_counts_for_the_pods_limits(tmp_path: Path) -> None:
    node = started(tmp_path)
    side_car = {"name": "log", "restartPolicy": "Always", "resources": batch(500)}

    node.run_pods(pod("job", "BE", resources=[batch(1000)], initContainers=[side_car]))

    assert node.says(Knob.CPU_QUOTA, JOB) == "150000"


def test_no_quotas_while_their_parent_is_squeezed(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_pods(pod("job", "BE", resources=[batch(1000)]))
    groups = (JOB, f"{JOB}/job-c0")
    assert {node.says(Knob.CPU_QUOTA, each) for each in groups} == {"100000"}

    node.policy(slo(resourceUsedThresholdWithBE={"enable": True, "cpuSuppressPolicy": "cfsQuota"}))
    assert {node.says(Knob.CPU_QUOTA, each) for each in groups} == {"-1"}

    node.policy(slo(resourceUsedThresholdWithBE={"enable": True, "cpuSuppressPolicy": "cpuset"}))
    assert {node.says(Knob.CPU_QUOTA, each) for each in groups} == {"100000"}


def test_a_faster_node_gives_batch_pods_smaller_quotas(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_pods(pod("job", "BE", resources=[batch(1000)]))

    node.node(cpu_normalization_ratio="1.25")
    assert node.says(Knob.CPU_QUOTA, JOB) == "80000"

    node.node(cpu_normalization_ratio="1.255")
    assert node.says(Knob.CPU_QUOTA, JOB) == "80000", "too small a change"

    node.node(cpu_normalization_ratio="fast")
    assert node.says(Knob.CPU_QUOTA, JOB) == "80000", "the last good one holds"

    node.node()
    assert node.says(Knob.CPU_QUOTA, JOB) == "100000"


def test_a_broken_ratio_keeps_no_policy_from_the_batch_pods(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_pods(pod("job", "BE", resources=[batch(1000)]))
    node.node(cpu_normalization_ratio="1.25")

    node.node(cpu_normalization_ratio="fast")
    node.policy(slo(resourceUsedThresholdWithBE={"enable": True, "cpuSuppressPolicy": "cfsQuota"}))
    assert node.says(Knob.CPU_QUOTA, JOB) == "-1"

    node.policy(slo())
    assert node.says(Knob.CPU_QUOTA, JOB) == "80000", "the last good ratio holds"


# Normalization

SERVICE = pod("web", resources=[native("2"), native("1")])
QUOTAS = {WEB: 300_000, f"{WEB}/web-c0": 200_000, f"{WEB}/web-c1": 100_000}
BURST = {"policy": "auto", "cfsQuotaBurstPercent": 300}


def normalized(root: Path, **how: object) -> HookNode:
    """A node with a service whose quotas the kubelet has set."""
    node = started(root, gates="CPUNormalization=true", **how)
    node.policy(slo(cpuBurstStrategy=BURST))
    node.run_pods(SERVICE)
    for group, quota_us in QUOTAS.items():
        node.host.files.write(node.host.cgroups.path(Knob.CPU_QUOTA, group), str(quota_us))
    return node


def quotas(node: HookNode) -> dict[str, int]:
    return {group: int(node.says(Knob.CPU_QUOTA, group)) for group in QUOTAS}


def scaled(ratio: float) -> dict[str, int]:
    return {group: int(-(-quota_us // ratio)) for group, quota_us in QUOTAS.items()}


@pytest.mark.parametrize(
    ("init", "quota_us"),
    [(native("4"), "320000"), (native("500m"), "160000"), ({}, "-1")],
    ids=["needs more than the service", "needs less", "has no limit"],
)
def test_the_pods_quota_leaves_room_for_its_init_containers(
    tmp_path: Path, init: dict[str, object], quota_us: str
) -> None:
    node = started(tmp_path, gates="CPUNormalization=true")
    node.node(cpu_normalization_ratio="1.25")

    node.run_pods(pod("web", resources=[native("2")], initContainers=[{"name": "load", "resources": init}]))

    assert node.says(Knob.CPU_QUOTA, WEB) == quota_us
    assert node.says(Knob.CPU_QUOTA, f"{WEB}/web-c0") == "160000"


def test_quotas_follow_the_speed_of_the_cpus_and_grow_back(tmp_path: Path) -> None:
    node = normalized(tmp_path)

    node.node(cpu_normalization_ratio="1.25")
    assert quotas(node) == scaled(1.25)

    node.node(cpu_normalization_ratio="1.00")
    assert quotas(node) == QUOTAS

    node.node(cpu_normalization_ratio="1.60")
    node.node()
    assert quotas(node) == QUOTAS
    assert "CPUNormalization" not in node.executor.owners()


def test_a_ratio_that_went_while_the_agent_was_away_is_noticed(tmp_path: Path) -> None:
    node = normalized(tmp_path)
    node.node(cpu_normalization_ratio="1.25")

    again = node.restarted(gates="CPUNormalization=true")
    again.hooks.start()
    again.node()
    again.refresh()

    assert quotas(again) == QUOTAS


def test_without_a_ratio_nothing_is_written(tmp_path: Path) -> None:
    node = normalized(tmp_path)
    node.node()
    node.host.files.write(node.host.cgroups.path(Knob.CPU_QUOTA, WEB), "123456")

    node.clock.now_s += 61
    node.refresh()

    assert node.says(Knob.CPU_QUOTA, WEB) == "123456"


def raise_quotas(node: HookNode, factor: float) -> None:
    """What CPU burst does."""
    updates = [Update(group, Knob.CPU_QUOTA, str(int(us * factor))) for group, us in scaled(1.25).items()]
    node.executor.update(updates, owner="CPUBurst", cacheable=False)


def test_a_burst_within_its_bounds_is_left_alone_until_the_ratio_changes(tmp_path: Path) -> None:
    node = normalized(tmp_path)
    node.node(cpu_normalization_ratio="1.25")
    raise_quotas(node, 1.5)
    burst = quotas(node)

    node.clock.now_s += 61
    node.refresh()
    node.run_pods(SERVICE, pod("other"))
    assert quotas(node) == burst

    node.node(cpu_normalization_ratio="1.60")
    assert quotas(node) == scaled(1.60)


def test_a_quota_beyond_what_burst_may_give_is_set_again(tmp_path: Path) -> None:
    node = normalized(tmp_path)
    node.node(cpu_normalization_ratio="1.25")
    raise_quotas(node, 3.5)

    node.clock.now_s += 61
    node.refresh()

    assert quotas(node) == scaled(1.25)


def test_without_burst_every_other_quota_is_set_again(tmp_path: Path) -> None:
    node = normalized(tmp_path)
    node.policy(slo())
    node.node(cpu_normalization_ratio="1.25")
    raise_quotas(node, 1.5)

    node.clock.now_s += 61
    node.refresh()

    assert quotas(node) == scaled(1.25)


def test_pods_with_cpus_of_their_own_are_not_normalized(tmp_path: Path) -> None:
    node = started(tmp_path, gates="CPUNormalization=true")
    node.node(cpu_normalization_ratio="2.00")

    node.run_pods(pod("pinned", "", kube="Guaranteed", resources=[native("1")], annotations=BOUND))

    assert node.says(Knob.CPU_QUOTA, PINNED) == "-1"


async def test_others_have_their_turn_before_all_of_many_pods_are_reconciled(tmp_path: Path) -> None:
    node = started(tmp_path)
    names = [f"job{number}" for number in range(80)]
    groups = [f"{BEST_EFFORT}/pod{name}" for name in names]
    node.run_pods(*(pod(name, "BE", resources=[batch(1000)]) for name in names))

    def limited() -> int:
        return sum(node.says(Knob.CPU_QUOTA, group) == "100000" for group in groups)

    assert limited() == len(names)
    for group in groups:
        node.host.files.write(node.host.cgroups.path(Knob.CPU_QUOTA, group), "-1")
    node.clock.now_s += 61
    running = asyncio.create_task(node.hooks.run())
    await asyncio.sleep(0)
    node.refresh()
    seen = [0]
    async with asyncio.timeout(60):
        while seen[-1] < len(names):
            await asyncio.sleep(0)
            seen.append(limited())
    running.cancel()

    assert all(after - before <= 4 for before, after in itertools.pairwise(seen)), (
        "the event loop was held up"
    )
