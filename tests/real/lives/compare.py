"""Where a life on our controllers differs from the same life on kube-controller-manager."""

import asyncio
import contextlib
import json
import random
import re
import string
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.install.values import Values
from koordinator.local import cluster as local_cluster
from tests.free_ports import free_port
from tests.real.cluster import RealCluster, Shape
from tests.real.lives import descheduling, koordinator, lead, look, managing
from tests.real.lives.drawing import Json, Life, Step
from tests.real.lives.look import Seen
from tests.real.servers import Servers

CONTROLLER_FLAGS = ("--kube-api-qps=2000", "--kube-api-burst=4000")
SCHEDULED_FLAGS = (*CONTROLLER_FLAGS, "--pvclaimbinder-sync-period=1s")
"""What the controller of volumes sees only now and then is seen before all is quiet."""
GONE = "pod does not exist any more"
_UNASKED = re.compile(
    r"^(0/\d+ nodes are available: (?!\d).*?\.) (not found|no new claims to deallocate, preemption: .*)$"
)
"""What PreFilter refused leaves kube-scheduler's DynamicResources without a state, which is an error of PostFilter."""
_BINDING = re.compile(r'^(running PreBind plugin "VolumeBinding": )?binding volumes: .*')
_POST_FILTER = re.compile(r"\. (preemption: |no new claims |not found|\d+ Reservation\(s\) ).*$", re.DOTALL)
Said = defaultdict[str, set[str]]
PATIENT_QUIET_S = 3.0
"""A life that differs is led again, with more time for busy machines: they may have been looked at too early."""


@contextlib.contextmanager
def servers(
    count: int,
    *,
    is_scheduled: bool,
    koord_scheduler: Path | None = None,
    koord_descheduler: tuple[Path, str] | None = None,
) -> Iterator[list[Path]]:
    """Kubeconfigs of so many, each with controllers, and with kube-scheduler or those programs where wanted
    (the descheduler for a kind of lives)."""
    scheduler = lead.SCHEDULER if is_scheduled and koord_scheduler is None else None
    flags = SCHEDULED_FLAGS if is_scheduled else CONTROLLER_FLAGS
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            started = Servers(Path(folder))
            stack.callback(started.close)
            started.start(controller_flags=flags, scheduler=scheduler)
            if koord_scheduler is not None:
                asyncio.run(_install(started.kubeconfig))
                flags = ("--address=127.0.0.1", f"--port={free_port()}")
                configuration = koordinator.configuration()
                started.start_scheduler(koord_scheduler, configuration, "system:masters", flags=flags)
            if koord_descheduler is not None:
                asyncio.run(_install(started.kubeconfig))
                stack.callback(descheduling.start(started, *koord_descheduler).kill)
            found.append(started.kubeconfig)
        yield found


@contextlib.contextmanager
def managers(program: Path) -> Iterator[tuple[Path, Path]]:
    """Kubeconfigs of two servers with an installation: on one runs the original manager, on the other one ours."""
    with contextlib.ExitStack() as stack:
        found = []
        for each in (program, None):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            values = msgspec.convert({"featureGates": managing.GATES}, Values)
            shape = Shape(nodes=0, scheduler=False, webhooks_by_url=True, values=values, manager_program=each)
            found.append(stack.enter_context(RealCluster.open(folder, shape)).kubeconfig)
        yield found[0], found[1]


async def _install(kubeconfig: Path) -> None:
    """What koord-scheduler needs before it starts."""
    async with KubeCluster(connect.load(kubeconfig_file=str(kubeconfig)), rng=random.Random(0)) as cluster:
        await local_cluster.install(cluster)


