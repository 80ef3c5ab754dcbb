"""CPU lists, batch limits, normalized quotas and OOM scores on real groups with real processes."""

import os
from pathlib import Path

import pytest

from koordinator.api import labels
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from tests.kernel.conftest import Spawn, has
from tests.kernel.hook_host import RealNode
from tests.koordlet.hooks.hook_node import BEST_EFFORT, BURSTABLE, batch, native, pod, slo

WEB, JOB = f"{BURSTABLE}/podweb", f"{BEST_EFFORT}/podjob"
CPUS = sorted(os.sched_getaffinity(0))


def affinity(pid: int) -> set[int]:
    return set(os.sched_getaffinity(pid))


def pools(cpus: str) -> str:
    return f'[{{"socket":0,"node":0,"cpuset":"{cpus}"}}]'


def test_processes_run_on_the_cpus_of_the_share_pool_and_of_their_allocation(
    real: Cgroups, group: str, spawn: Spawn, tmp_path: Path
) -> None:
    node = RealNode(tmp_path, real, group)
    if len(CPUS) < 2 or not has(node.host.cgroups, Knob.CPUSET, "kubepods"):
        pytest.skip("needs two CPUs and the cpuset controller")
    first, last = CPUS[0], CPUS[-1]
    pinned = pod(
        "pinned", "LSR", kube="Burstable", annotations={labels.RESOURCE_STATUS: f'{{"cpuset":"{last}"}}'}
    )
    node.start(pod("web"), pinned)
    web = spawn(f"{group}/{WEB}/web-c0")
    bound = spawn(f"{group}/{BURSTABLE}/podpinned/pinned-c0")

    node.topology(cpu_shared_pools=pools(str(first)))

    assert (affinity(web), affinity(bound)) == ({first}, {last})
    assert node.host.cgroups.quota_us(f"{BURSTABLE}/podpinned/pinned-c0") == -1
    node.topology(cpu_shared_pools=pools(f"{first},{last}"))
    assert affinity(web) == {first, last}


def test_batch_pods_are_limited_and_unlimited_while_their_parent_is_squeezed(
    real: Cgroups, group: str, spawn: Spawn, tmp_path: Path
) -> None:
    node = RealNode(tmp_path, real, group)
    node.start(pod("job", "BE", resources=[batch(1000, "256Mi"), batch(500, "128Mi")]))
    spawn(f"{group}/{JOB}/job-c0")
    cgroups = node.host.cgroups
    groups = (JOB, f"{JOB}/job-c0", f"{JOB}/job-c1")
    assert [cgroups.quota_us(each) for each in groups] == [150_000, 100_000, 50_000]
    assert [cgroups.memory_limit_bytes(each) for each in groups] == [384 << 20, 256 << 20, 128 << 20]

    node.run_pods(pod("job", "BE", resources=[batch(400, "256Mi"), batch(2000, "128Mi")]))
    assert [cgroups.quota_us(each) for each in groups] == [240_000, 40_000, 200_000]

    node.policy(slo(resourceUsedThresholdWithBE={"enable": True, "cpuSuppressPolicy": "cfsQuota"}))
    assert [cgroups.quota_us(each) for each in groups] == [-1, -1, -1]
    if cgroups.version == V1:
        assert cgroups.write(Knob.CPU_QUOTA, BEST_EFFORT, "20000") is None, (
            "no child has more than its parent"
        )


def test_quotas_follow_the_ratio_of_the_node_up_and_down(real: Cgroups, group: str, tmp_path: Path) -> None:
    node = RealNode(tmp_path, real, group, gates="CPUNormalization=true")
    node.start(pod("web", resources=[native("2"), native("1")]))
    plain = {WEB: 300_000, f"{WEB}/web-c0": 200_000, f"{WEB}/web-c1": 100_000}
    for name, quota_us in plain.items():
        assert node.host.cgroups.write(Knob.CPU_QUOTA, name, str(quota_us)) is None

    for ratio in ("1.25", "2.00", "1.60"):
        node.node(cpu_normalization_ratio=ratio)
        found = {name: node.host.cgroups.quota_us(name) for name in plain}
        assert found == {name: int(quota_us / float(ratio)) for name, quota_us in plain.items()}
    node.node()

    assert {name: node.host.cgroups.quota_us(name) for name in plain} == plain


def test_processes_get_their_oom_score(real: Cgroups, group: str, spawn: Spawn, tmp_path: Path) -> None:
    node = RealNode(tmp_path, real, group, gates="OOMScoreAdj=true")
    node.start(pod("web", annotations={labels.OOM_SCORE_ADJ: "321"}))
    pid = spawn(f"{group}/{WEB}/web-c0")

    node.refresh()

    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "321"
