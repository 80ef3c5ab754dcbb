"""Whatever pods say: no crash, valid values, only groups of their own; after a kill at any write the right end."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.files import FileProblem
from tests.koordlet.hooks.hook_node import (
    BE_ON,
    BEST_EFFORT,
    BURSTABLE,
    LS_ON,
    ROOT,
    HookNode,
    batch,
    classes,
    native,
    pod,
)

ALL_GATES = ",".join(
    f"{name}=true"
    for name in (
        "CPUNormalization",
        "CoreSched",
        "Resctrl",
        "OOMScoreAdj",
        "GPUEnvInject",
        "RDMADeviceInject",
        "BECPUManager",
    )
)
POOLS = '[{"socket":0,"node":0,"cpuset":"0-1"},{"socket":0,"node":1,"cpuset":"2-3"}]'

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
SPECIFIC = {
    labels.RESOURCE_STATUS: [
        '{"cpuset":"0-3"}',
        '{"cpuset":"9-1"}',
        '{"cpuset":"4097"}',
        '{"cpuset":"../../x"}',
    ],
    labels.CPU_QOS: ['{"enable":true,"groupIdentity":3}', '{"enable":true,"groupIdentity":-1}'],
    labels.OOM_SCORE_ADJ: ["1000", "-1001", "x"],
    labels.OOM_SCORE_ADJ_SPEC: ['{"c0":5}', '{"c0":"5"}'],
    labels.RESCTRL: ['{"llc":{"schemata":{"range":[0,30]}}}', '{"mb":{"schemata":{"percent":-3}}}'],
    labels.EXTENDED_RESOURCE_SPEC: [
        '{"containers":{}}',
        '{"containers":{"c0":{"limits":{"kubernetes.io/batch-cpu":"-5"}}}}',
    ],
    labels.DEVICE_ALLOCATED: ['{"gpu":[{"minor":1,"resources":{}}]}'],
    labels.CPU_BURST: ['{"policy":"auto","cfsQuotaBurstPercent":-100}'],
    labels.NETWORK_QOS: ['{"egressLimit":"-1"}', '{"egressLimit":"10M"}'],
}


@st.composite
def _annotations(draw: st.DrawFn) -> dict[str, str]:
    keys = draw(st.lists(st.sampled_from(sorted(SPECIFIC)), unique=True, max_size=5))
    return {key: draw(st.sampled_from(SPECIFIC[key]) | JSON | st.text(max_size=12)) for key in keys}


AMOUNT = st.sampled_from(["-1", "0", "1", "1500", "9223372036854775807", "1Gi"])
RESOURCES = st.builds(
    lambda names, request, limit: {
        "requests": dict.fromkeys(names, request),
        "limits": dict.fromkeys(names, limit),
    },
    st.lists(
        st.sampled_from(["cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"]),
        unique=True,
    ),
    AMOUNT,
    AMOUNT,
)
PODS = st.builds(
    lambda name, qos, kube, annotations, core, resources: pod(
        name,
        qos,
        kube=kube,
        annotations=annotations,
        labels=core,
        resources=resources,
    ),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["LSE", "LSR", "LS", "BE", "SYSTEM", "", "huh"]),
    st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]),
    _annotations(),
    st.dictionaries(
        st.sampled_from([labels.CORE_SCHED_GROUP_ID, labels.CORE_SCHED_POLICY]),
        st.text(max_size=5),
        max_size=2,
    ),
    st.lists(RESOURCES, min_size=1, max_size=2),
)
CLASS_GROUPS = {ROOT, BURSTABLE, BEST_EFFORT}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pods=st.lists(PODS, max_size=3, unique_by=lambda each: each.metadata.uid),
    ratio=st.sampled_from(["1.5", "x", "-1"]),
)
def test_whatever_pods_say_hooks_write_valid_values_to_their_own_groups(pods: list[Pod], ratio: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = HookNode(Path(directory), gates=ALL_GATES)
        node.hooks.start()
        node.policy(classes(ls=LS_ON, be=BE_ON))
        node.topology(cpu_shared_pools=POOLS, be_cpu_shared_pools=POOLS)
        node.files.written.clear()

        node.run_pods(*pods)
        node.node(cpu_normalization_ratio=ratio)

        assert node.hooks._reconciler._guard.failure_count == 0, node.hooks._reconciler._guard.last_error
        assert node.hooks._guard.failure_count == 0
        own = {record.group for record in node.view.pods.values()}
        for path, text in node.files.written:
            relative = path.removeprefix(f"{directory}/sys/fs/cgroup/").partition("/")[2]
            group, _, name = relative.rpartition("/")
            assert group in CLASS_GROUPS or any(
                group == each or group.startswith(f"{each}/") for each in own
            ), path
            cgroup_knobs.check(Knob(name), V1, text)
        before = len(node.files.written)
        node.refresh()
        assert len(node.files.written) == before, "a refresh without change writes nothing"


# Kills

WATCHED = {
    "policy": [Knob.CPU_BVT, Knob.CPU_IDLE],
    "batch": [Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.MEMORY_LIMIT],
    "cpus": [Knob.CPUSET],
    "ratio": [Knob.CPU_QUOTA],
}
BEFORE = (
    pod("web", resources=[native("1"), native("2")]),
    pod("job", "BE", resources=[batch(1000), batch(500)]),
)
AFTER = (
    pod("web", resources=[native("1"), native("2")]),
    pod("job", "BE", resources=[batch(700), batch(900)]),
)
GATES = "CPUNormalization=true"


class _Killed(BaseException):
    """The agent dies here."""


def settled(root: Path, version: int) -> HookNode:
    node = HookNode(root, version=version, vendor=version == V1, gates=GATES)
    node.hooks.start()
    node.policy(classes())
    node.topology(cpu_shared_pools=POOLS)
    node.node(cpu_normalization_ratio="1.00")
    node.run_pods(*BEFORE)
    return node


def changed(node: HookNode, what: str) -> None:
    """One change of what hooks follow."""
    if what == "policy":
        node.policy(classes(lsr=LS_ON, ls=LS_ON, be=BE_ON))
    elif what == "batch":
        node.run_pods(*AFTER)
    elif what == "cpus":
        node.topology(cpu_shared_pools=POOLS.replace("0-1", "1"))
    else:
        node.node(cpu_normalization_ratio="1.50")


def state(node: HookNode, knobs: list[Knob]) -> dict[tuple[str, str], str]:
    groups = [ROOT, BURSTABLE, BEST_EFFORT]
    for record in node.view.pods.values():
        groups += [record.group, f"{record.group}/sandbox", *(each.group for each in record.containers)]
    return {(group, knob): node.says(knob, group) for group in groups for knob in knobs}


def kill_at(node: HookNode, survived: int) -> None:
    """The agent dies instead of the write after so many."""
    left, original = [survived], node.files.write

    def write(path: str, text: str) -> FileProblem | None:
        if left[0] == 0:
            raise _Killed
        left[0] -= 1
        return original(path, text)

    node.files.write = write  # type: ignore[method-assign]


def writes_of(root: Path, version: int, what: str) -> tuple[int, dict[Any, str]]:
    """How many writes a change makes, and how it ends undisturbed."""
    node = settled(root, version)
    node.files.written.clear()
    changed(node, what)
    return len(node.files.written), state(node, WATCHED[what])


@pytest.mark.parametrize(
    ("what", "version"), [*((what, V1) for what in WATCHED), ("policy", V2), ("batch", V2)]
)
def test_killed_at_any_write_a_restart_ends_where_no_kill_would_have(
    tmp_path: Path, what: str, version: int
) -> None:
    count, right = writes_of(tmp_path / "undisturbed", version, what)
    assert count >= 1

    for survived in range(count):
        node = settled(tmp_path / str(survived), version)
        kill_at(node, survived)
        with pytest.raises(_Killed):
            changed(node, what)
        again = node.restarted(gates=GATES)
        again.hooks.start()

        assert state(again, WATCHED[what]) == right, survived


@pytest.mark.parametrize("version", [V1, V2])
async def test_after_a_kill_and_a_switch_off_everything_is_as_it_was_before_the_hooks(
    tmp_path: Path, version: int
) -> None:
    clean = HookNode(tmp_path, version=version, vendor=version == V1)
    clean.run_pods(*BEFORE)
    knobs = [Knob.CPU_BVT, Knob.CPU_IDLE, Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.MEMORY_LIMIT, Knob.CPUSET]
    before = state(clean, knobs)
    node = settled(tmp_path, version)
    changed(node, "policy")
    changed(node, "ratio")
    assert state(node, knobs) != before

    off = ",".join(
        f"{name}=false" for name in ("GroupIdentity", "CPUSetAllocator", "BatchResource", "CPUNormalization")
    )
    again = node.restarted(gates=off)
    again.hooks.start()

    assert state(again, knobs) == before
    assert again.executor.owners() == []
