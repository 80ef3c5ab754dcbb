"""Hollow nodes do to pods what kubelets do, as seen through the API."""

import asyncio
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api import quantity
from koordinator.api.core import Event, Node, Pod
from koordinator.api.groups import Lease
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.local.nodes import behaviour, kubelet
from koordinator.local.nodes.fleet import FleetPolicy
from koordinator.local.nodes.hollow import HollowConfig
from koordinator.simulate.virtual_time import run_virtual
from tests.local.nodes.world import World, world

BATCH = {"kubernetes.io/batch-cpu": "4000", "kubernetes.io/batch-memory": "4Gi"}
BE = {"koordinator.sh/qosClass": "BE"}


def phase(pod: Pod) -> str:
    return pod.status.phase


def condition(pod: Pod | Node, kind: str) -> str:
    return next((c.status for c in pod.status.conditions if c.type == kind), "")


def test_a_node_registers_with_its_size_and_stays_alive() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, nodes=3, cpu_milli=16_000, reserved_milli=500) as w:
            node = await w.cluster.get(Node, "node-2")
            assert node.status.capacity["cpu"] == "16"
            assert node.status.allocatable["cpu"] == "15500m"
            assert node.metadata.labels["kubernetes.io/hostname"] == "node-2"
            assert condition(node, "Ready") == "True"

            await asyncio.sleep(600)

            lease = await w.cluster.get(Lease, "node-2", "kube-node-lease")
            assert clock.now() - clocks.parse_rfc3339(lease.spec.renew_time or "") <= 11
            beats = {c.last_heartbeat_time for c in (await w.cluster.get(Node, "node-2")).status.conditions}
            assert len(beats) == 1
            assert clock.now() - clocks.parse_rfc3339(beats.pop() or "") <= 301

    run_virtual(main)


def test_a_silent_node_misses_its_heartbeats_until_it_is_revived() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, nodes=2) as w:

            async def age(name: str) -> float:
                lease = await w.cluster.get(Lease, name, "kube-node-lease")
                return clock.now() - clocks.parse_rfc3339(lease.spec.renew_time or "")

            w.nodes.silence(["node-1"])
            await asyncio.sleep(120)
            assert await age("node-0") < 11
            assert await age("node-1") > 100
            w.nodes.revive(["node-1"])
            await asyncio.sleep(11)
            assert await age("node-1") < 11

    run_virtual(main)


def test_a_pod_starts_runs_and_is_ready() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await w.pod("web", start_delay_seconds=5)
            await asyncio.sleep(3)
            assert phase(await w.get("web")) == "Pending"

            await asyncio.sleep(4)

            web = await w.get("web")
            assert phase(web) == "Running"
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready"):
                assert condition(web, kind) == "True"
            assert web.status.pod_ip and web.status.host_ip
            assert web.status.container_statuses[0].state.running is not None

    run_virtual(main)


@pytest.mark.parametrize(("exit_code", "expected"), [(0, "Succeeded"), (3, "Failed")])
def test_a_job_pod_ends_after_its_cpu_work(exit_code: int, expected: str) -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            # 600 core-seconds at two cores take five minutes.
            await w.pod("job", cpu_milli=2_000, cpu_work_core_seconds=600, exit_code=exit_code)
            await asyncio.sleep(290)
            assert phase(await w.get("job")) == "Running"

            await asyncio.sleep(25)

            job = await w.get("job")
            assert phase(job) == expected
            assert condition(job, "Ready") == "False"
            ended = job.status.container_statuses[0].state.terminated
            assert ended is not None and ended.exit_code == exit_code

    run_virtual(main)


def test_work_takes_longer_where_cpu_is_short() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, cpu_milli=4_000) as w:
            for name in ("a", "b"):
                await w.pod(name, cpu_milli=4_000, cpu_work_core_seconds=400)
            await asyncio.sleep(150)
            assert phase(await w.get("a")) == "Running"  # alone it would have ended after 100 s
            await asyncio.sleep(70)
            assert phase(await w.get("a")) == "Succeeded"

    run_virtual(main)


