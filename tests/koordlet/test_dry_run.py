"""A dry run changes nothing, on the node or in the cluster, and tells what it would."""

import asyncio
from pathlib import Path

from koordinator.api.core import Event, Pod
from tests.koordlet.agent_world import NODE, World, live
from tests.koordlet.test_agent import protecting


def contents(root: Path) -> dict[str, str]:
    """Groups, and what is kept below /run and beside."""
    places = [root / "sys/fs/cgroup", root / "run", root / "checkpoints", root / "audit"]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    changing = ("cpuacct.usage",)
    return {str(path): path.read_text() for path in files if path.name not in changing}


def test_nothing_is_written_and_each_change_is_reported(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects(protecting())
        world.run_pod("web", batch=False, cores=1.5)
        world.run_pod("batch", batch=True, cores=1.0)
        before, metric = contents(tmp_path), await world.node_metric()
        await asyncio.sleep(130)

        assert contents(tmp_path) == before
        assert (await world.node_metric()).metadata.resource_version == metric.metadata.resource_version
        assert (await world.api.list(Event)).items == []
        quota = [line for line in world.lines if "besteffort/cpu.cfs_quota_us" in line]
        assert quota and "(CPUSuppress: AdjustBEByNodeCPUUsage)" in quota[0]
        assert len(quota) <= 4, "each change is told once"
        assert any(
            line.startswith(f"patch nodemetrics.slo.koordinator.sh {NODE}/status [") for line in world.lines
        )

    live(tmp_path, scenario, dry_run=True, gates="AuditEvents=true")


def test_writes_to_the_cluster_are_reported_and_answered(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects({})
        cluster = world.agent.shared.cluster
        body = {"metadata": {"name": "p", "namespace": "d"}, "spec": {}}
        made = await cluster.create(Pod, body, "d")
        await cluster.delete(Pod, "p", "d")
        await cluster.evict("d", "p")
        await cluster.request("POST", "/x", {"a": 1})
        assert made.metadata.name == "p" and (await cluster.list(Pod)).items == []
        assert [line.partition(" {")[0] for line in world.lines] == [
            "create pods d/p",
            "delete pods d/p",
            "evict pods d/p",
            "POST /x",
        ]

    live(tmp_path, scenario, dry_run=True)
