"""What the statuses of PodGroups cost while all pods of many gangs turn Running: CPU per pod event, and writes.

The peer counts all members of the gang anew for each event, as upstream does; it neither queues nor writes.
"""

import asyncio
import time
from typing import Any, cast

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.api.sigs import PodGroup, PodGroupStatus
from koordinator.clock import LoopClock
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.plugin.handle import Handle
from koordinator.scheduler.plugins.coscheduling.controller import (
    GangCount,
    MemberState,
    PodGroupController,
    next_status,
)
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.simulate import virtual_time

SHAPES = ((10, 100), (100, 100), (1_000, 100), (100, 1_000), (10, 10_000))
"""Gangs, members of each."""
RAMP_S = 60.0
"""Over this time the pods start, one after the other, every gang as fast as the others."""
STEPS = 240
SETTLE_S = 60.0
"""The last counters of a thousand gangs wait for their turn."""
PEER_LOOKS = 2_000_000
"""Members that the peer looks at, at most."""


class Api:
    """Merges statuses into PodGroups, and tells the controller what its watch would."""

    def __init__(self, groups: dict[str, PodGroup]) -> None:
        self.groups = groups
        self.write_count = 0
        self.handle: Handle | None = None

    async def patch(self, view: type[PodGroup], name: str, patch: Any, namespace: str) -> PodGroup:
        self.write_count += 1
        old = self.groups[name]
        status = {**msgspec.to_builtins(old.status), **patch["status"]}
        new = msgspec.structs.replace(old, status=from_builtins(status, PodGroupStatus))
        self.groups[name] = new
        asyncio.get_running_loop().call_soon(self._on_update, old, new)
        return new

    def _on_update(self, old: PodGroup, new: PodGroup) -> None:
        assert self.handle is not None
        for watch in self.handle.watches:
            if watch.view is PodGroup:
                watch.on_update(old, new)


def pod(gang: str, number: int, phase: str) -> Pod:
    """A placed member."""
    meta = {
        "name": f"{gang}-{number}",
        "namespace": "d",
        "labels": {labels.POD_GROUP: gang},
        "ownerReferences": [{"kind": "Job", "name": gang, "uid": gang}],
    }
    return from_builtins({"metadata": meta, "spec": {"nodeName": "n"}, "status": {"phase": phase}}, Pod)


def gang_group(name: str, minimum: int) -> PodGroup:
    """A PodGroup that nobody has looked at."""
    meta = {"name": name, "namespace": "d", "uid": name}
    return from_builtins({"metadata": meta, "spec": {"minMember": minimum}}, PodGroup)


async def started(clock: LoopClock, gangs: int, members: int) -> tuple[float, float, int, int]:
    """CPU seconds of the events alone and of all, writes until all is scheduled, and writes of the start."""
    names = [f"g{number}" for number in range(gangs)]
    api = Api({name: gang_group(name, members) for name in names})
    handle = Handle(NodeTable(ResourceRegistry()), clock, cluster=cast(Cluster, api))
    api.handle = handle
    controller = PodGroupController(handle, 1)
    of_groups, of_pods = handle.watches
    for group in api.groups.values():
        of_groups.on_add(group)
    before = [[pod(name, number, "Pending") for name in names] for number in range(members)]
    after = [[pod(name, number, "Running") for name in names] for number in range(members)]
    for each in (one for row in before for one in row):
        of_pods.on_add(each)
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(RAMP_S)
    scheduled_writes = api.write_count
    pairs = [pair for row in zip(before, after, strict=True) for pair in zip(*row, strict=True)]
    events_s, began_s = 0.0, time.process_time()
    for step in range(STEPS):
        part_s = time.process_time()
        for old, new in pairs[step * len(pairs) // STEPS : (step + 1) * len(pairs) // STEPS]:
            of_pods.on_update(old, new)
        events_s += time.process_time() - part_s
        await asyncio.sleep(RAMP_S / STEPS)
    await asyncio.sleep(SETTLE_S)
    all_s = time.process_time() - began_s
    task.cancel()
    assert {group.status.phase for group in api.groups.values()} == {"Running"}
    assert {group.status.running for group in api.groups.values()} == {members}
    return events_s, all_s, scheduled_writes, api.write_count - scheduled_writes


def recounted_us(members: int) -> float:
    """The peer: microseconds of CPU for one event."""
    gang = [pod("g", number, "Running") for number in range(members)]
    status = PodGroupStatus(phase="Running")
    events = max(1, min(1_000, PEER_LOOKS // members // 10))
    began_s = time.process_time()
    for _ in range(events):
        count = GangCount()
        for each in gang:
            member = MemberState.of(each)
            assert member is not None
            count.add(member, 1)
        next_status(status, members, count.members(), "now")
    return (time.process_time() - began_s) / events * 1e6


def measure(gangs: int, members: int) -> None:
    """One line of the table."""
    runs = [virtual_time.run_virtual(lambda clock: started(clock, gangs, members)) for _ in range(2)]
    events_s, all_s, scheduled, running = min(runs)
    pods = gangs * members
    peer_us, all_us = recounted_us(members), all_s / pods * 1e6
    print(
        f"{gangs:>6,} x {members:<6,} {events_s / pods * 1e6:>9.1f} {all_us:>9.1f} {peer_us:>11.0f} "
        f"{peer_us / all_us:>9.0f} x {scheduled / gangs:>10.1f} {running / gangs:>9.1f} {running / pods:>9.4f}"
    )


def main() -> None:
    """Print the table."""
    print(
        f"all pods turn Running within {RAMP_S:g} s; CPU in microseconds per pod event, writes per PodGroup"
    )
    print(
        f"{'gangs x members':>15} {'counting':>9} {'all':>9} {'recounting':>11} {'ratio':>11} {'scheduled':>10} "
        f"{'running':>9} {'per pod':>9}"
    )
    for gangs, members in SHAPES:
        measure(gangs, members)


if __name__ == "__main__":
    main()