def test_a_slow_node_needs_longer_for_the_same_work() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, nodes=2) as w:
            w.nodes.slow_down(["node-1"], 0.5)
            await w.pod("fast", "node-0", cpu_milli=1_000, cpu_work_core_seconds=100)
            await w.pod("slow", "node-1", cpu_milli=1_000, cpu_work_core_seconds=100)
            await asyncio.sleep(150)
            assert phase(await w.get("fast")) == "Succeeded"
            assert phase(await w.get("slow")) == "Running"

    run_virtual(main)


@pytest.mark.parametrize(
    ("spec", "owner", "ends_after_s"),
    [
        ({"command": ["sleep", "60"]}, None, 60),
        ({"command": ["sh", "-c", "sleep 2m"]}, None, 120),
        ({"command": ["sleep"], "args": ["1.5"]}, "Job", 2),
        ({"command": ["perl", "pi.pl"]}, "Job", behaviour.JOB_RUN_S),
    ],
)
def test_without_annotation_sleep_sleeps_and_pods_of_jobs_end(
    spec: dict[str, Any], owner: str | None, ends_after_s: float
) -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await create_plain(w, spec, owner)
            await asyncio.sleep(ends_after_s - 0.5)
            assert phase(await w.get("plain")) != "Succeeded"
            await asyncio.sleep(10)  # it took a moment to start
            assert phase(await w.get("plain")) == "Succeeded"

    run_virtual(main)


@pytest.mark.parametrize(
    ("spec", "owner", "restart_policy"),
    [
        ({"command": ["sleep", "infinity"]}, None, "Never"),
        ({"command": ["perl", "pi.pl"]}, "ReplicaSet", "Never"),
        ({"command": ["sleep", "5"]}, "ReplicaSet", "Always"),
    ],
)
def test_without_annotation_other_pods_run_until_they_are_deleted(
    spec: dict[str, Any], owner: str | None, restart_policy: str
) -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await create_plain(w, spec, owner, restart_policy)
            await asyncio.sleep(600)
            pod = await w.get("plain")
            assert phase(pod) == "Running"
            assert pod.status.container_statuses[0].restart_count == 0

    run_virtual(main)


async def create_plain(
    w: World, container: dict[str, Any], owner: str | None, restart_policy: str = "Never"
) -> None:
    meta: dict[str, Any] = {"name": "plain"}
    if owner is not None:
        meta["ownerReferences"] = [
            {"apiVersion": "x/v1", "kind": owner, "name": "o", "uid": "u", "controller": True}
        ]
    spec = {"restartPolicy": restart_policy, "containers": [{"name": "main", "image": "i", **container}]}
    await w.cluster.create(Pod, {"metadata": meta, "spec": spec}, "default")
    await w.cluster.bind("default", "plain", "node-0")


def test_addresses_are_those_of_hosts_not_of_the_network() -> None:
    assert kubelet.host_ip(0) == "10.64.0.2"
    assert kubelet.pod_ip(0) == "10.128.0.2"
    assert kubelet.pod_ip(65_533) == "10.128.255.255"
    assert kubelet.pod_ip(65_534) == "10.129.0.0"  # inside 10.128.0.0/10 an address like any other
    assert len({kubelet.pod_ip(slot) for slot in range(100_000)}) == 100_000


def test_a_pod_that_ran_its_time_restarts_when_its_policy_says_so() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await w.pod("loop", run_seconds=30, exit_code=1, restart_policy="OnFailure")
            await asyncio.sleep(40)
            waiting = (await w.get("loop")).status.container_statuses[0]
            assert waiting.state.waiting is not None
            assert waiting.last_state.terminated is not None

            await asyncio.sleep(15)

            again = (await w.get("loop")).status.container_statuses[0]
            assert again.state.running is not None
            assert again.restart_count == 1

    run_virtual(main)