def differing(
    kubeconfigs: Sequence[Path], lives: Sequence[Life], at_once: int, ours: Sequence[Path] = ()
) -> list[tuple[Life, list[str]]]:
    """Those that differ twice, and where; `ours`: servers of ours, where they are real."""
    found = _once(kubeconfigs, lives, at_once, lead.QUIET_S, ours)
    suspects = [life for life, _ in found]
    patient = max(at_once // 3, min(at_once, 4))
    return _once(kubeconfigs, suspects, patient, PATIENT_QUIET_S, ours) if suspects else []


def _once(
    kubeconfigs: Sequence[Path],
    lives: Sequence[Life],
    at_once: int,
    quiet_s: float,
    ours: Sequence[Path],
) -> list[tuple[Life, list[str]]]:
    prefix = "".join(random.SystemRandom().choices(string.ascii_lowercase, k=6))

    async def led() -> list[list[list[Seen]]]:
        sides = [each for each in (kubeconfigs, ours) if each]
        return await asyncio.gather(*(lead.on_real(each, lives, at_once, quiet_s, prefix) for each in sides))

    theirs, *own = asyncio.run(led())
    own_lives = own[0] if own else [lead.on_ours(life, quiet_s) for life in lives]
    found = [
        (life, differences(first, second, life["steps"]))
        for life, first, second in zip(lives, theirs, own_lives, strict=True)
    ]
    return [(life, lines) for life, lines in found if lines]


def differences(theirs: Sequence[Seen], ours: Sequence[Seen], steps: Sequence[Step]) -> list[str]:
    """Of the first step that has any; what follows would mostly repeat them."""
    for seen in (*theirs, *ours):
        _shorten(seen)
        descheduling.forget(seen)
    said: tuple[Said, Said] = (defaultdict(set), defaultdict(set))
    wakes_alike = True
    for number, (first, second) in enumerate(zip(theirs, ours, strict=True)):
        managing.settle(first, second)
        wakes_alike &= steps[number][0] != "delete node"
        if _is_woken_by_ours_only(first, second, steps[number]):
            return []
        _settle(first, second, said, wakes_alike=wakes_alike)
        if lines := list(look.differences(first, second)):
            return [f"step {number}: {line}" for line in lines]
    return []


def _shorten(seen: Seen) -> None:
    """Leave out of koord-scheduler's messages what PostFilter plugins say, each in its own words, and runtimes of
    quotas, which it works out when they are needed."""
    for name, bodies in seen.items():
        if name.startswith("ElasticQuota "):
            bodies[0]["metadata"].get("annotations", {}).pop(koordinator.RUNTIME, None)
    for name, bodies in seen.items():
        told = bodies if name.startswith("Event ") else _conditions(seen, name)
        by = {each.get("by") or each.get("spec", {}).get("schedulerName") for each in bodies}
        for each in told if by & {koordinator.NAME} or name.startswith("Reservation ") else ():
            if "message" in each:
                each["message"] = _POST_FILTER.sub(".", each["message"])


def _settle(theirs: Seen, ours: Seen, said: tuple[Said, Said], *, wakes_alike: bool) -> None:
    """Take for equal what schedulers say of attempts in vain, and what docs/deliberate-differences.md names.

    kube-scheduler wakes pods for nodes that other plugins keep them away from, and ours for nodes that are deleted.
    What the one says that slept on is to be something that the other one has `said` so far, in events or conditions
    (not every event is kept). kube-scheduler tells of pods that are gone.
    """
    for words, seen in zip(said, (theirs, ours), strict=True):
        for name in {" ".join(name.removeprefix("Event ").split()[:2]) for name in seen if "Pod " in name}:
            told = [each for each in (*_refusals(seen, name), *_conditions(seen, name)) if "message" in each]
            for each in told:
                each["message"] = _BINDING.sub("binding volumes failed", _UNASKED.sub(r"\1", each["message"]))
            words[name] |= {each["message"] for each in told}
    for name in {*said[0], *said[1]}:
        their_words, own_words = (words[name] for words in said)
        event = f"Event {name} FailedScheduling"
        theirs[event] = [] if own_words else _refusals(theirs, name)
        ours[event] = [each for each in _refusals(ours, name) if each["message"] not in their_words]
        if their_words and not wakes_alike:
            ours[event] = []
        for first, second in zip(_conditions(theirs, name), _conditions(ours, name), strict=False):
            is_late = second.get("message") in their_words
            if is_late or (not wakes_alike and first.get("message") in own_words):
                first["message"] = second.get("message")
    for name in [name for name in theirs if name.endswith(" FailedScheduling")]:
        theirs[name] = [each for each in theirs[name] if GONE not in each["message"]]


def _is_woken_by_ours_only(theirs: Seen, ours: Seen, step: Step) -> bool:
    """Return whether ours has placed a pod on news that the other scheduler does not hear.

    Lives part there. kube-scheduler's InterPodAffinity is deaf to labels of namespaces, and to what becomes of running
    pods whose anti-affinity kept it out; koord-scheduler to Reservations that go, and now and then to a taint that went
    while it had a Reservation in hand.
    """
    is_left = any(
        name.startswith("Reservation ")
        and bodies[0].get("status", {}).get("phase") == "Pending"
        and ours.get(name, [{}])[0].get("status", {}).get("phase") == "Available"
        and "untolerated taint" in json.dumps(_conditions(theirs, name))
        for name, bodies in theirs.items()
    )
    return is_left or any(
        (
            step[1:2] in (["Namespace"], ["Reservation"])
            or "existing pods anti-affinity" in json.dumps(_conditions(theirs, name))
        )
        and "node" in ours[name][0]
        and "node" not in bodies[0]
        for name, bodies in theirs.items()
        if name.startswith("Pod ") and name in ours
    )


def _refusals(seen: Seen, pod: str) -> list[Json]:
    return seen.get(f"Event {pod} FailedScheduling", [])


def _conditions(seen: Seen, pod: str) -> list[Json]:
    found: list[Json] = seen.get(pod, [{}])[0].get("status", {}).get("conditions", [])
    return [each for each in found if each["type"] in ("PodScheduled", "Scheduled")]
