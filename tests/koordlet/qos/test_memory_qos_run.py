"""Memory QoS over a tree: what is written when, what is left out, and what is put back."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.api.core import ContainerState
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.files import FileFailure, FileProblem
from koordinator.koordlet.audit import decode
from koordinator.koordlet.parts import Strategy
from koordinator.koordlet.qos.memory_qos import REASON, RETRY_S, MemoryQoS
from tests.host import host_tree
from tests.koordlet.qos.pods import BE, LS, PODS, pod_object
from tests.koordlet.qos.qos_node import QoSNode, killed_everywhere

both_versions = pytest.mark.parametrize("version", host_tree.VERSIONS)
GIB = 2**30
POD, CONTAINER = f"{LS}/podw", f"{LS}/podw/w-c0"
ON = {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 80, "throttlingPercent": 50}


def node_with_pods(root: Path, version: int = V1) -> QoSNode:
    node = QoSNode(root, version)
    node.add(pod_object("w", "LS", requests={"memory": "1Gi"}, limits={"memory": "2Gi"}))
    node.add(pod_object("b", "BE", "BestEffort"))
    say(node, **ON)
    return node


def say(node: QoSNode, **memory: object) -> None:
    node.say(resourceQOSStrategy={"lsClass": {"memoryQOS": memory}})


def number(node: QoSNode, knob: Knob, group: str) -> int | None:
    text = node.host.cgroups.read(knob, group)
    return None if text is None else int(text.replace("max", str(2**63 - 1)))


@both_versions
def test_requests_are_protected_and_greedy_containers_throttled(tmp_path: Path, version: int) -> None:
    node = node_with_pods(tmp_path, version)

    MemoryQoS(node.shared).run()

    for group in (PODS, LS, POD, CONTAINER):
        assert number(node, Knob.MEMORY_MIN, group) == GIB // 2, group
        assert number(node, Knob.MEMORY_LOW, group) == GIB * 80 // 100, group
    assert number(node, Knob.MEMORY_HIGH, CONTAINER) == GIB * 3 // 2
    assert number(node, Knob.MEMORY_MIN, BE) == 0
    assert {decode(line).reason for line in node.audit.newest_first()} == {REASON}


def test_the_root_gives_up_its_protection_after_the_classes_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_with_pods(tmp_path)
    memory = MemoryQoS(node.shared)
    memory.run()
    written: list[str] = []
    write = node.files.write
    monkeypatch.setattr(node.files, "write", lambda path, text: (written.append(path), write(path, text))[1])

    say(node, **{**ON, "enable": False})
    memory.run()

    paths = [node.host.cgroups.path(Knob.MEMORY_MIN, group) for group in (CONTAINER, POD, LS, PODS)]
    assert [path for path in written if path in paths] == paths


def test_nothing_is_done_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_with_pods(tmp_path)
    memory = MemoryQoS(node.shared)
    memory.run()
    monkeypatch.setattr(node.files, "read", lambda path: pytest.fail(f"read {path}"))

    for _ in range(10):
        node.clock.now_s += 1
        memory.run()


def test_files_that_the_kernel_lacks_are_not_tried(tmp_path: Path) -> None:
    node = node_with_pods(tmp_path)
    for file in (tmp_path / "sys/fs/cgroup/memory").rglob("memory.wmark*"):
        file.unlink()
    memory = MemoryQoS(node.shared)

    memory.run()

    assert not memory._is_pending
    assert number(node, Knob.MEMORY_MIN, POD) == GIB // 2


def test_what_is_refused_is_tried_again_after_a_while(tmp_path: Path) -> None:
    node = node_with_pods(tmp_path)
    memory = MemoryQoS(node.shared)
    path = node.host.cgroups.path(Knob.MEMORY_HIGH, CONTAINER)
    node.files.refusals[path] = [FileProblem(path, FileFailure.BUSY)] * 50
    memory.run()
    left = len(node.files.refusals[path])
    node.clock.now_s += 1
    memory.run()
    assert len(node.files.refusals[path]) == left

    node.files.refusals.clear()
    node.clock.now_s += RETRY_S
    memory.run()
    assert number(node, Knob.MEMORY_HIGH, CONTAINER) == GIB * 3 // 2


@both_versions
def test_switched_off_by_the_policy_neutral_values_are_written(tmp_path: Path, version: int) -> None:
    node = node_with_pods(tmp_path, version)
    memory = MemoryQoS(node.shared)
    memory.run()

    say(node, **{**ON, "enable": False})
    memory.run()

    for group in (PODS, LS, POD, CONTAINER):
        assert number(node, Knob.MEMORY_MIN, group) == 0
    assert (number(node, Knob.MEMORY_HIGH, CONTAINER) or 0) >= 2**62


@both_versions
def test_disabled_all_files_say_what_they_said(tmp_path: Path, version: int) -> None:
    node = node_with_pods(tmp_path, version)
    before = node.tree()
    memory = MemoryQoS(node.shared)
    memory.run()
    assert node.tree() != before

    memory.disable()

    after = (
        node.tree()
        if version == V2
        else {
            name: text.replace(str(2**63 - 1), "9223372036854771712")  # which is what v1 kernels make of it
            for name, text in node.tree().items()
        }
    )
    assert after == before


def test_without_a_policy_or_the_node_nothing_is_written(tmp_path: Path) -> None:
    node = node_with_pods(tmp_path)
    node.view.node = None
    MemoryQoS(node.shared).run()
    node.see()
    node.view.slo = None
    MemoryQoS(node.shared).run()

    assert node.files.written == []


def test_a_pod_says_otherwise_by_annotation(tmp_path: Path) -> None:
    node = node_with_pods(tmp_path)
    text = json.dumps({"policy": "none"})
    pod = pod_object("n", "LS", requests={"memory": "1Gi"}, annotations={"koordinator.sh/memoryQOS": text})
    node.add(pod)

    MemoryQoS(node.shared).run()

    assert number(node, Knob.MEMORY_MIN, f"{LS}/podn") == 0
    assert number(node, Knob.MEMORY_MIN, POD) == GIB // 2


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_killed_at_any_write_the_next_process_brings_the_same_result(tmp_path: Path, after: bool) -> None:
    def live(node: QoSNode, memory: Strategy) -> None:
        memory.run()
        say(node, **{**ON, "minLimitPercent": 10})
        memory.run()

    killed, whole = killed_everywhere(
        lambda root: node_with_pods(root, V2),
        lambda node: MemoryQoS(node.shared),
        live,
        tmp_path,
        after=after,
    )

    assert len(killed) >= 8
    for count, (node, original) in enumerate(killed):
        say(node, **{**ON, "minLimitPercent": 10})
        memory = MemoryQoS(node.shared)
        if count % 2:
            memory.run()
            assert node.tree() == whole.tree(), count
        memory.disable()
        assert node.tree() == original, count


PERCENT = st.integers(0, 100)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    version=st.sampled_from([V1, V2]),
    requests=st.lists(st.integers(0, 2**42), min_size=1, max_size=4),
    percents=st.lists(st.tuples(PERCENT, PERCENT, PERCENT), min_size=1, max_size=3),
)
def test_random_pods_and_policies_never_protect_more_than_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
    version: int,
    requests: list[int],
    percents: list[tuple[int, int, int]],
) -> None:
    node = QoSNode(tmp_path_factory.mktemp("node"), version)
    for uid, request in enumerate(requests):
        node.add(pod_object(f"p{uid}", "LS", requests={"memory": str(request)}))
    memory = MemoryQoS(node.shared)

    for least, low, throttling in percents:
        say(node, enable=True, minLimitPercent=least, lowLimitPercent=low, throttlingPercent=throttling)
        memory.run()

        for uid, request in enumerate(requests):
            pod, container = f"{LS}/podp{uid}", f"{LS}/podp{uid}/p{uid}-c0"
            for group in (pod, container):
                assert 0 <= (number(node, Knob.MEMORY_MIN, group) or 0) <= request
                assert (number(node, Knob.MEMORY_MIN, group) or 0) <= (number(node, Knob.MEMORY_MIN, LS) or 0)
            assert (number(node, Knob.MEMORY_HIGH, container) or 0) >= (
                number(node, Knob.MEMORY_MIN, container) or 0
            )
        total = number(node, Knob.MEMORY_MIN, LS)
        assert total == sum(
            number(node, Knob.MEMORY_MIN, f"{LS}/podp{uid}") or 0 for uid in range(len(requests))
        )


@pytest.mark.parametrize("is_running", [True, False])
def test_the_group_of_a_running_container_that_is_not_there_yet_is_tried_again(
    tmp_path: Path, is_running: bool
) -> None:
    node = node_with_pods(tmp_path)
    for directory in (tmp_path / "sys/fs/cgroup").glob(f"*/{CONTAINER}"):
        shutil.rmtree(directory)
    if not is_running:
        [web, other] = node.pods
        stopped = [
            msgspec.structs.replace(each, state=ContainerState()) for each in web.status.container_statuses
        ]
        status = msgspec.structs.replace(web.status, container_statuses=stopped)
        node.pods[:] = [msgspec.structs.replace(web, status=status), other]
        node.list_pods()
    memory = MemoryQoS(node.shared)
    memory.run()

    node.make_group(CONTAINER)
    node.clock.now_s += RETRY_S
    memory.run()
    assert (number(node, Knob.MEMORY_HIGH, CONTAINER) == GIB * 3 // 2) is is_running


def test_a_node_that_offers_other_memory_is_looked_at_at_once(tmp_path: Path) -> None:
    node = node_with_pods(tmp_path)
    node.add(pod_object("free", "LS", requests={"memory": "1Gi"}))
    memory = MemoryQoS(node.shared)
    memory.run()
    before = number(node, Knob.MEMORY_HIGH, f"{LS}/podfree/free-c0")

    assert node.view.node is not None
    status = msgspec.structs.replace(node.view.node.status, allocatable={"cpu": "4", "memory": "3Gi"})
    node.view.node = msgspec.structs.replace(node.view.node, status=status)
    memory.run()
    after = number(node, Knob.MEMORY_HIGH, f"{LS}/podfree/free-c0")
    assert before != after == 2 * GIB, "half way between the request and what the node has"
