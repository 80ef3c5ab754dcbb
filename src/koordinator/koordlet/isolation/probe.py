"""Prove isolation at the start, after changes of kernel or runtime, and now and then; tell who rests on what is broken.

Results go to the Node (annotation, labels by kind, condition `IsolationProven`), metrics and the log. Behind the gate
`IsolationProbe`. Groups that an agent left behind when it was killed are removed at the next start, whatever the gate.
"""

import contextlib
import glob
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping

from koordinator.api import isolation
from koordinator.api.core import Node
from koordinator.api.feature_gates import FeatureGate, FeatureGates, FeatureStage
from koordinator.api.isolation import MechanismState, NodeIsolation
from koordinator.clock import rfc3339
from koordinator.host import cgroup_layout
from koordinator.host.errors import HostError
from koordinator.koordlet.isolation import measure, verdicts
from koordinator.koordlet.isolation.measure import IsolationMeasurement
from koordinator.koordlet.isolation.verdicts import Mechanism, MechanismVerdict, Works
from koordinator.koordlet.parts import Shared, patch_node

log = logging.getLogger(__name__)

GATE = "IsolationProbe"
NEW_GATES: Mapping[str, FeatureGate] = {
    GATE: FeatureGate(
        False, FeatureStage.ALPHA, "prove by their effect that quotas, weights, limits and CPU sets work"
    )
}
"""Gates that the reference does not have."""
CHECK_S = 60.0
"""Interval at which kernel and runtime are compared with those of the last run."""
AGAIN_S = 3_600.0
"""Time after which a broken or unclear mechanism is measured again."""
BROKEN = "IsolationBroken"
"""Event on the Node."""
_NUMBERS = {Works.YES: 1.0, Works.NO: 0.0, Works.UNKNOWN: -1.0}
RESTS_ON: Mapping[str, tuple[str, tuple[Mechanism, ...]]] = {
    "CPUSuppress": ("BECPUSuppress", (Mechanism.CPU_QUOTA, Mechanism.CPUSET)),
    "CPUBurst": ("CPUBurst", (Mechanism.CPU_QUOTA,)),
    "CPUSetAllocator": ("CPUSetAllocator", (Mechanism.CPUSET,)),
    "CPUNormalization": ("CPUNormalization", (Mechanism.CPU_QUOTA,)),
    "CgroupReconcile": ("CgroupReconcile", (Mechanism.MEMORY_HIGH,)),
    "BlkIOReconcile": ("BlkIOReconcile", (Mechanism.IO_LIMIT,)),
    "RdtResctrl": ("RdtResctrl", (Mechanism.RESCTRL,)),
    "GroupIdentity": ("GroupIdentity", (Mechanism.CPU_IDLE,)),
    "TimeSlice": ("GroupIdentity", (Mechanism.TIME_SLICE,)),
    "BatchResource": ("BatchResource", (Mechanism.CPU_WEIGHT, Mechanism.CPU_QUOTA, Mechanism.MEMORY_LIMIT)),
    "InterferenceControl": ("InterferenceControl", (Mechanism.CPU_QUOTA, Mechanism.MEMORY_HIGH)),
}
"""Strategy or hook -> its feature gate, and what it rests on."""


class IsolationProbe:
    """A part that measures when it is due and tells what it found; while the gate is off the Node says nothing."""

    name = "isolation"
    informers = ()

    def __init__(self, shared: Shared) -> None:
        self.interval_s = CHECK_S
        self._shared = shared
        self._signature: tuple[str, ...] | None = None
        self._due_s = 0.0
        self._reported: set[str] = set()
        self._unwritten: NodeIsolation | None = None

    async def run(self) -> None:
        """Measure if that is due, and write what is not written yet."""
        shared = self._shared
        node = shared.view.node
        if shared.executor.is_dry_run or node is None:
            return
        if not shared.gates.is_on(GATE):
            if isolation.NODE_ISOLATION.key in node.metadata.annotations:
                await patch_node(shared, self.name, WITHDRAWAL)
            return
        info, now_s = node.status.node_info, shared.clock.now()
        signature = shared.host.machine.boot_id(), info.kernel_version, info.container_runtime_version
        if signature != self._signature or now_s >= self._due_s:
            found = await self._measure()
            self._signature = signature
            is_settled = all(each.works is Works.YES for each in found.values())
            self._due_s = float("inf") if is_settled else now_s + AGAIN_S
            self._report(node, found)
            self._unwritten = summary(found, rfc3339(now_s))
        if self._unwritten is not None:
            patch = node_patch(self._unwritten, node, now_s)
            if await patch_node(shared, self.name, patch):
                self._unwritten = None

    async def _measure(self) -> Mapping[Mechanism, MechanismVerdict]:
        shared = self._shared
        parent = measure.parent_group(shared.host, shared.view.driver)
        try:
            return await IsolationMeasurement(shared.host, shared.executor, parent, _scratch(shared)).run()
        except HostError as error:
            return {each: verdicts.unknown(str(error)) for each in Mechanism}

    def _report(self, node: Node, found: Mapping[Mechanism, MechanismVerdict]) -> None:
        for mechanism, verdict in found.items():
            self._shared.metrics.isolation_works.set(_NUMBERS[verdict.works], mechanism)
            log.info(
                "mechanism probed", extra={"mechanism": mechanism, "state": verdict.works, "why": verdict.why}
            )
        now = set(resting_on_broken(found, self._shared.gates))
        for message in sorted(now - self._reported):
            log.warning("isolation broken: %s", message)
            self._shared.events.warning(node, BROKEN, message)
        self._reported = now