def test_the_oom_killer_ends_a_container_with_137() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await w.pod("fat", oom_after_seconds=20)
            await asyncio.sleep(60)
            fat = await w.get("fat")
            ended = fat.status.container_statuses[0].state.terminated
            assert phase(fat) == "Failed"
            assert ended is not None and (ended.exit_code, ended.reason) == (137, "OOMKilled")

    run_virtual(main)


def test_a_deleted_pod_stops_gracefully_and_is_gone() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await w.pod("web")
            await asyncio.sleep(10)
            await w.cluster.delete(Pod, "web", "default", grace_period_s=30)
            assert (await w.get("web")).metadata.deletion_timestamp is not None

            await asyncio.sleep(35)

            with pytest.raises(errors.NotFound):
                await w.get("web")
            assert w.fleet.shape_of == {}

    run_virtual(main)


def test_a_deleted_pod_whose_node_is_silent_waits_for_the_node() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await w.pod("web")
            await asyncio.sleep(10)
            w.nodes.silence(["node-0"])
            await w.cluster.delete(Pod, "web", "default")
            await asyncio.sleep(120)
            assert await w.pods() == ["web"]
            w.nodes.revive(["node-0"])
            await asyncio.sleep(10)
            assert await w.pods() == []

    run_virtual(main)


def test_best_effort_pods_are_evicted_when_memory_runs_short() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, policy=FleetPolicy(system_memory_bytes=0.0), memory_bytes=100 * 2**30) as w:
            await w.pod("service", memory_bytes=50 * 2**30)
            for name, gib in (("small", 5), ("large", 18)):
                await w.pod(name, memory_bytes=gib * 2**30, requests=BATCH, limits=BATCH, labels=BE)

            await asyncio.sleep(30)

            assert await w.pods() == ["service", "small"]
            assert w.nodes.evicted_count == 1
            events = [e.reason for e in (await w.cluster.list(Event)).items]
            assert events == ["evictPodSuccess"]

    run_virtual(main)


def test_a_broken_behaviour_becomes_an_event_and_defaults() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await create_with_annotation(w, '{"cpuMilli": "lots"}')
            await asyncio.sleep(10)
            assert phase(await w.get("odd")) == "Running"
            events = (await w.cluster.list(Event)).items
            assert [e.reason for e in events] == ["InvalidBehaviour"]
            assert "simulation.koordinator.sh/behaviour" in events[0].message

    run_virtual(main)


async def create_with_annotation(w: World, text: str) -> None:
    body = {
        "metadata": {"name": "odd", "annotations": {"simulation.koordinator.sh/behaviour": text}},
        "spec": {"containers": [{"name": "main", "image": "work"}]},
    }
    await w.cluster.create(Pod, body, "default")
    await w.cluster.bind("default", "odd", "node-0")


async def ask_for_reports(w: World, name: str, interval_s: int = 60) -> None:
    policy = {"aggregateDurationSeconds": 300, "reportIntervalSeconds": interval_s}
    policy["nodeAggregatePolicy"] = {"durations": ["5m"]}  # type: ignore[assignment]
    body = {"metadata": {"name": name}, "spec": {"metricCollectPolicy": policy}}
    await w.cluster.create(NodeMetric, body)


