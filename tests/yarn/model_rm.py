"""A ResourceManager as the operator's loops see one, in this process: for virtual time, and faults on demand."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.connection import ACCESS_EXCEPTIONS, YARN_EXCEPTION, CallRefused, Unreachable
from koordinator.yarn.node_sync import NodeId, NodeManagerReport
from koordinator.yarn.resource_managers import Poll
from koordinator.yarn.rpc import NodeUpdate


class ModelRM:
    """All of a YARN cluster. Totals change `delay_s` after they were told, as in the real one."""

    def __init__(self) -> None:
        self.reports: dict[NodeId, NodeManagerReport] = {}
        self.leader = "rm1"
        self.is_away = False
        self.is_denied = False
        self.delay_s = 0.1
        self.updates: list[NodeUpdate] = []

    def register(self, name: str, total: YarnResource = YarnResource(1, 1024)) -> NodeId:  # noqa: B008
        node = NodeId(name, 8041)
        self.reports[node] = NodeManagerReport(node, "RUNNING", YarnResource(), total)
        return node

    def change(self, node: NodeId, **changes: object) -> None:
        self.reports[node] = msgspec.structs.replace(self.reports[node], **changes)

    def allocate(self, node: NodeId, vcores: int) -> int:
        """As many containers of one vcore and 64 MB as have room; negative: that many end."""
        report = self.reports[node]
        assert report.used is not None and report.total is not None
        room = max(report.total.vcores - report.used.vcores, 0)
        taken = max(min(vcores, room), -report.used.vcores)
        used = report.used.vcores + taken
        self.change(node, used=YarnResource(used, used * 64))
        return taken

    def fail_over(self) -> None:
        """Another one leads: it knows what NodeManagers register with, and no containers yet."""
        self.leader = "rm2" if self.leader == "rm1" else "rm1"
        for node in self.reports:
            self.change(node, total=YarnResource(1, 1024), used=YarnResource())

    async def poll(self) -> Poll:
        await asyncio.sleep(0.01)
        if self.is_away:
            raise Unreachable("rm", "it is away")
        return Poll(self.leader, dict(self.reports))

    async def update(self, updates: Sequence[NodeUpdate]) -> Mapping[NodeId, KoordinatorError]:
        await asyncio.sleep(0.01)
        if self.is_away:
            raise Unreachable("rm", "it is away")
        if self.is_denied:
            raise CallRefused("rm", ACCESS_EXCEPTIONS[0], "User nobody doesn't have permission")
        refused = {}
        for update in updates:
            if update.node in self.reports:
                self.updates.append(update)
                asyncio.get_running_loop().call_later(self.delay_s, self._apply, update)
            else:
                refused[update.node] = CallRefused("rm", YARN_EXCEPTION, "unrecognized node")
        return refused

    def _apply(self, update: NodeUpdate) -> None:
        if update.node in self.reports:
            self.change(update.node, total=update.total)

    def close(self) -> None:
        """Nothing to close."""
