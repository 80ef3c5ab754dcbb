"""The process node with real processes in real groups."""

from pathlib import Path

from koordinator.api.core import ContainerStateTerminated, Pod
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from tests.kernel.process_world import process_world, sh


async def test_a_pod_runs_in_its_groups_with_what_it_requests(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    async with process_world(group, tmp_path) as world:
        resources = {
            "requests": {"cpu": "250m", "memory": "64Mi"},
            "limits": {"cpu": "500m", "memory": "128Mi"},
        }
        await world.create("web", sh("exec sleep 60", resources=resources))

        pod = await world.phase("web", "Running")

        of_pod = f"{group}/kubepods/burstable/pod{pod.metadata.uid}"
        container_id = pod.status.container_statuses[0].container_id
        assert container_id.startswith("containerd://") and len(container_id) == 13 + 64
        own = f"{of_pod}/{container_id.removeprefix('containerd://')}"
        assert len(real.children(of_pod) or ()) == 2, "the container and the sandbox"
        for each in (of_pod, own):
            assert real.shares(each) == kept(real, 256)
            assert real.quota_us(each) == 50_000
            assert real.memory_limit_bytes(each) == 128 * 2**20
        assert real.shares(f"{group}/kubepods/burstable") == kept(real, 256)
        assert real.shares(f"{group}/kubepods/besteffort") == kept(real, 2)
        (pid,) = real.procs(own) or ()
        assert real.procs(own, "memory") == [pid]
        memory = world.host.machine.memory()
        assert memory is not None
        score = 1000 - 1000 * 64 * 2**20 // memory.total_bytes
        assert world.host.processes.oom_score_adj(pid) == score

        await world.delete("web")

        assert not real.exists(of_pod)


async def test_a_job_ends_as_its_exit_code_says(group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await world.create("good", sh("exit 0"), restartPolicy="Never")
        await world.create("bad", sh("exit 3"), restartPolicy="Never")

        good = await world.phase("good", "Succeeded", "Failed")
        bad = await world.phase("bad", "Succeeded", "Failed")

        assert good.status.phase == "Succeeded" and _ended(good).exit_code == 0
        assert bad.status.phase == "Failed" and (_ended(bad).exit_code, _ended(bad).reason) == (3, "Error")


def _ended(pod: Pod) -> ContainerStateTerminated:
    ended = pod.status.container_statuses[0].state.terminated
    assert ended is not None
    return ended


async def test_pods_start_while_an_agent_keeps_the_best_effort_group_idle(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    async with process_world(group, tmp_path) as world:
        idle = real.path(Knob.CPU_IDLE, f"{group}/kubepods/besteffort")
        assert real.files.write(idle, "1") is None

        await world.create("batch", sh("exec sleep 60"))
        await world.phase("batch", "Running")

        assert (real.files.read(idle) or "").strip() == "1"


def kept(real: Cgroups, shares: int) -> int:
    """What a group says of the shares that it was given: weights of v2 are coarser."""
    if real.version == V1:
        return shares
    return cgroup_knobs.shares_of_weight(cgroup_knobs.weight_of_shares(shares))
