"""The whole agent on a node of files: it reports, protects, survives outages, and puts back."""

import asyncio
import logging
import random
from pathlib import Path

import pytest

from koordinator.api.core import Event, Namespace
from koordinator.host.cgroup_knobs import V1
from koordinator.host.host import Feature
from koordinator.koordlet.audit import AuditFilter, AuditQuery
from tests.host import host_tree
from tests.koordlet.agent_world import World, live

GIB = 2**30
both_versions = pytest.mark.parametrize("version", host_tree.VERSIONS)
UNLIMITED = {V1: "-1"}


def protecting(**more: object) -> dict[str, object]:
    threshold = {"enable": True, "cpuSuppressThresholdPercent": 50, "cpuSuppressPolicy": "cfsQuota", **more}
    return {"resourceUsedThresholdWithBE": threshold}


@both_versions
def test_a_node_is_reported_and_its_services_are_protected(tmp_path: Path, version: int) -> None:
    unlimited = UNLIMITED.get(version, "max")

    async def scenario(world: World) -> None:
        await world.create_objects(protecting())
        world.run_pod("web", batch=False, cores=0.5)
        world.run_pod("batch", batch=True, cores=1.0)
        await asyncio.sleep(10)

        assert world.agent.is_started.is_set() and world.agent.troubles() == {}
        calm = int(world.quota())
        assert 140_000 <= calm <= 150_000, "half of 4 cores less the service's half core"

        world.use["web"] = 1.5
        await asyncio.sleep(3)
        assert int(world.quota()) <= 60_000, "the service needs it back"

        await asyncio.sleep(60)
        metric = (await world.node_metric()).status
        assert metric.node_metric is not None
        assert metric.node_metric.node_usage.resources["cpu"] != "0"
        assert {pod.name for pod in metric.pods_metric} == {"web", "batch"}

        await world.say(resourceUsedThresholdWithBE={"enable": False})
        await asyncio.sleep(3)
        assert world.quota() == unlimited

    live(tmp_path, scenario, version=version)


def test_the_audit_log_names_the_pod_and_container_that_something_was_done_to(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects(protecting(cpuSuppressPolicy="cpuset"))
        world.run_pod("web", batch=False, cores=1.0)
        world.run_pod("batch", batch=True, cores=1.0)
        await asyncio.sleep(10)

        query = AuditQuery(world.agent.shared.audit, world.agent.shared.clock, random.Random(0))
        events = query.page("2048", "", AuditFilter(namespace="d", name="batch")).events
        assert {(each.type, each.container) for each in events} == {("pod", ""), ("pod", "c0")}
        assert all("/podbatch/" in each.message for each in events)

    live(tmp_path, scenario, gates="AuditEvents=true")


def test_the_log_says_once_which_features_the_host_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects(protecting())
        await asyncio.sleep(10)

    with caplog.at_level(logging.INFO, logger="koordinator.koordlet.agent"):
        live(tmp_path, scenario)

    missing = [vars(each) for each in caplog.records if each.message == "feature not supported on this host"]
    assert [each["feature"] for each in missing].count(Feature.KIDLED) == 1
    assert all(each["reason"] for each in missing)


def test_protection_goes_on_while_the_api_server_is_away(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects(protecting())
        world.run_pod("web", batch=False, cores=0.5)
        world.run_pod("batch", batch=True, cores=1.0)
        await asyncio.sleep(70)
        before = (await world.node_metric()).status.update_time

        world.cluster.away = True
        await asyncio.sleep(300)
        world.use["web"] = 1.5
        await asyncio.sleep(3)
        assert int(world.quota()) <= 60_000
        world.use["web"] = 0.5
        await asyncio.sleep(297)
        assert int(world.quota()) >= 140_000
        assert world.cluster.refused > 10

        world.cluster.away = False
        await world.say(resourceUsedThresholdWithBE={"cpuSuppressThresholdPercent": 25})
        await asyncio.sleep(120)
        assert int(world.quota()) <= 60_000, "the new policy came"
        assert (await world.node_metric()).status.update_time != before

    live(tmp_path, scenario)


def test_batch_goes_while_all_pods_stall_on_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    psi = {"enable": True, "memoryUsedPercent": 1, "releasePercent": 1}
    calm = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    groups = tmp_path / "sys/fs/cgroup/kubepods"
    evicted: list[str] = []

    async def evict(namespace: str, pod: str, **_: object) -> None:
        evicted.append(pod)

    async def scenario(world: World) -> None:
        monkeypatch.setattr(world.api, "evict", evict)
        await world.create_objects({"extensions": {"eviction": {"PSIEvict": psi}}})
        world.run_pod("web", batch=False)
        namespace = world.run_pod("batch", batch=True).metadata.namespace
        await world.api.create(Namespace, {"metadata": {"name": namespace}})
        batch = groups / "besteffort/podbatch"
        for each in (batch, *(below for below in batch.iterdir() if below.is_dir())):
            stat = (each / "memory.stat").read_text().replace("active_anon 0", f"active_anon {GIB}")
            host_tree.write(each, {"memory.current": str(GIB), "memory.stat": stat})
        pressure = groups / "memory.pressure"
        pressure.write_text(calm + calm.replace("some", "full"))
        await asyncio.sleep(20)
        assert world.agent.is_started.is_set()
        assert evicted == []

        pressure.write_text(calm + "full avg10=70.00 avg60=30.00 avg300=10.00 total=9000000\n")
        await asyncio.sleep(11)  # a round is due every 5 s
        assert evicted == ["batch"]
        await asyncio.sleep(5)
        events = (await world.api.list(Event, namespace)).items
        assert any("memory pressure full avg10=70%" in each.message for each in events)

    live(tmp_path, scenario, version=host_tree.V2, gates="PSIEvict=true")
