"""Reports of usage: fresh ones only, unknown stays unknown, and an API that is away costs nothing but the report."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordinator.api.node_metric import (
    NodeMetric,
    NodeMetricSpec,
    NodeMetricStatus,
    ReclaimableMetric,
    ResourceMap,
)
from koordinator.api.slo import NodeSLOSpec
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect.all import SeriesRetention
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.koordlet.report.node_metric_reporter import RETRY_S, UNKNOWN_S, NodeMetricReporter
from tests.koordlet.report.agent_node import GIB, NAME, NOW_S, AgentNode, api, cards, node_object, pod_object
from tests.koordlet.report.faulty_cluster import FaultyCluster

AWAY = errors.ServiceUnavailable("no answer")


class Reporting:
    """A node with a NodeMetric and a reporter that has begun."""

    def __init__(self, node: AgentNode, cluster: FaultyCluster) -> None:
        self.node, self.cluster = node, cluster
        self.trainer = Trainer(node.shared)
        self.reporter = NodeMetricReporter(node.shared, ShadowMode(node.shared), self.trainer)

    async def report(self) -> NodeMetricStatus:
        await self.reporter.run()
        return (await self.cluster.get(NodeMetric, NAME)).status

    async def says(self) -> dict[str, Any]:
        """The status as it is stored."""
        path = NodeMetric.resource.path(name=NAME)
        status: dict[str, Any] = (await self.cluster.request("GET", path))["status"]
        return status


async def reporting(root: Path, *, gates: str = "", **spec: Any) -> Reporting:
    cluster = await api(FixedClock(NOW_S))
    made = await cluster.create(
        NodeMetric, {"metadata": {"name": NAME}, "spec": {"metricCollectPolicy": spec} if spec else {}}
    )
    node = AgentNode(root, cluster, gates=gates)
    node.view.node = node_object()
    node.view.metric_spec = made.spec
    cluster.writes.clear()
    found = Reporting(node, cluster)
    await found.reporter.run()
    return found


async def test_the_first_report_comes_one_interval_after_the_start(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    assert found.cluster.writes == []
    assert found.reporter.interval_s == pytest.approx(60, rel=0.05)

    await found.reporter.run()

    assert found.cluster.writes == ["patch NodeMetric/status"]


async def test_the_first_report_is_not_late_when_the_object_is_known_late(tmp_path: Path) -> None:
    found = await reporting(tmp_path, reportIntervalSeconds=30)
    spec, found.node.view.metric_spec = found.node.view.metric_spec, None
    late = NodeMetricReporter(found.node.shared, ShadowMode(found.node.shared), found.trainer)
    await late.run()
    assert late.interval_s == UNKNOWN_S

    found.node.view.metric_spec = spec
    await late.run()

    assert found.cluster.writes == []
    assert late.interval_s == pytest.approx(30, rel=0.05)


async def test_what_was_measured_is_reported(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    node = found.node
    node.pods(pod_object("web"), pod_object("unmeasured"))
    node.use(3.5, 8 * GIB)
    node.sample(kinds.SYS_CPU, 0.4)
    node.sample(kinds.SYS_MEMORY, GIB)
    node.pod_uses("web", 1.0, GIB)
    node.view.numa_meminfo_kib = {0: {"MemTotal": 1}}
    node.sample(kinds.NODE_NUMA_CPU, 3.5, numa_node_id="0")
    node.sample(kinds.NODE_NUMA_MEMORY, 8 * GIB, numa_node_id="0")
    found.trainer.run()

    status = await found.report()

    assert status.update_time == "2023-11-15T00:00:00Z"
    assert status.node_metric is not None
    assert status.node_metric.node_usage.resources == {"cpu": "3500m", "memory": "8Gi"}
    assert status.node_metric.system_usage.resources == {"cpu": "400m", "memory": "1Gi"}
    assert [each.numa_node_id for each in status.node_metric.numa_usages] == [0]
    assert [(each.name, each.priority, each.qos) for each in status.pods_metric] == [
        ("web", "koord-prod", "LS")
    ]
    assert status.prod_peak_metric is not None
    assert node.says("reclaimable_status") == {("koord-prod",): 0}


async def test_amounts_that_are_unknown_now_do_not_stay_from_the_last_report(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    found.node.pods(pod_object("web"))
    found.node.use(3.5, 8 * GIB)
    found.node.pod_uses("web", 1.0, GIB)
    found.trainer.run()
    await found.report()
    assert "resources" in (await found.says())["nodeMetric"]["nodeUsage"]

    found.node.fixed.now_s += 3600
    await found.report()

    said = await found.says()
    assert said["updateTime"] == "2023-11-15T01:00:00Z"
    assert not said["nodeMetric"].get("nodeUsage")
    assert not said.get("podsMetric")


async def test_without_prediction_nothing_is_lent(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    found.node.use(3.5, 8 * GIB)

    status = await found.report()

    assert status.prod_peak_metric is None
    assert (await found.says())["prodReclaimableMetric"] == {}
    assert found.node.says("reclaimable_status") == {("koord-prod",): 1}
    assert found.node.says("reclaimable") == {}


async def test_only_pods_that_were_measured_count_for_the_prediction(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    found.node.pods(pod_object("web", cpu="2"), pod_object("pending", cpu="100"))
    found.node.use(2.0, 4 * GIB)
    found.node.pod_uses("web", 1.0, GIB)
    found.trainer.run()

    status = await found.report()

    assert status.prod_peak_metric is not None
    assert status.prod_peak_metric.resource.resources["cpu"] != "100"
    alone = found.trainer.prod([pod_object("web", cpu="2")])
    assert status.prod_peak_metric.resource.resources["cpu"] == f"{alone.peak.cpu_milli}m"


async def test_an_api_that_is_away_gets_one_fresh_report_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = await reporting(tmp_path)
    for minute in range(10):
        found.node.fixed.now_s += 60
        found.node.use(float(minute), GIB)
        found.cluster.faults = [AWAY]
        await found.reporter.run()
        assert found.reporter.interval_s == RETRY_S
    found.node.fixed.now_s += 600
    found.node.use(7.0, GIB)

    status = await found.report()

    assert found.cluster.writes == ["patch NodeMetric/status"]
    assert status.node_metric is not None
    assert status.node_metric.node_usage.resources["cpu"] == "7"
    assert found.reporter.interval_s == pytest.approx(60, rel=0.05)
    assert caplog.text.count("failed") == 2  # the API once, and that there is nothing learnt to predict with


async def test_a_lost_race_is_tried_again_at_once(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    found.cluster.faults = [errors.Conflict("changed"), errors.Conflict("changed")]

    await found.reporter.run()

    assert found.cluster.writes == ["patch NodeMetric/status"]


async def test_an_object_that_is_gone_is_left_to_the_manager(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    await found.cluster.delete(NodeMetric, NAME)

    await found.reporter.run()

    assert found.cluster.writes == []
    assert found.reporter.interval_s == pytest.approx(60, rel=0.05)


async def test_nothing_is_reported_before_the_object_was_seen(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    found.node.view.metric_spec = None

    await found.reporter.run()

    assert found.cluster.writes == []


async def test_the_interval_of_the_spec_holds_from_the_next_pause_on(tmp_path: Path) -> None:
    found = await reporting(tmp_path, reportIntervalSeconds=120)
    assert found.reporter.interval_s == pytest.approx(120, rel=0.05)

    found.node.view.metric_spec = NodeMetricSpec()

    assert found.reporter.interval_s == pytest.approx(60, rel=0.05)
    assert len({found.reporter.interval_s for _ in range(10)}) == 10


@pytest.mark.parametrize(
    ("text", "why"), [("soon", "a duration"), ("0s", "a duration above 0"), ("-5m", "a duration above 0")]
)
async def test_a_window_that_cannot_be_read_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, why: str
) -> None:
    found = await reporting(tmp_path, nodeAggregatePolicy={"durations": ["5m", text]})

    status = await found.report()
    await found.report()

    assert status.node_metric is not None
    assert [each.duration for each in status.node_metric.aggregated_node_usages] == ["5m0s"]
    assert caplog.text.count("nodeAggregatePolicy.durations") == 1
    assert f"'{text}' is not {why}" in caplog.text


async def test_longer_windows_than_usual_are_kept_in_store(tmp_path: Path) -> None:
    found = await reporting(tmp_path, aggregateDurationSeconds=1200)
    SeriesRetention(found.node.shared).collect()
    found.node.pods(pod_object("web"))
    for ago_s in range(1200, -1, -1):
        found.node.pod_uses("web", float(ago_s > 600), GIB, ago_s)

    status = await found.report()

    (pod,) = status.pods_metric
    assert pod.pod_usage.resources["cpu"] == "499m"


async def test_gauges_of_the_report_need_their_gate(tmp_path: Path) -> None:
    off = await reporting(tmp_path)
    off.node.use(3.5, 8 * GIB)
    await off.report()
    on = await reporting(tmp_path, gates="NodeMetricPromMetrics=true")
    on.node.use(3.5, 8 * GIB)
    await on.report()

    assert off.node.says("node_usage") == {}
    assert on.node.says("node_usage") == {("cpu", "core"): 3.5, ("memory", "byte"): 8 * GIB}
    on.node.fixed.now_s += 3600
    await on.report()
    assert on.node.says("node_usage") == {}


async def test_the_spec_is_never_written(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    patch = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 90}}}
    await found.cluster.patch(NodeMetric, NAME, patch, patch_type=PatchType.MERGE)

    await found.report()

    spec = (await found.cluster.get(NodeMetric, NAME)).spec
    assert spec.metric_collect_policy is not None
    assert spec.metric_collect_policy.report_interval_seconds == 90


async def test_gpus_are_reported_with_what_is_used_of_them(tmp_path: Path) -> None:
    found = await reporting(tmp_path)
    found.node.use(3.5, 8 * GIB)
    gpus = cards()
    shared = msgspec.structs.replace(found.node.shared, gpus=gpus)
    for gpu in gpus.devices[:1]:
        at = {"gpu_minor": str(gpu.minor), "gpu_device_uuid": gpu.uuid}
        found.node.sample(kinds.NODE_GPU_CORE, 55.0, **at)
        found.node.sample(kinds.NODE_GPU_MEMORY, 20 * GIB, **at)

    status = NodeMetricReporter(shared, ShadowMode(shared), found.trainer).status()

    assert status.node_metric is not None
    (device,) = status.node_metric.node_usage.devices
    assert (device.id, device.minor) == ("GPU-0", 0)
    assert device.resources == {
        "koordinator.sh/gpu-core": "55",
        "koordinator.sh/gpu-memory": "20Gi",
        "koordinator.sh/gpu-memory-ratio": "25",
    }


async def test_bills_of_shadow_mode_go_with_the_report_and_prediction_in_shadow_is_not_offered(
    tmp_path: Path,
) -> None:
    found = await reporting(tmp_path)
    mode = found.reporter._mode
    free = ReclaimableMetric(resource=ResourceMap(resources={"cpu": "2", "memory": "4Gi"}))
    plain = NodeMetricStatus(prod_reclaimable_metric=free)
    assert found.reporter._in_shadow(plain) == plain

    found.node.view.slo = NodeSLOSpec(extensions={"shadow": {"strategies": ["Prediction"]}})
    found.node.shared.clock.now_s += 60  # type: ignore[attr-defined]
    told = found.reporter._in_shadow(plain)

    assert told.prod_reclaimable_metric is None
    assert told.extensions["shadow"]["strategies"] == ["Prediction"]
    (hour,) = told.extensions["shadow"]["wouldHave"]["Prediction"]
    assert hour["lentCoreSeconds"] == 120.0
    assert mode.body() == told.extensions["shadow"]

    found.node.shared.clock.now_s += 365 * 86_400  # type: ignore[attr-defined] # it was set
    told = found.reporter._in_shadow(plain)
    (hour,) = told.extensions["shadow"]["wouldHave"]["Prediction"]
    assert hour["lentCoreSeconds"] == 2 * 3_600.0, "an hour costs no more than an hour"
