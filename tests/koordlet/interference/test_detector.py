"""The agent looks after services: what it publishes, whom it names and tells, and what it says it cannot see."""

import asyncio
import itertools
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from koordinator.host.cgroup_knobs import V1, V2
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.degradation import Contended, Indicator
from koordinator.koordlet.interference.all import InterferenceParts
from koordinator.koordlet.interference.candidate_usage import CALM_ROUNDS
from koordinator.koordlet.interference.culprit import F64, History
from koordinator.koordlet.interference.detector import UNSURE_AGAIN_S, UNSURE_S
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.shadow import ShadowMode
from tests.cluster import virtual_loop
from tests.host import host_tree
from tests.koordlet.qos.acting_node import ActingNode, make_pod

SERVICE = "kubepods/burstable/podweb"
BATCH = ("a", "b", "c")


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(scenario)


class WatchedNode(ActingNode):
    """A service `web` and three batch pods, one second after the other."""

    def __init__(self, root: Path, version: int = V2) -> None:
        super().__init__(root, gates="Interference=true", version=version)
        host_tree.group(root, version, SERVICE)
        self.set_pods([make_pod("web", qos="LS", priority=9500), *(make_pod(name) for name in BATCH)])
        self.parts = InterferenceParts(self.shared, Evictor(self.shared), ShadowMode(self.shared))
        self.stalled_us = {"cpu": 0, "memory": 0, "io": 0}
        self.written = dict.fromkeys(BATCH, 0)
        self.write_stalls()

    def write_stalls(self) -> None:
        if self.version == V1:
            return  # as upstream's kernels: no pressure of groups
        base = self.root / "sys/fs/cgroup"
        for group in ("kubepods", SERVICE):
            for name, total in self.stalled_us.items():
                line = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"
                (base / group / f"{name}.pressure").write_text(line + line.replace("some", "full"))

    async def second(
        self,
        *,
        waits: float,
        cores: dict[str, float],
        io_waits: float = 0.0,
        writes: Mapping[str, int] | None = None,
    ) -> None:
        """The service waits for these shares of the second; batch pods use so much, and write so many bytes."""
        await asyncio.sleep(1)
        self.stalled_us["cpu"] += int(waits * 1e6)
        self.stalled_us["io"] += int(io_waits * 1e6)
        self.write_stalls()
        for name, count in (writes or {}).items():
            self.written[name] += count
            group = self.view.pods[name].group
            text = f"8:0 rbytes=0 wbytes={self.written[name]} rios=0 wios=0"
            host_tree.write(self.root, {f"sys/fs/cgroup/{group}/io.stat": text})
        self.measure_pods(kinds.POD_CPU, cores)
        self.parts.watch.run()


def test_who_makes_a_service_wait_is_named_within_three_seconds_and_told_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = WatchedNode(tmp_path)
        for _ in range(10):
            await node.second(waits=0.02, cores={"a": 0.5, "b": 0.1, "c": 0.0})
        assert node.view.interference is not None
        assert not node.view.interference.services["web"].is_degraded
        began_s = asyncio.get_running_loop().time()

        for _ in range(5):
            await node.second(waits=0.6, cores={"a": 0.4, "b": 0.1, "c": 3.0})

        now = node.view.interference
        verdict = now.verdicts["web"]
        assert (verdict.culprit, verdict.resource, verdict.indicator) == (
            "c",
            Contended.CPU,
            Indicator.CPU_PRESSURE,
        )
        assert verdict.at_s - began_s <= 3
        assert now.services["web"].since_s == began_s + 1
        assert node.events.reasons() == [("web", "SlowedByNeighbour"), ("c", "SlowsNeighbour")]
        answer = node.parts.reporter.answer("n/c")
        assert [each["culprit"] for each in answer["verdicts"]] == ["n/c"]
        lines = [line.decode() for line in node.audit.newest_first()]
        assert len(lines) == 1
        assert "n/web suffers (cpu-pressure at 2.4 of what it bears) from n/c, which takes cpu" in lines[0]

        await node.second(waits=0.0, cores={"c": 3.0})
        assert node.view.interference.verdicts == {}

    on_virtual_time(scenario())


