"""The closed loop on a node of files: what batch is allowed follows the slack of services, and all is put back."""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import interference as api
from koordinator.api.slo import NodeSLOSpec, ResourceThresholdStrategy
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.allowance import AS_CONFIGURED
from koordinator.koordlet.degradation import Contended, Degradation, Indicator, Interference, Verdict
from koordinator.koordlet.interference.act import InterferenceControl
from koordinator.koordlet.interference.all import InterferenceParts
from koordinator.koordlet.qos.cpu_suppress_run import threshold_percent
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.shadow import Part, ShadowMode
from koordinator.koordlet.states.node import with_defaults
from koordinator.simulate import virtual_time
from tests.host import host_tree
from tests.koordlet.qos.acting_node import ActingNode, make_pod

GATES = "Interference=true,InterferenceControl=true"
BATCH_CPU = {"kubernetes.io/batch-cpu": "4000"}
THRESHOLD = ResourceThresholdStrategy(
    enable=True, cpu_suppress_threshold_percent=65, cpu_suppress_policy="cfsQuota"
)


class FeltNode(ActingNode):
    """A service and two batch pods; the test says what slack the service has."""

    def __init__(self, root: Path, **more: Any) -> None:
        super().__init__(root, **{"gates": GATES} | more)
        self.set_pods(
            [
                make_pod("web", qos="LS", priority=9500),
                make_pod("hog", requests=BATCH_CPU),
                make_pod("meek", requests=BATCH_CPU),
            ]
        )
        self.control = InterferenceControl(self.shared, Evictor(self.shared))
        self.slack: float | None = 0.5
        self.degraded_s: float | None = None
        self.culprit = ""
        self.cores = {"node": 6.0, "batch": 4.0, "stolen": 0.0}

    def ask(self, **settings: Any) -> None:
        self.view.slo = with_defaults(
            NodeSLOSpec(
                resource_used_threshold_with_be=THRESHOLD,
                extensions={"interference": {"enable": True, **settings}},
            )
        )

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(1)
            now_s = asyncio.get_running_loop().time()
            is_degraded = self.slack is not None and self.slack < 0
            self.degraded_s = (self.degraded_s or now_s) if is_degraded else None
            self.view.interference = Interference(
                at_s=now_s,
                services={
                    "web": Degradation(uid="web", slack=self.slack, indicators=self.indicators(), at_s=now_s)
                },
                verdicts={"web": self.verdict(now_s)} if self.culprit and is_degraded else {},
            )
            self.measure(kinds.NODE_CPU, self.cores["node"])
            self.measure(kinds.NODE_CPU_STOLEN, self.cores.get("stolen", 0.0))
            self.measure_best_effort(self.cores["batch"], 8, 8)
            self.measure_pods(kinds.POD_CPU, {"web": 2.0, "hog": 3.0, "meek": 1.0})
            await self.control.run()

    def indicators(self) -> Mapping[Indicator, float]:
        return {} if self.slack is None else {Indicator.LATENCY: 1 - self.slack}

    def verdict(self, now_s: float) -> Verdict:
        return Verdict(
            victim="web",
            culprit=self.culprit,
            resource=Contended.CPU,
            indicator=Indicator.LATENCY,
            confidence=0.9,
            runner_up=0.1,
            share=0.8,
            since_s=self.degraded_s or now_s,
            at_s=now_s,
        )

    @property
    def threshold(self) -> int:
        return threshold_percent(THRESHOLD, self.view.allowance)

    def audit_lines(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.audit.newest_first()]


def on_node(root: Path, scenario: Callable[[FeltNode], Awaitable[None]], **more: Any) -> None:
    async def body() -> None:
        await scenario(FeltNode(root, **more))

    virtual_time.run_virtual(lambda _: body())


def test_what_holds_the_loop_back_is_logged_once_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: FeltNode) -> None:
        node.view.slo = with_defaults(NodeSLOSpec(extensions={"interference": {"enable": True}}))
        await node.seconds(5)

    on_node(tmp_path, scenario, gates="InterferenceControl=true")

    problems = [getattr(each, "problem", "") for each in caplog.records if "held back" in each.message]
    assert len(problems) == 2 and "gate Interference is off" in problems[0]
    assert "resourceUsedThresholdWithBE is off" in problems[1]


