"""The process node when the API refuses, when it is restarted itself, and when pods come and go in crowds."""

import asyncio
import random
from pathlib import Path
from typing import Any, TypeVar

from koordinator.api.core import ContainerStatus, Pod
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.cgroups import Cgroups
from tests.kernel.process_world import NAMESPACE, eventually, new_cluster, process_world, sh

T = TypeVar("T", bound=Object)


class Flaky(MemoryCluster):
    """Every other write of the node to a pod fails, before it took effect or after."""

    rng = random.Random(7)
    is_flaky = False
    failure_count = 0

    async def patch(self, view: type[T], name: str, patch: Any, namespace: str = "", **options: Any) -> T:
        self._fail(0.3)
        done = await super().patch(view, name, patch, namespace, **options)
        self._fail(0.3)
        return done

    async def delete(self, view: type[T], name: str, namespace: str = "", **options: Any) -> None:
        self._fail(0.5)
        await super().delete(view, name, namespace, **options)

    def _fail(self, ratio: float) -> None:
        if self.is_flaky and self.rng.random() < ratio:
            self.failure_count += 1
            raise errors.ServiceUnavailable("the API server is restarted")


def first(pod: Pod) -> ContainerStatus:
    return pod.status.container_statuses[0]


async def test_pods_reach_their_ends_although_the_api_fails(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    cluster = new_cluster(Flaky)
    assert isinstance(cluster, Flaky)
    async with process_world(group, tmp_path, cluster) as world:
        cluster.is_flaky = True
        for number in range(4):
            await world.create(f"job-{number}", sh(f"exit {number % 2}"), restartPolicy="Never")
        await world.create("web", sh("exec sleep 60"))

        phases = [
            (await world.phase(f"job-{number}", "Succeeded", "Failed")).status.phase for number in range(4)
        ]
        web = await world.phase("web", "Running")
        cluster.is_flaky = False
        await cluster.delete(Pod, "web", NAMESPACE, grace_period_s=1)
        cluster.is_flaky = True
        await _gone(cluster, "web")

        assert phases == ["Succeeded", "Failed", "Succeeded", "Failed"]
        assert not real.exists(f"{group}/kubepods/besteffort/pod{web.metadata.uid}")
        assert cluster.failure_count > 0
        cluster.is_flaky = False


async def test_a_pod_that_vanishes_from_the_api_is_ended(real: Cgroups, group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await world.create("web", sh("exec sleep 60"))
        pod = await world.phase("web", "Running")
        of_pod = f"{group}/kubepods/besteffort/pod{pod.metadata.uid}"

        await world.delete("web", grace_s=0)

        await eventually(lambda: not real.exists(of_pod) and not world.node.workers)


async def test_a_restarted_node_restarts_what_should_run_and_fails_what_should_not(
    group: str, tmp_path: Path
) -> None:
    cluster = new_cluster()
    async with process_world(group, tmp_path, cluster) as world:
        await world.create("service", sh("exec sleep 60"), initContainers=[sh("true", "step")])
        await world.create("once", sh("exec sleep 60"), restartPolicy="Never")
        await world.create("done", sh("true"), restartPolicy="Never")
        before = await world.phase("service", "Running")
        await world.phase("once", "Running")
        await world.phase("done", "Succeeded")

    async with process_world(group, tmp_path, cluster) as world:
        service = await world.until("service", lambda pod: first(pod).restart_count == 1 and first(pod).ready)
        once = await world.phase("once", "Failed")

        assert first(service).container_id != first(before).container_id
        last = first(service).last_state.terminated
        assert last is not None and last.exit_code == 137
        assert service.status.init_container_statuses[0].restart_count == 0, "a step that is done is done"
        end = first(once).state.terminated
        assert end is not None and end.exit_code == 137
        assert (await world.get("done")).status.phase == "Succeeded"


async def test_an_idle_class_takes_no_shares_and_its_pods_run_all_the_same(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    async with process_world(group, tmp_path) as world:
        idle = f"{real.directory(f'{group}/kubepods/burstable')}/cpu.idle"
        if real.files.write(idle, "1") is not None:
            return  # this kernel has no idle groups
        await world.create("web", sh("exec sleep 60", resources={"requests": {"cpu": "100m"}}))

        await world.phase("web", "Running")


async def test_thirty_pods_come_and_go_and_leave_nothing(real: Cgroups, group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await asyncio.gather(*(world.create(f"p{number}", sh("exec sleep 60")) for number in range(30)))
        await asyncio.gather(*(world.phase(f"p{number}", "Running") for number in range(30)))
        assert len(real.children(f"{group}/kubepods/besteffort") or ()) == 30

        await asyncio.gather(*(world.delete(f"p{number}", grace_s=1) for number in range(30)))

        assert real.children(f"{group}/kubepods/besteffort") == []
        assert not world.node.groups.processes(world.node.groups.root)
        await eventually(lambda: not world.node.workers)
        assert not list((tmp_path / "pods" / "pods").iterdir())


async def _gone(cluster: MemoryCluster, name: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await cluster.get(Pod, name, NAMESPACE)
            except errors.NotFound:
                return
            await asyncio.sleep(0.05)
