"""CPU burst over a tree: buffers, quotas of throttled containers, what is put back, and kills at any write."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.files import FileFailure, FileProblem
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.audit import decode
from koordinator.koordlet.parts import Strategy
from koordinator.koordlet.qos.cpu_burst_run import BUFFER_REASON, QUOTA_REASON, CPUBurst
from tests.host import host_tree
from tests.koordlet.qos.pods import LS, bound_to, pod_object
from tests.koordlet.qos.qos_node import QoSNode, killed_everywhere

both_versions = pytest.mark.parametrize("version", host_tree.VERSIONS)
POD = f"{LS}/podw"
FIRST, SECOND = f"{POD}/w-c0", f"{POD}/w-c1"
LIMITS = {"cpu": "500m"}
RATIO = "node.koordinator.sh/cpu-normalization-ratio"


def limited_node(root: Path, version: int = V1, policy: str = "auto", **more: object) -> QoSNode:
    """A service of two containers, half a CPU each; quotas may double."""
    node = QoSNode(root, version)
    pod = pod_object("w", "LS", limits=LIMITS, containers=2)
    node.add(pod, quotas_us={"c0": 50_000, "c1": 50_000}, pod_us=100_000)
    say(node, policy, **more)
    return node


def say(node: QoSNode, policy: str, **more: object) -> None:
    burst = {"policy": policy, "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 200, **more}
    node.say(cpuBurstStrategy=burst)


def round_with(
    node: QoSNode, burst: Strategy, node_cores: float = 0.5, used: float = 0.5, **throttled: float
) -> None:
    """A second passes, everything is measured, a round; throttled ratios by name of container."""
    node.clock.now_s += 1
    node.use(node_cores, w=0.5)
    for name in ("c0", "c1"):
        container = f"containerd://w-{name}"
        node.sample(kinds.CONTAINER_CPU, used, container_id=container)
        node.sample(kinds.CONTAINER_THROTTLED, throttled.get(name, 0.0), container_id=container)
    burst.run()


def quotas(node: QoSNode) -> tuple[int | None, ...]:
    return tuple(node.quota_us(group) for group in (POD, FIRST, SECOND))


def buffers(node: QoSNode) -> tuple[int | None, ...]:
    return tuple(node.host.cgroups.number(Knob.CPU_BURST, group) for group in (POD, FIRST, SECOND))


@both_versions
def test_buffers_are_sized_by_the_limit_and_the_pod_has_their_sum(tmp_path: Path, version: int) -> None:
    node = limited_node(tmp_path, version)

    round_with(node, CPUBurst(node.shared))

    assert buffers(node) == (1_000_000, 500_000, 500_000)
    assert node.says("scaled_burst")["default", "w", "containerd://w-c0", "c0"] == 500_000
    assert {decode(line).reason for line in node.audit.newest_first()} == {BUFFER_REASON}


@both_versions
def test_a_throttled_container_grows_with_its_pod_up_to_its_ceiling(tmp_path: Path, version: int) -> None:
    node = limited_node(tmp_path, version)
    burst = CPUBurst(node.shared)

    round_with(node, burst, c0=0.3)
    assert quotas(node) == (110_000, 60_000, 50_000)
    assert QUOTA_REASON in {decode(line).reason for line in node.audit.newest_first()}
    for _ in range(5):
        round_with(node, burst, c0=0.3)

    assert quotas(node) == (150_000, 100_000, 50_000)
    assert node.says("scaled_quota")["default", "w", "containerd://w-c0", "c0"] == 100_000


def test_a_busy_node_takes_quotas_back(tmp_path: Path) -> None:
    node = limited_node(tmp_path)
    burst = CPUBurst(node.shared)
    for _ in range(6):
        round_with(node, burst, c0=0.3)
    node.clock.now_s += 20

    for _ in range(6):
        round_with(node, burst, node_cores=7.0, c0=0.3)

    assert quotas(node) == (100_000, 50_000, 50_000)


def test_policy_none_is_the_way_back(tmp_path: Path) -> None:
    node = limited_node(tmp_path)
    burst = CPUBurst(node.shared)
    for _ in range(3):
        round_with(node, burst, c0=0.3, c1=0.1)

    say(node, "none")
    round_with(node, burst, c0=0.3)

    assert quotas(node) == (100_000, 50_000, 50_000)
    assert buffers(node) == (0, 0, 0)


def test_a_container_that_is_calm_is_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = limited_node(tmp_path)
    burst = CPUBurst(node.shared)
    round_with(node, burst)
    monkeypatch.setattr(node.files, "read", lambda path: pytest.fail(f"read {path}"))

    round_with(node, burst)


def test_pinned_containers_and_other_classes_are_left_alone(tmp_path: Path) -> None:
    node = limited_node(tmp_path)
    node.add(pod_object("pinned", "", "Guaranteed", limits=LIMITS, annotations=bound_to("0-1")))
    node.add(pod_object("lsr", "LSR", "Guaranteed", limits=LIMITS), quotas_us={"c0": 70_000}, pod_us=70_000)
    say(node, "none")

    round_with(node, CPUBurst(node.shared))

    assert node.quota_us("kubepods/podpinned/pinned-c0") == -1
    assert node.quota_us("kubepods/podlsr/lsr-c0") == 70_000


def test_the_base_is_the_normalized_limit(tmp_path: Path) -> None:
    node = limited_node(tmp_path, policy="none")
    node.node_annotations[RATIO] = "1.25"
    node.see()
    for group, quota_us in ((POD, 80_000), (FIRST, 40_000), (SECOND, 40_000)):
        node.set_quota(group, quota_us)

    round_with(node, CPUBurst(node.shared))

    assert quotas(node) == (80_000, 40_000, 40_000)


def test_a_pod_says_otherwise_by_annotation_and_nonsense_counts_as_nothing(tmp_path: Path) -> None:
    node = limited_node(tmp_path, policy="none")
    for uid, text in (
        ("own", json.dumps({"policy": "cpuBurstOnly", "cpuBurstPercent": 100})),
        ("broken", "{"),
    ):
        annotated = pod_object(uid, "LS", limits=LIMITS, annotations={"koordinator.sh/cpuBurst": text})
        node.add(annotated, quotas_us={"c0": 50_000}, pod_us=50_000)

    round_with(node, CPUBurst(node.shared))

    assert node.host.cgroups.number(Knob.CPU_BURST, f"{LS}/podown/own-c0") == 50_000
    assert node.host.cgroups.number(Knob.CPU_BURST, f"{LS}/podbroken/broken-c0") == 0


def test_a_kernel_that_takes_no_buffer_above_the_quota_gets_the_quota_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = limited_node(tmp_path)
    write = node.files.write

    def strict(path: str, text: str) -> FileProblem | None:
        if path.endswith("cfs_burst_us"):
            quota = int(Path(path).with_name("cpu.cfs_quota_us").read_text())
            if int(text) > quota > 0:
                return FileProblem(path, FileFailure.INVALID, 22)
        return write(path, text)

    monkeypatch.setattr(node.files, "write", strict)
    round_with(node, CPUBurst(node.shared))

    assert buffers(node) == (100_000, 50_000, 50_000)
    assert node.says("scaled_burst")["default", "w", "containerd://w-c0", "c0"] == 50_000
    assert caplog.messages == []


def test_tokens_bound_how_long_a_container_may_burst(tmp_path: Path) -> None:
    node = limited_node(tmp_path, cfsQuotaBurstPeriodSeconds=10)
    burst = CPUBurst(node.shared)
    seen = []

    for _ in range(60):
        round_with(node, burst, used=1.0, c0=0.3)  # twice its limit
        seen.append(node.quota_us(FIRST))

    assert max(quota or 0 for quota in seen) > 50_000  # it had some tokens
    assert seen[-1] == 50_000  # and has none any more


def test_a_step_of_the_clock_neither_fills_nor_empties_buckets(tmp_path: Path) -> None:
    node = limited_node(tmp_path, cfsQuotaBurstPeriodSeconds=600)
    burst = CPUBurst(node.shared)
    round_with(node, burst, used=1.0)
    before = {key: bucket.tokens for key, (bucket, _, _) in burst._buckets.items()}

    node.clock.now_s += 1_000
    round_with(node, burst, used=1.0)
    node.clock.now_s -= 1_000_000
    round_with(node, burst, used=1.0)

    after = {key: bucket.tokens for key, (bucket, _, _) in burst._buckets.items()}
    assert before.keys() == after.keys()
    assert all(abs(after[key] - before[key]) <= 300 for key in before)


def test_a_vanished_container_stops_neither_its_sibling_nor_the_loop(tmp_path: Path) -> None:
    node = limited_node(tmp_path)
    burst = CPUBurst(node.shared)
    round_with(node, burst)
    host_tree.remove_group(tmp_path, V1, FIRST)

    round_with(node, burst, c0=0.3, c1=0.3)

    assert (node.quota_us(SECOND), node.quota_us(POD)) == (60_000, 110_000)


def test_a_refused_container_leaves_its_pod_as_it_was(tmp_path: Path) -> None:
    node = limited_node(tmp_path)
    burst = CPUBurst(node.shared)
    round_with(node, burst)
    path = node.host.cgroups.path(Knob.CPU_QUOTA, FIRST)
    node.files.refusals[path] = [FileProblem(path, FileFailure.INVALID)] * 3

    round_with(node, burst, c0=0.3)

    assert quotas(node) == (100_000, 50_000, 50_000)


def test_without_samples_quotas_do_not_grow(tmp_path: Path) -> None:
    node = limited_node(tmp_path)
    burst = CPUBurst(node.shared)
    for _ in range(2):
        round_with(node, burst, c0=0.3)
    raised = quotas(node)

    node.clock.now_s += 60
    for _ in range(3):
        node.clock.now_s += 1
        burst.run()

    assert quotas(node) == raised


@both_versions
def test_disabled_all_files_say_what_they_said(tmp_path: Path, version: int) -> None:
    node = limited_node(tmp_path, version)
    before = node.tree()
    burst = CPUBurst(node.shared)
    for _ in range(4):
        round_with(node, burst, c0=0.3, c1=0.2)
    assert node.tree() != before

    burst.disable()

    assert node.tree() == before
    assert node.shared.executor.owners() == []
    assert node.says("scaled_quota") == {}


def test_what_the_kubelet_changes_meanwhile_is_what_is_put_back(tmp_path: Path) -> None:
    node = limited_node(tmp_path)
    burst = CPUBurst(node.shared)
    round_with(node, burst, c0=0.3)
    node.pods = []
    for group, quota_us in ((POD, 150_000), (FIRST, 100_000)):
        node.set_quota(group, quota_us)  # resized in place
    node.pods.append(pod_object("w", "LS", limits={"cpu": "1"}, containers=2))
    node.list_pods()
    for _ in range(3):
        round_with(node, burst, c0=0.3)
    assert (node.quota_us(FIRST) or 0) > 100_000

    burst.disable()

    assert node.quota_us(FIRST) == 100_000


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("version", [V1, V2])
def test_killed_at_any_write_the_next_process_brings_the_same_result(
    tmp_path: Path, version: int, after: bool
) -> None:
    def live(node: QoSNode, burst: Strategy) -> None:
        for _ in range(4):
            round_with(node, burst, c0=0.3, c1=0.3)
        say(node, "none")
        round_with(node, burst)
        say(node, "auto")
        for _ in range(5):
            round_with(node, burst, c0=0.3)

    killed, whole = killed_everywhere(
        lambda root: limited_node(root, version),
        lambda node: CPUBurst(node.shared),
        live,
        tmp_path,
        after=after,
    )

    assert len(killed) >= 20
    for number, (node, original) in enumerate(killed):
        say(node, "auto")
        burst = CPUBurst(node.shared)
        if number % 3 == 1:
            for _ in range(12):
                round_with(node, burst, c0=0.3, c1=0.0)
            assert node.quota_us(FIRST) == whole.quota_us(FIRST)
            assert buffers(node) == buffers(whole)
            pod_us, first_us, second_us = (each or 0 for each in quotas(node))
            assert pod_us == 100_000 + (first_us - 50_000) + (second_us - 50_000), number
        elif number % 3 == 2:
            say(node, "none")
            for _ in range(2):
                round_with(node, burst)
            assert quotas(node) == (100_000, 50_000, 50_000), number
        burst.disable()
        assert node.tree() == original, number


MEASURES = st.floats(-1e3, 1e6) | st.floats(0, 1.5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    percent=st.integers(0, 1_000),
    period_s=st.integers(-1, 100),
    rounds=st.lists(st.tuples(MEASURES, MEASURES, MEASURES, MEASURES), min_size=1, max_size=8),
    policies=st.lists(st.sampled_from(["none", "auto", "cpuBurstOnly", "cfsQuotaBurstOnly"]), min_size=1),
)
def test_random_measurements_never_move_quotas_out_of_bounds(
    tmp_path_factory: pytest.TempPathFactory,
    percent: int,
    period_s: int,
    rounds: list[tuple[float, float, float, float]],
    policies: list[str],
) -> None:
    node = limited_node(tmp_path_factory.mktemp("node"))
    burst = CPUBurst(node.shared)

    for number, (node_cores, used, first, second) in enumerate(rounds):
        policy = policies[number % len(policies)]
        say(node, policy, cfsQuotaBurstPercent=percent, cfsQuotaBurstPeriodSeconds=period_s)
        round_with(node, burst, node_cores, used, c0=first, c1=second)

        pod_us, first_us, second_us = (each or 0 for each in quotas(node))
        ceiling_us = 50_000 * max(percent, 100) // 100
        assert 50_000 <= first_us <= ceiling_us
        assert 50_000 <= second_us <= ceiling_us
        assert pod_us == first_us + second_us
        assert buffers(node) in ((1_000_000, 500_000, 500_000), (0, 0, 0))