def test_nodes_report_what_they_use_when_they_are_asked() -> None:
    async def main(clock: Clock) -> NodeMetric:
        async with world(clock, nodes=2) as w:
            await ask_for_reports(w, "node-0")
            await w.pod(
                "web", cpu_milli=1_500, memory_bytes=2 * 2**30, requests={"cpu": "4", "memory": "4Gi"}
            )
            await w.pod("batch", cpu_milli=2_000, requests=BATCH, limits=BATCH, labels=BE)
            await asyncio.sleep(600)
            assert [m.metadata.name for m in (await w.cluster.list(NodeMetric)).items] == ["node-0"]
            metric = await w.cluster.get(NodeMetric, "node-0")
            assert clock.now() - clocks.parse_rfc3339(metric.status.update_time or "") <= 61
            return metric

    status = run_virtual(main).status
    assert status.node_metric is not None
    used = status.node_metric.node_usage.resources
    system = status.node_metric.system_usage.resources
    pods = {pod.name: pod for pod in status.pods_metric}
    assert pods["web"].pod_usage.resources == {"cpu": "1500m", "memory": "2Gi"}
    assert (pods["web"].priority, pods["web"].qos) == ("koord-prod", "LS")
    assert (pods["batch"].priority, pods["batch"].qos) == ("koord-batch", "BE")
    assert milli(used["cpu"]) == pytest.approx(3_500 + milli(system["cpu"]), abs=2)
    window = status.node_metric.aggregated_node_usages[0]
    assert window.duration == "5m0s"
    assert set(window.usage) == {"avg", "p50", "p90", "p95", "p99"}
    assert milli(window.usage["p95"].resources["cpu"]) == pytest.approx(milli(used["cpu"]), abs=5)
    # As the node agent predicts: what a pod that is not a day old requested stays its own.
    assert status.prod_peak_metric is not None and status.prod_reclaimable_metric is not None
    peak = status.prod_peak_metric.resource.resources
    assert peak["cpu"] == "4"
    # Of memory its class and the system use more: 4.5 GiB, a margin of 10 %, buckets of 5 %.
    assert 4.5 * 1.1 * 2**30 <= quantity.value(peak["memory"]) <= 4.5 * 1.1 * 1.06 * 2**30
    assert status.prod_reclaimable_metric.resource.resources == {"cpu": "0", "memory": "0"}


async def reported_s(w: World, wait_s: float) -> float:
    """When the node last reported, asked so many seconds from now; seconds after the beginning of time."""
    await asyncio.sleep(wait_s)
    metric = await w.cluster.get(NodeMetric, "node-0")
    return clocks.parse_rfc3339(metric.status.update_time or "")


def test_a_shorter_interval_of_reports_counts_at_once() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await ask_for_reports(w, "node-0", 600)
            await asyncio.sleep(60)
            quick = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 30}}}
            await w.cluster.patch(NodeMetric, "node-0", quick)
            patched_s = clock.now()
            assert await reported_s(w, 31) > patched_s

    run_virtual(main)


def test_nobody_waits_longer_for_the_first_report_than_the_configuration_says() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, config=HollowConfig(first_report_s=5.0)) as w:
            await ask_for_reports(w, "node-0", 60)
            began_s = clock.now()
            assert 0 < await reported_s(w, 7) - began_s <= 6
            assert 60 < await reported_s(w, 60) - began_s <= 66

            await w.cluster.delete(NodeMetric, "node-0")
            await ask_for_reports(w, "node-0", 600)
            await asyncio.sleep(240)
            assert not (await w.cluster.get(NodeMetric, "node-0")).status.update_time

    run_virtual(main)


def milli(text: object) -> int:
    assert isinstance(text, str) and text.endswith("m"), text
    return int(text[:-1])


def test_two_runs_are_the_same_to_the_last_write() -> None:
    async def main(clock: Clock) -> list[str]:
        async with world(clock, nodes=4) as w:
            for row in range(4):
                await ask_for_reports(w, f"node-{row}")
                await w.pod(f"web-{row}", f"node-{row}", cpu_milli=900, noise_sigma=0.4)
                await w.pod(f"job-{row}", f"node-{row}", cpu_milli=900, cpu_work_core_seconds=200 + row)
            await asyncio.sleep(400)
            metrics = (await w.cluster.list(NodeMetric)).items
            pods = (await w.cluster.list(Pod)).items
            return [repr(m.status) for m in metrics] + [repr(p.status) for p in pods]

    assert run_virtual(main) == run_virtual(main)
