"""Evicting by pressure: only while work really stalls, best-effort pods only, no more than is enough, then a rest."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from koordinator.api.slo import NodeSLOSpec
from koordinator.cli import koordlet_flags
from koordinator.host.cgroup_knobs import V2
from koordinator.koordlet import agent
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos import evictions
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.psi_evict import PSIEvict
from koordinator.koordlet.qos.shadow import ShadowMode
from tests.cluster import virtual_loop
from tests.host import host_tree
from tests.koordlet.qos.acting_node import ActingNode, acting, make_pod

GIB = 2**30
COOL_S = 15
SERVICE = "kubepods/burstable/podweb"


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(scenario)


class PressedNode(ActingNode):
    """100 GiB and 10 CPUs; a service `web`, and best-effort pods by name and GiB in use."""

    def __init__(self, root: Path, settings: dict[str, Any] | None = None, **used_gib: float) -> None:
        super().__init__(root, gates="PSIEvict=true", version=V2)
        host_tree.group(root, V2, SERVICE)
        self.used_gib = used_gib
        self.set_pods([make_pod("web", qos="LS"), *(make_pod(name) for name in used_gib)])
        self.say({"enable": True, **(settings or {})})
        self.memory_stalls(0, 0)
        self.strategy = PSIEvict(self.shared, Evictor(self.shared))

    def say(self, settings: Any) -> None:
        self.view.slo = NodeSLOSpec(extensions={"eviction": {"PSIEvict": settings}})

    def memory_stalls(self, avg10: float, avg60: float) -> None:
        self._write("kubepods/memory.pressure", 90.0, 0.0, full=(avg10, avg60))

    def service_waits(self, avg10: float) -> None:
        self._write(f"{SERVICE}/cpu.pressure", avg10, 0.0, full=(0.0, 0.0))

    def _write(self, file: str, avg10: float, avg60: float, full: tuple[float, float]) -> None:
        lines = (
            f"{name} avg10={ten:.2f} avg60={sixty:.2f} avg300=0.00 total=0\n"
            for name, (ten, sixty) in (("some", (avg10, avg60)), ("full", full))
        )
        (self.root / "sys/fs/cgroup" / file).write_text("".join(lines))

    async def round(self, node_gib: float = 90.0) -> list[str]:
        """Everything is measured, then a round; who was evicted so far."""
        self.measure(kinds.NODE_MEMORY, node_gib * GIB)
        self.measure_pods(kinds.POD_MEMORY, {uid: gib * GIB for uid, gib in self.used_gib.items()})
        self.measure_pods(kinds.POD_CPU, {uid: gib / 10 for uid, gib in self.used_gib.items()})
        await self.strategy.run()
        return self.api.names


def test_the_largest_go_until_a_share_of_the_memory_is_back_and_events_say_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = PressedNode(tmp_path, a=1, b=3, c=4, d=2)
        node.memory_stalls(72, 31)

        assert await node.round() == ["c", "b"]  # 5 GiB of 100

        reason = "memory pressure full avg10=72% avg60=31%"
        message = f"trigger by koordlet feature PSIEvict ({reason}), kill pod: c"
        assert node.events.recorded[0][2] == message

    on_virtual_time(scenario())


@pytest.mark.parametrize(
    ("avg10", "avg60", "node_gib"),
    [(59, 40, 90), (80, 24, 90), (80, 40, 79)],
    ids=["it is over", "it has just begun", "the node has memory left"],
)
def test_nobody_goes_unless_all_pods_stall_for_a_while_on_a_full_node(
    tmp_path: Path, avg10: float, avg60: float, node_gib: float
) -> None:
    async def scenario() -> None:
        node = PressedNode(tmp_path, a=8)
        node.memory_stalls(avg10, avg60)
        assert await node.round(node_gib) == []

        node.memory_stalls(60, 25)
        assert await node.round(80) == ["a"]

    on_virtual_time(scenario())


def test_it_rests_so_that_pressure_can_fall(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = PressedNode(tmp_path, a=8, b=7)
        node.memory_stalls(90, 50)
        await node.round()
        node.set_pods([make_pod("web", qos="LS"), make_pod("b")])
        for _ in range(COOL_S):
            assert await node.round() == ["a"]
            await asyncio.sleep(1)
        assert await node.round() == ["a", "b"]

    on_virtual_time(scenario())


def test_pods_say_that_they_stay_and_lower_priority_goes_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = PressedNode(tmp_path, spared=9, low=6, high=8)
        spared = make_pod("spared", annotations={"koordinator.sh/eviction-policy": '["BEMemoryEvict"]'})
        asked = make_pod(
            "high", priority=5600, annotations={"koordinator.sh/eviction-policy": '["PSIEvict"]'}
        )
        node.set_pods([spared, make_pod("low", priority=5100), asked])
        node.memory_stalls(90, 50)

        assert await node.round() == ["low"]

    on_virtual_time(scenario())


def test_a_service_that_waits_for_cpu_for_long_enough_costs_the_busiest_batch_pod(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = PressedNode(tmp_path, {"cpuSomeAvg10Percent": 50, "cpuDurationSeconds": 30}, a=3, b=8)
        node.service_waits(70)
        assert await node.round() == []
        await asyncio.sleep(29)
        node.service_waits(10)
        assert await node.round() == []  # it was over for a moment
        node.service_waits(70)
        await asyncio.sleep(1)
        assert await node.round() == []
        await asyncio.sleep(30)

        assert await node.round() == ["b"]
        assert "cpu pressure some avg10=70% for 30s" in node.events.recorded[0][2]

    on_virtual_time(scenario())


def test_what_a_services_own_limit_costs_it_is_no_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = PressedNode(tmp_path, {"cpuSomeAvg10Percent": 50, "cpuDurationSeconds": 0}, a=8)
        node.service_waits(70)
        node.measure(kinds.POD_THROTTLED, 0.3, pod_uid="web")
        assert await node.round() == []
        node.measure(kinds.POD_THROTTLED, 0.1, pod_uid="web")
        assert await node.round() == ["a"]

    on_virtual_time(scenario())


@pytest.mark.parametrize(
    "settings",
    [None, {}, {"enable": False}, {"enable": "yes"}, {"enable": True, "releasePercent": 0}, [], "on"],
    ids=str,
)
def test_without_settings_that_can_be_used_nobody_goes(tmp_path: Path, settings: Any) -> None:
    async def scenario() -> None:
        node = PressedNode(tmp_path, a=8)
        node.memory_stalls(90, 90)
        node.say(settings)
        assert await node.round() == []
        node.say({"enable": True})
        assert await node.round() == ["a"]

    on_virtual_time(scenario())


def test_a_kernel_that_tells_no_pressure_evicts_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = PressedNode(tmp_path, {"cpuSomeAvg10Percent": 1, "cpuDurationSeconds": 0}, a=8)
        (tmp_path / "sys/fs/cgroup/kubepods/memory.pressure").unlink()
        assert await node.round() == []
        (tmp_path / "sys/fs/cgroup/kubepods/memory.pressure").write_text("nonsense\n")
        assert await node.round() == []

    on_virtual_time(scenario())


def test_the_gate_is_off_by_default_and_known_to_the_command_line(tmp_path: Path) -> None:
    gates = koordlet_gates.of()
    assert not gates.is_on("PSIEvict")
    assert {flag.name for flag in evictions.flags()} >= {
        "psi-evict-interval-seconds",
        "psi-evict-cool-time-seconds",
    }
    assert not set(koordlet_flags.SETTINGS) & {flag.name for flag in evictions.flags()}

    async def scenario() -> None:
        node = PressedNode(tmp_path, a=8)
        found = {each.name: each for each in acting(node.shared, ShadowMode(node.shared))}
        assert agent.is_on(found["PSIEvict"], node.shared.gates)
        assert not agent.is_on(found["PSIEvict"], gates)

    on_virtual_time(scenario())
