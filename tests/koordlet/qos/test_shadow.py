"""Shadow mode: everything is decided, nothing is done, and the bill is what the live strategy does to the same node."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import slo
from koordinator.api.node_metric import NodeMetricStatus, ReclaimableMetric, ResourceMap
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Strategy
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos import evictions, shadow
from koordinator.koordlet.qos.cpu_burst_run import CPUBurst
from koordinator.koordlet.qos.shadow import Part, ShadowMode
from koordinator.koordlet.qos.shadow_bill import HOURS_MAX, RoundCost, ShadowBill, StrategyHour
from koordinator.koordlet.report.node_metric_reporter import NodeMetricReporter
from tests.cluster import virtual_loop
from tests.host import host_tree
from tests.koordlet.qos import test_cpu_burst_run as bursts
from tests.koordlet.qos.acting_node import ActingNode, acting, make_pod, threshold
from tests.koordlet.qos.qos_node import QoSNode
from tests.koordlet.qos.suppressed import busy_node

GIB = 2**30
pytestmark = pytest.mark.usefixtures("folders_of_examples")


class Watched:
    """A node and one strategy on it, live or in shadow."""

    def __init__(self, node: QoSNode, name: str, *, is_shadow: bool) -> None:
        self.node, self.name = node, name
        self.mode = ShadowMode(node.shared)
        self.before = node.tree()
        self.in_shadow([name] if is_shadow else [])
        self.parts: list[Strategy] = [
            each
            for each in acting(node.shared, self.mode)
            if isinstance(each, Part) and each._whole.name == name
        ]
        self._whole = self.parts[0]._whole  # type: ignore[attr-defined]

    def in_shadow(self, names: list[str]) -> None:
        self.node.say(**{**self.node.slo, "extensions": {"shadow": {"strategies": names}}})

    def say(self, **spec: Any) -> None:
        self.node.say(**spec, extensions=self.node.slo.get("extensions", {}))

    def round(self) -> None:
        for part in self.parts:
            result = part.run()
            assert result is not None
            asyncio.run(_awaited(result))

    def group_files(self) -> dict[str, str]:
        """What the groups say to the strategy."""
        shared, _ = self._whole.now()
        base = Path(shared.host.roots.cgroup)
        return {name: (shared.host.files.read(str(base / name)) or "") for name in self.before}

    def hours(self, *, is_shadow: bool) -> list[StrategyHour]:
        return self.mode.bill.strategies(is_shadow=is_shadow).get(self.name, [])


async def _awaited(result: Any) -> None:
    await result


def folder() -> Path:
    return Path(tempfile.mkdtemp())


def amounts(hours: list[StrategyHour]) -> list[tuple[Any, ...]]:
    """Bills without the number of writes, which is counted in shadow only."""
    return [
        (
            each.hour_s,
            each.rounds,
            each.held_back_core_seconds,
            each.raised_core_seconds,
            each.relieved_seconds,
            each.evicted_count,
        )
        for each in hours
    ]


suppressions = st.lists(
    st.tuples(
        st.integers(0, 80),
        st.integers(0, 80),
        st.sampled_from(["cpuset", "cfsQuota"]),
        st.sampled_from([30, 65, 100]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=12, deadline=None)
@given(suppressions, st.sampled_from(host_tree.VERSIONS))
def test_suppression_in_shadow_decides_and_costs_what_it_does_live(plan: list[Any], version: int) -> None:
    live = Watched(busy_node(folder(), version), "CPUSuppress", is_shadow=False)
    double = Watched(busy_node(folder(), version), "CPUSuppress", is_shadow=True)
    for service, batch, policy, percent in plan:
        for each in (live, double):
            each.say(
                resourceUsedThresholdWithBE={
                    "enable": True,
                    "cpuSuppressPolicy": policy,
                    "cpuSuppressThresholdPercent": percent,
                }
            )
            node = each.node
            node.clock.now_s += 1
            node.use((service + batch) / 10, w=service / 10, b=batch / 10)
            node.sample(kinds.NODE_BE, batch * 100, be_resource="cpu", be_allocation="usage")
            each.round()
        assert double.group_files() == live.node.tree()
        assert double.node.tree() == double.before, "nothing is done"
        assert not double.node.records.all() and not list(double.node.audit.newest_first())
    assert amounts(double.hours(is_shadow=True)) == amounts(live.hours(is_shadow=False))
    assert not double.hours(is_shadow=False) and not live.hours(is_shadow=True)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 80)), min_size=1, max_size=10),
    st.sampled_from(host_tree.VERSIONS),
)
def test_burst_in_shadow_decides_and_costs_what_it_does_live(plan: list[Any], version: int) -> None:
    live = Watched(bursts.limited_node(folder(), version), "CPUBurst", is_shadow=False)
    double = Watched(bursts.limited_node(folder(), version), "CPUBurst", is_shadow=True)
    for first, second, used in plan:
        for each in (live, double):
            bursts.round_with(each.node, _Rounds(each), used / 10, 0.5, c0=first / 100, c1=second / 100)
        assert double.group_files() == live.node.tree()
        assert double.node.tree() == double.before
    assert amounts(double.hours(is_shadow=True)) == amounts(live.hours(is_shadow=False))


class _Rounds:
    """A watched strategy as one whose rounds are called."""

    name, gates, interval_s = "", (), 1.0

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def run(self) -> None:
        self._watched.round()

    def disable(self) -> None: ...


def test_a_burst_that_would_raise_a_quota_is_billed_by_how_much_and_how_long(tmp_path: Path) -> None:
    double = Watched(bursts.limited_node(tmp_path), "CPUBurst", is_shadow=True)
    for _ in range(4):
        bursts.round_with(double.node, _Rounds(double), c0=0.3)

    (hour,) = double.hours(is_shadow=True)
    # 60, 72, 86.4 thousandths of a second more per second from the second round on, above 50
    assert hour.raised_core_seconds == pytest.approx((0.72 - 0.5) + (0.864 - 0.5) + (1.0 - 0.5), abs=0.02)
    assert hour.relieved_seconds == pytest.approx(0.3 * 3)
    assert hour.writes > 0 and double.node.says("shadow_writes")[("CPUBurst",)] == hour.writes
    assert double.node.says("shadow_core_seconds")[("CPUBurst", "raised")] == hour.raised_core_seconds


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=6),
    st.lists(st.integers(60, 100), min_size=1, max_size=12),
)
def test_the_evictions_in_shadow_are_those_that_happen_live(sizes: list[int], used: list[int]) -> None:
    async def scenario() -> None:
        live, double = _memory_node(sizes), _memory_node(sizes)
        modes = ShadowMode(live.shared), ShadowMode(double.shared)
        parts = [
            next(part for part in acting(node.shared, mode) if part.name == "MemoryEvict")
            for node, mode in zip((live, double), modes, strict=True)
        ]
        for percent in used:
            await asyncio.sleep(5)
            for node, part, names in ((live, parts[0], []), (double, parts[1], ["MemoryEvict"])):
                node.view.slo = _with_shadow(node, names)
                node.measure(kinds.NODE_MEMORY, percent * GIB)
                node.measure_pods(kinds.POD_MEMORY, {f"p{at}": size * GIB for at, size in enumerate(sizes)})
                result = part.run()
                assert result is not None
                await result
        billed = [
            pod.pod
            for hour in modes[1].bill.strategies(is_shadow=True).get("MemoryEvict", [])
            for pod in hour.evicted
        ]
        done = [
            pod.pod
            for hour in modes[0].bill.strategies(is_shadow=False).get("MemoryEvict", [])
            for pod in hour.evicted
        ]
        assert billed == done == [f"n/{name}" for name in live.api.names]
        assert not double.api.asked and not double.events.recorded
        assert not double.shared.metrics.eviction.values

    virtual_loop.run(scenario())


def _evicted(mode: ShadowMode, *, is_shadow: bool) -> list[str]:
    hours = mode.bill.strategies(is_shadow=is_shadow).get("MemoryEvict", [])
    return [pod.pod for hour in hours for pod in hour.evicted]


def _memory_node(sizes: list[int]) -> ActingNode:
    node = ActingNode(folder(), gates="BEMemoryEvict=true")
    node.set_pods([make_pod(f"p{at}") for at in range(len(sizes))])
    return node


def _with_shadow(node: ActingNode, names: list[str]) -> slo.NodeSLOSpec:
    return msgspec.structs.replace(threshold(), extensions={"shadow": {"strategies": names}})


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.integers(-500, 64_000), st.integers(0, 600)), min_size=1, max_size=8)
)
def test_prediction_in_shadow_is_billed_what_the_live_one_offers(
    plan: list[tuple[int | None, int]],
) -> None:
    nodes = [QoSNode(folder()) for _ in range(2)]
    nodes[1].say(extensions={"shadow": {"strategies": ["Prediction"]}})
    modes = [ShadowMode(node.shared) for node in nodes]
    live, double = (
        NodeMetricReporter(node.shared, mode, Trainer(node.shared))
        for node, mode in zip(nodes, modes, strict=True)
    )
    offered = 0.0
    for number, (milli, seconds) in enumerate(plan):
        free = None
        if milli is not None:
            free = ReclaimableMetric(resource=ResourceMap(resources={"cpu": f"{milli}m"}))
        for node in nodes:
            node.clock.now_s += seconds
        plain = NodeMetricStatus(prod_reclaimable_metric=free)
        assert live._in_shadow(plain) == plain
        assert double._in_shadow(plain).prod_reclaimable_metric is None
        offered += max(milli or 0, 0) / 1000 * seconds if number else 0.0
    did = modes[0].bill.strategies(is_shadow=False).get("Prediction", [])
    would = modes[1].bill.strategies(is_shadow=True).get("Prediction", [])
    assert would == did
    assert sum(each.lent_core_seconds for each in would) == pytest.approx(offered)


def test_entering_shadow_puts_back_and_leaving_it_acts(tmp_path: Path) -> None:
    watched = Watched(bursts.limited_node(tmp_path), "CPUBurst", is_shadow=False)
    for _ in range(3):
        bursts.round_with(watched.node, _Rounds(watched), c0=0.3)
    assert bursts.quotas(watched.node) != (100_000, 50_000, 50_000)

    watched.in_shadow(["CPUBurst"])
    bursts.round_with(watched.node, _Rounds(watched), c0=0.3)
    assert watched.node.tree() == watched.before
    assert watched.node.says("shadow_mode")[("CPUBurst",)] == 1

    watched.in_shadow([])
    bursts.round_with(watched.node, _Rounds(watched), c0=0.3)
    assert bursts.quotas(watched.node) == (110_000, 60_000, 50_000)
    assert watched.node.says("shadow_mode")[("CPUBurst",)] == 0


def test_names_and_strategies_agree(tmp_path: Path) -> None:
    named = {each.name for each in evictions.STRATEGIES} | {"CPUSuppress", CPUBurst.name, shadow.PREDICTION}

    assert set(slo.SHADOW_STRATEGIES) >= named
    node = QoSNode(tmp_path)
    parts = acting(node.shared, ShadowMode(node.shared))
    assert named - {shadow.PREDICTION} <= {part._whole.name for part in parts if isinstance(part, Part)}


@pytest.mark.parametrize("said", [{"strategies": 1}, {"strategies": [1]}, "CPUBurst"])
def test_settings_that_cannot_be_read_change_nothing(tmp_path: Path, said: Any) -> None:
    node = QoSNode(tmp_path)
    mode = ShadowMode(node.shared)
    node.say(extensions={"shadow": {"strategies": ["CPUBurst", "Nonsense"]}})
    assert mode.strategies == {"CPUBurst"}

    node.say(extensions={"shadow": said})
    assert mode.strategies == {"CPUBurst"}

    node.say(extensions={})
    assert mode.strategies == frozenset()


def test_a_group_that_vanishes_takes_what_was_decided_about_it_along(tmp_path: Path) -> None:
    node = bursts.limited_node(tmp_path)
    host = ShadowMode(node.shared).shared_in_shadow().host
    path = host.cgroups.path(Knob.CPU_QUOTA, bursts.FIRST)
    assert host.files.write(path, "70000") is None
    assert host.cgroups.quota_us(bursts.FIRST) == 70_000 and node.quota_us(bursts.FIRST) == 50_000

    content = Path(path).read_text()
    Path(path).rename(f"{path}.old")
    Path(path).write_text(content)

    assert host.cgroups.quota_us(bursts.FIRST) == 50_000
    assert host.files.write(f"{path}-missing", "1") is not None


def test_a_bill_keeps_a_day_and_leaves_quiet_fields_out() -> None:
    bill = ShadowBill()
    for hour in range(30):
        bill.charge("CPUBurst", hour * 3600 + 5, 2.0, RoundCost(raised_cores=0.5), is_shadow=True)

    body = bill.body({"CPUBurst"})
    assert body["strategies"] == ["CPUBurst"] and not body["did"]
    assert len(body["wouldHave"]["CPUBurst"]) == HOURS_MAX
    assert body["wouldHave"]["CPUBurst"][-1] == {
        "hour": "1970-01-02T05:00:00Z",
        "rounds": 1,
        "raisedCoreSeconds": 1.0,
    }


def test_a_bill_is_of_the_last_day_also_when_its_strategy_left_shadow_long_ago(tmp_path: Path) -> None:
    node = QoSNode(tmp_path)
    mode, cost = ShadowMode(node.shared), RoundCost(raised_cores=0.5)
    node.clock.now_s = 100 * 86_400.0
    mode.bill.charge("CPUBurst", node.clock.now_s, 2.0, cost, is_shadow=True)
    mode.bill.charge("CPUBurst", node.clock.now_s, 2.0, cost, is_shadow=False)

    node.clock.now_s += 23 * 3_600
    assert mode.body()["wouldHave"] and mode.body()["did"]
    node.clock.now_s += 3_600
    assert not mode.body()["wouldHave"] and not mode.body()["did"]
