"""Where a life on our controllers differs from the same life on kube-controller-manager."""

import asyncio
import contextlib
import random
import string
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.real.lives import lead, look
from tests.real.lives.drawing import Json, Life, Step
from tests.real.lives.look import Seen
from tests.real.servers import Servers

CONTROLLER_FLAGS = ("--kube-api-qps=2000", "--kube-api-burst=4000")
SCHEDULED_FLAGS = (*CONTROLLER_FLAGS, "--pvclaimbinder-sync-period=1s")
"""What the controller of volumes sees only now and then is seen before all is quiet."""
PATIENT_QUIET_S = 3.0
"""A life that differs is led again, with more time for busy machines: they may have been looked at too early."""


@contextlib.contextmanager
def servers(count: int, *, is_scheduled: bool) -> Iterator[list[Path]]:
    """Kubeconfigs of so many, each with controllers, and with kube-scheduler where that is wanted."""
    scheduler = lead.SCHEDULER if is_scheduled else None
    flags = SCHEDULED_FLAGS if is_scheduled else CONTROLLER_FLAGS
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            started = Servers(Path(folder))
            stack.callback(started.close)
            started.start(controller_flags=flags, scheduler=scheduler)
            found.append(started.kubeconfig)
        yield found


def differing(
    kubeconfigs: Sequence[Path], lives: Sequence[Life], at_once: int
) -> list[tuple[Life, list[str]]]:
    """Those that differ twice, and where."""
    found = _once(kubeconfigs, lives, at_once, lead.QUIET_S)
    suspects = [life for life, _ in found]
    patient = max(at_once // 3, min(at_once, 4))
    return _once(kubeconfigs, suspects, patient, PATIENT_QUIET_S) if suspects else []


def _once(
    kubeconfigs: Sequence[Path], lives: Sequence[Life], at_once: int, quiet_s: float
) -> list[tuple[Life, list[str]]]:
    prefix = "".join(random.SystemRandom().choices(string.ascii_lowercase, k=6))
    theirs = asyncio.run(lead.on_real(kubeconfigs, lives, at_once, quiet_s, prefix))
    return [
        (life, lines)
        for life, seen in zip(lives, theirs, strict=True)
        if (lines := differences(seen, lead.on_ours(life, quiet_s), life["steps"]))
    ]


def differences(theirs: Sequence[Seen], ours: Sequence[Seen], steps: Sequence[Step]) -> list[str]:
    """Of the first step that has any; what follows would mostly repeat them."""
    wakes_on_deleted_nodes = False
    for number, (first, second) in enumerate(zip(theirs, ours, strict=True)):
        wakes_on_deleted_nodes |= steps[number][0] == "delete node"
        _forget_other_words(first, second)
        _forget_vain_attempts(first, second)
        if wakes_on_deleted_nodes:
            _forget_vain_attempts(second, first)
        if lines := list(look.differences(first, second)):
            return [f"step {number}: {line}" for line in lines]
    return []


def _forget_vain_attempts(theirs: Seen, ours: Seen) -> None:
    """Drop what only kube-scheduler says, having tried pods in vain that ours leaves asleep.

    It wakes them for nodes that other plugins keep them away from, and ours for nodes that are deleted. What the other one
    says is to be what it said, too, when it mattered.
    """
    for name, events in theirs.items():
        if not name.startswith("Event Pod ") or not name.endswith(" FailedScheduling") or name not in ours:
            continue
        pod = name.split()[2]
        told = [event["message"] for event in events]
        theirs[name] = [event for event in events if event in ours[name]]
        for first, second in zip(_conditions(theirs, pod), _conditions(ours, pod), strict=False):
            if first["type"] == second["type"] == "PodScheduled" and second.get("message") in told:
                first["message"] = second["message"]


def _forget_other_words(theirs: Seen, ours: Seen) -> None:
    """Take for equal what docs/deliberate-differences.md names.

    What PreFilter refuses leaves kube-scheduler's DynamicResources without a state, which is an error (`not found`), and
    ours preempts nobody. Only kube-scheduler nominates a node to a pod whose volumes are being made there.
    """
    for told in [
        event for name, events in theirs.items() if name.endswith(" FailedScheduling") for event in events
    ]:
        head = told["message"].removesuffix(" not found")
        if head == told["message"] or not head.endswith("."):
            continue
        pod = told["about"].removeprefix("Pod ")
        for each in (*ours.get(f"Event Pod {pod} FailedScheduling", []), *_conditions(ours, pod)):
            if each.get("message", "").startswith(f"{head} no new claims to deallocate, preemption: 0/"):
                each["message"] = told["message"]
    made_on = {
        body["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
        for name, bodies in theirs.items()
        for body in bodies
        if name.startswith("PersistentVolumeClaim ")
    }
    for name in [name for name in theirs if name.startswith("Pod ") and name in ours]:
        status, own = (side[name][0].get("status", {}) for side in (theirs, ours))
        if status.get("nominatedNodeName", "") in made_on and "nominatedNodeName" not in own:
            del status["nominatedNodeName"]


def _conditions(seen: Seen, pod: str) -> list[Json]:
    found: list[Json] = seen.get(f"Pod {pod}", [{}])[0].get("status", {}).get("conditions", [])
    return found