def test_a_pause_of_the_hypervisor_takes_nothing_from_batch(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        node.ask()
        await node.seconds(60)
        node.slack, node.cores["stolen"] = -0.9, 1.0
        await node.seconds(3)
        assert node.threshold == 95
        assert any("the hypervisor takes 10% of the CPUs" in line for line in node.audit_lines())

        node.cores["stolen"] = 0.0
        await node.seconds(1)
        assert node.threshold == 10, "a miss without it counts at once"

    on_node(tmp_path, scenario)


def test_batch_grows_while_services_have_slack_shrinks_when_they_suffer_and_grows_back(
    tmp_path: Path,
) -> None:
    async def scenario(node: FeltNode) -> None:
        node.ask()
        await node.seconds(1)
        assert node.threshold == 65, "as configured at first"

        await node.seconds(60)
        assert node.threshold == 95, "up to the bound"

        node.slack = -0.5
        await node.seconds(2)
        assert node.threshold <= 20, "an objective that is missed by far leaves batch the least"

        node.slack = 0.5
        await node.seconds(8)
        assert node.threshold <= 20, "no growth right after"
        await node.seconds(60)
        assert 20 < node.threshold < 95, "half-way back to where services suffered"

    on_node(tmp_path, scenario)


def test_switched_off_all_is_as_configured(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        node.ask()
        node.slack = -1.0
        await node.seconds(5)
        assert node.view.allowance != AS_CONFIGURED and node.view.extensions

        node.ask(enable=False)
        await node.seconds(1)
        assert node.view.allowance == AS_CONFIGURED and node.view.extensions == {}
        assert node.threshold == 65

        node.ask()
        await node.seconds(5)
        node.control.disable()
        assert node.view.allowance == AS_CONFIGURED

    on_node(tmp_path, scenario)


def test_settings_that_cannot_be_used_are_off(tmp_path: Path, caplog: Any) -> None:
    async def scenario(node: FeltNode) -> None:
        for bad in ({"slackLowPercent": 60}, {"resources": ["gpu"]}, {"cpuThresholdMinPercent": "x"}):
            node.ask(**bad)
            node.slack = -1.0
            await node.seconds(5)
            assert node.view.allowance == AS_CONFIGURED

    on_node(tmp_path, scenario)
    assert [each.message for each in caplog.records].count("interference settings invalid") == 3


def test_without_a_fresh_sense_the_fixed_threshold_counts(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        node.ask()
        await node.seconds(60)
        assert node.threshold == 95

        node.slack = None  # nobody asks the service for anything
        await node.seconds(20)
        assert node.threshold == 65

    on_node(tmp_path, scenario)


def test_the_named_culprit_is_capped_then_goes_and_its_workload_is_told(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        node.ask(evictCulprit=True, evictAfterSeconds=20)
        node.slack, node.culprit = -0.5, "hog"
        await node.seconds(2)
        assert node.view.allowance.capped_milli == {}
        await node.seconds(6)
        capped = node.view.allowance.capped_milli
        assert capped.keys() == {"hog"} and capped["hog"] <= 1_500

        await node.seconds(20)
        assert node.api.names == ["hog"]
        said = [(name, reason) for name, reason, _ in node.events.recorded]
        assert said == [("node", "ServicesSuffer"), ("hog", "CulpritCapped"), ("hog", "evictPodSuccess")]
        assert "another node may suit it" in node.events.recorded[-1][2]
        reported = api.of_report(node.view.extensions)
        assert reported is not None and reported.percent > 20
        assert [(pair.victim, pair.culprit) for pair in reported.pairs] == [("n/Pod/web", "n/Pod/hog")]

        node.slack = 0.5
        await node.seconds(120)
        assert node.view.allowance.capped_milli == {}

    on_node(tmp_path, scenario)


def test_what_is_told_fades_also_after_the_clock_was_set_back(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        node.ask()
        node.clock.shift_s = 365 * 86_400.0
        node.slack = -0.5
        await node.seconds(30)
        node.slack, node.clock.shift_s = 0.5, 0.0
        await node.seconds(2)

        reported = api.of_report(node.view.extensions)
        assert reported is not None
        assert api.fading_of(reported).at_s <= node.clock.now() and reported.percent > 20
        await node.seconds(3_600)
        assert not node.view.extensions

    on_node(tmp_path, scenario)


def test_services_are_neither_capped_nor_evicted_whatever_a_verdict_says(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        node.set_pods([make_pod("web", qos="LS"), make_pod("other", qos="LS")])
        node.ask(evictCulprit=True, evictAfterSeconds=5)
        node.slack, node.culprit = -0.5, "other"
        await node.seconds(60)
        assert node.view.allowance.capped_milli == {} and node.api.evicted == []

    on_node(tmp_path, scenario)


def test_a_pod_that_says_so_is_capped_but_stays(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        policy = {"koordinator.sh/eviction-policy": '["BEMemoryEvict"]'}
        node.set_pods([make_pod("web", qos="LS"), make_pod("hog", requests=BATCH_CPU, annotations=policy)])
        node.ask(evictCulprit=True, evictAfterSeconds=5)
        node.slack, node.culprit = -0.5, "hog"
        await node.seconds(60)
        assert node.view.allowance.capped_milli.keys() == {"hog"} and node.api.evicted == []

    on_node(tmp_path, scenario)


def test_memory_of_batch_is_reclaimed_while_services_stall_on_it_and_given_back(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        high = tmp_path / "sys/fs/cgroup/kubepods/besteffort/memory.high"
        (high.parent / "memory.current").write_text("1073741824\n")
        before = high.read_text()
        node.ask()
        node.indicators = lambda: {Indicator.MEMORY_PRESSURE: 1.5}  # type: ignore[method-assign]
        node.slack = None
        await node.seconds(3)
        assert int(high.read_text()) <= 1073741824 // 2

        node.indicators = lambda: {Indicator.MEMORY_PRESSURE: 0.1}  # type: ignore[method-assign]
        await node.seconds(60)
        assert 1073741824 // 2 <= int(high.read_text()) < 1073741824, "half-way back"
        node.control.disable()
        assert high.read_text() == before

        node.indicators = lambda: {Indicator.MEMORY_PRESSURE: 1.5}  # type: ignore[method-assign]
        await node.seconds(3)
        assert high.read_text() != before
        # The agent is killed: the next one finds in the journal what was changed.
        again = InterferenceControl(node.shared, Evictor(node.shared))
        node.ask(enable=False)
        await again.run()
        assert high.read_text() == before

    on_node(tmp_path, scenario, version=host_tree.V2)


def test_steps_are_told_once_each_in_the_audit_log_and_over_http(tmp_path: Path) -> None:
    async def scenario(node: FeltNode) -> None:
        node.ask()
        await node.seconds(3)
        node.slack = -0.5
        await node.seconds(15)
        steps = node.control.records.report()["steps"]
        assert len(steps) <= 12, "what changes nothing is no step"
        last = steps[-1]
        assert last["victim"] == "n/web" and last["stage"] == "shrink" and last["ceilings"]["cpu"] <= 20
        assert msgspec.json.encode(node.control.records.report())

    on_node(tmp_path, scenario)


async def shadow_life(
    root: Path, plan: list[tuple[float | None, str, float, int]], *, is_shadow: bool
) -> tuple[FeltNode, ShadowMode, list[Any]]:
    """Live through phases (slack, culprit, cores of batch, seconds); return the node, its bills, and the steps."""
    node = FeltNode(root)
    mode = ShadowMode(node.shared)
    evictor = Evictor(node.shared, on_evicted=partial(mode.bill_eviction, {}, is_shadow=False))
    parts = InterferenceParts(node.shared, evictor, mode)
    (control,) = (each for each in parts.strategies if each.name == InterferenceControl.name)
    assert isinstance(control, Part)
    node.control = control  # type: ignore[assignment]
    node.ask(evictCulprit=True, evictAfterSeconds=20)
    assert node.view.slo is not None
    names = ["InterferenceControl"] if is_shadow else []
    extensions = {**node.view.slo.extensions, "shadow": {"strategies": names}}
    node.view.slo = msgspec.structs.replace(node.view.slo, extensions=extensions)
    for slack, culprit, cores, seconds in plan:
        node.slack, node.culprit = slack, culprit
        node.cores = {"node": cores + 2.0, "batch": cores * 1000}
        await node.seconds(seconds)
    return node, mode, parts.answer("")["steps"]


phases = st.lists(
    st.tuples(
        st.sampled_from([None, -1.0, -0.2, 0.05, 0.5]),
        st.sampled_from(["", "hog", "meek", "web"]),
        st.sampled_from([0.0, 1.0, 4.0, 7.5]),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=10, deadline=None)
@given(phases)
def test_in_shadow_the_loop_decides_and_bills_the_same_and_nobody_goes_by_it(plan: list[Any]) -> None:
    async def body() -> None:
        with tempfile.TemporaryDirectory() as folder:
            live, acts, taken = await shadow_life(Path(folder, "live"), plan, is_shadow=False)
            double, decides, decided = await shadow_life(Path(folder, "double"), plan, is_shadow=True)
        assert double.view.allowance is AS_CONFIGURED and not double.view.extensions
        assert not double.audit_lines() and not double.events.recorded and not double.api.asked
        (did,) = acts.bill.strategies(is_shadow=False)["InterferenceControl"]
        (would,) = decides.bill.strategies(is_shadow=True)["InterferenceControl"]
        assert would.held_back_core_seconds == did.held_back_core_seconds
        assert would.rounds == did.rounds
        assert [each.pod for each in would.evicted] == [f"n/{name}" for name in live.api.names]
        assert [each.pod for each in did.evicted] == [each.pod for each in would.evicted]
        assert [_without_time(each) for each in decided] == [_without_time(each) for each in taken]

    virtual_time.run_virtual(lambda _: body())


def _without_time(step: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in step.items() if key != "at"}


def test_what_the_loop_would_hold_back_is_billed(tmp_path: Path) -> None:
    async def body() -> None:
        plan = [(0.5, "", 4.0, 15), (-0.2, "", 4.0, 15), (0.5, "", 4.0, 15)]
        _, decides, _ = await shadow_life(tmp_path, plan, is_shadow=True)
        (would,) = decides.bill.strategies(is_shadow=True)["InterferenceControl"]
        assert would.held_back_core_seconds > 0

    virtual_time.run_virtual(lambda _: body())