@pytest.mark.parametrize("calm_seconds", range(10, 10 + CALM_ROUNDS))
def test_who_writes_so_much_that_a_service_waits_is_named_within_three_seconds(
    tmp_path: Path, calm_seconds: int
) -> None:
    async def scenario() -> None:
        node = WatchedNode(tmp_path)
        for _ in range(calm_seconds):
            await node.second(waits=0.0, cores={"a": 0.5}, writes={"a": 1_000_000, "b": 0, "c": 2_000_000})
        began_s = asyncio.get_running_loop().time()

        for _ in range(3):
            writes = {"a": 1_000_000, "b": 0, "c": 400_000_000}
            await node.second(waits=0.0, cores={"a": 0.5}, io_waits=0.7, writes=writes)

        assert node.view.interference is not None
        verdict = node.view.interference.verdicts["web"]
        assert (verdict.culprit, verdict.resource) == ("c", Contended.DISK)
        assert verdict.at_s - began_s <= 3

    on_virtual_time(scenario())


def test_while_nobody_can_be_named_it_is_tried_less_often_until_the_next_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_s: list[float] = []

    def of(history: History, service: str) -> tuple[F64, F64, F64]:
        tried_s.append(asyncio.get_running_loop().time())
        return read(history, service)

    read = History.of
    monkeypatch.setattr(History, "of", of)

    async def scenario() -> None:
        node = WatchedNode(tmp_path)
        for waits, seconds in ((0.0, 10), (0.6, 60), (0.0, 5)):
            for _ in range(seconds):
                await node.second(waits=waits, cores={"a": 0.5})
        gaps = [after - before for before, after in itertools.pairwise(tried_s)]
        assert set(gaps[: int(UNSURE_S)]) == {1}
        assert set(gaps[int(UNSURE_S) + 1 :]) == {UNSURE_AGAIN_S}

        began_s = asyncio.get_running_loop().time()
        for _ in range(3):
            await node.second(waits=0.6, cores={"a": 0.5, "b": 3.0})
        assert node.view.interference is not None
        verdict = node.view.interference.verdicts["web"]
        assert verdict.culprit == "b"
        assert verdict.at_s - began_s <= 3

    on_virtual_time(scenario())


def test_waiting_by_its_own_limit_is_no_degradation(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = WatchedNode(tmp_path)
        limited = make_pod("web", qos="LS", priority=9500)
        limited.spec.containers[0].resources.limits["cpu"] = "1"
        node.set_pods([limited])
        stat = node.root / "sys/fs/cgroup" / SERVICE / "cpu.stat"
        throttled_us = 0

        for _ in range(3):
            throttled_us += 800_000
            stat.write_text(f"usage_usec 0\nnr_periods 1\nnr_throttled 1\nthrottled_usec {throttled_us}\n")
            node.measure_pods(kinds.POD_THROTTLED, {"web": 1.0})
            await node.second(waits=0.8, cores={})

        assert node.view.interference is not None
        assert node.view.interference.services["web"].indicators[Indicator.CPU_PRESSURE] == 0

    on_virtual_time(scenario())


def test_what_the_kernel_lacks_is_said_and_not_guessed(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = WatchedNode(tmp_path, V1)
        await node.second(waits=0.9, cores={})
        await node.second(waits=0.9, cores={})

        assert node.view.interference is not None
        assert node.view.interference.services["web"].indicators == {}
        text = node.shared.metrics.internal.text()
        assert 'koordlet_interference_sense_available{node="node",sense="cpu-pressure"} 0' in text

    on_virtual_time(scenario())


def test_threads_that_wait_for_a_cpu_are_a_sense_of_their_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = WatchedNode(tmp_path, V1)
        group = f"{SERVICE}/web-main"
        host_tree.group(node.root, V1, group)
        host_tree.write(
            node.root, {"proc/self/schedstat": "0 0 0", f"sys/fs/cgroup/cpu/{group}/tasks": "71\n72\n"}
        )
        ran = waited = 0

        for _ in range(3):
            ran, waited = ran + 200_000_000, waited + 300_000_000
            host_tree.write(node.root, {f"proc/{tid}/schedstat": f"{ran} {waited} 5" for tid in (71, 72)})
            await node.second(waits=0.0, cores={})

        assert node.view.interference is not None
        level = node.view.interference.services["web"].indicators[Indicator.RUN_QUEUE]
        assert level == 0.6 / 0.5

    on_virtual_time(scenario())


def test_switched_off_nothing_is_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = WatchedNode(tmp_path)
        await node.second(waits=0.0, cores={})

        node.parts.watch.disable()

        assert node.view.interference is None

    on_virtual_time(scenario())