def resting_on_broken(found: Mapping[Mechanism, MechanismVerdict], gates: FeatureGates) -> Iterator[str]:
    """Return a sentence for each strategy that is on and rests on what is broken."""
    for strategy, (gate, mechanisms) in RESTS_ON.items():
        for mechanism in mechanisms:
            verdict = found.get(mechanism)
            if verdict is not None and verdict.works is Works.NO and gates.is_on(gate):
                yield (
                    f"{strategy} has no effect here as far as it rests on {mechanism}, which does not work "
                    f"({verdict.why})"
                )


def summary(found: Mapping[Mechanism, MechanismVerdict], at: str) -> NodeIsolation:
    """Return the annotation's content."""
    return NodeIsolation(
        probed=at,
        mechanisms={
            str(mechanism): MechanismState(state=str(each.works), why=each.why)
            for mechanism, each in found.items()
        },
    )


WITHDRAWAL: Mapping[str, object] = {
    "metadata": {
        "annotations": {isolation.NODE_ISOLATION.key: None},
        "labels": {isolation.label_of(kind): None for kind in isolation.KINDS},
    },
    "status": {"conditions": [{"type": isolation.CONDITION, "$patch": "delete"}]},
}
"""The Node says nothing any more, as a strategic merge patch: nobody should go by what was proven long ago."""


def node_patch(found: NodeIsolation, node: Node, now_s: float) -> dict[str, object]:
    """Return what the Node is to say, as a strategic merge patch of its status."""
    states = {Mechanism(name): Works(each.state) for name, each in found.mechanisms.items()}
    broken = sorted(name for name, works in states.items() if works is Works.NO)
    unknown = sorted(name for name, works in states.items() if works is Works.UNKNOWN)
    reason, message = "Proven", "every mechanism has its effect"
    if broken:
        reason, message = "Broken", f"without effect: {', '.join(broken)}"
    elif unknown:
        reason, message = "PartlyProven", f"not known: {', '.join(unknown)}; all others have their effect"
    status = "False" if broken else "True"
    since = rfc3339(now_s)
    for each in node.status.conditions:
        if each.type == isolation.CONDITION and each.status == status:
            since = each.last_transition_time or since
    return {
        "metadata": {
            "annotations": {isolation.NODE_ISOLATION.key: isolation.NODE_ISOLATION.encode(found)},
            "labels": {
                isolation.label_of(kind): str(works) for kind, works in verdicts.provided(states).items()
            },
        },
        "status": {
            "conditions": [
                {
                    "type": isolation.CONDITION,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": rfc3339(now_s),
                    "lastTransitionTime": since,
                }
            ]
        },
    }


def _scratch(shared: Shared) -> str:
    """Return the directory in which the probe may write a file."""
    kubelet = shared.host.roots.kubelet
    return kubelet if os.access(kubelet, os.W_OK) else tempfile.gettempdir()


async def clean_left_overs(shared: Shared) -> None:
    """Remove groups and files of a run that was killed, and take back what it handed out; on a dry run they may be
    those of a live one."""
    if shared.executor.is_dry_run:
        return
    for parent in {"", measure.parent_group(shared.host, shared.view.driver)}:
        await measure.clean(shared.host, cgroup_layout.join(parent, measure.GROUP))
    measure.take_back_controllers(shared.host, shared.executor)
    for path in glob.glob(f"{glob.escape(_scratch(shared))}/{measure.GROUP}.*"):
        with contextlib.suppress(OSError):
            os.unlink(path)
