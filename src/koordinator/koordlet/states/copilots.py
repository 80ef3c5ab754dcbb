"""Containers of other runtimes on this node (YARN), as their agents tell at their sockets. Source: behaviour/yarn 8.5
and 8.6.

An agent that is away does not end the protection of services: then its containers are those whose groups are left, and
new ones beside them.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import NoReturn

import msgspec

from koordinator.api import copilot, qos
from koordinator.api.copilot import ContainerAmounts, ContainerInfo
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import QoSClass
from koordinator.cluster.supervise import Guard
from koordinator.host import cgroup_layout, copilots
from koordinator.host.copilots import CopilotError
from koordinator.host.errors import LayoutError
from koordinator.host.kill_group import members
from koordinator.koordlet import node_pods, wakeups
from koordinator.koordlet.node_pods import ForeignContainer
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
RESCAN_ROUNDS = 5
"""Rounds between two searches for sockets; each socket is asked every round."""
DIRECTORY = "yarn-copilot"
"""Below the host's /var/run."""


class CopilotsState:
    """Keeps `view.foreign`."""

    name = "copilots"
    is_required = False
    trouble = ""
    """None: what other runtimes' agents do is no reason for this one not to be ready."""

    def __init__(self, shared: Shared) -> None:
        self.synced = asyncio.Event()
        self.problem = ""
        """Problem of the last round."""
        self._shared = shared
        self._guard = Guard("containers of other runtimes")
        self._sockets: list[str] = []
        self._listed: dict[str, dict[str, ContainerInfo]] = {}
        """By socket and id: what an agent that answers no more told last."""
        self._rounds_left = 0

    async def run(self) -> NoReturn:
        """Ask all agents again and again."""
        while True:
            await self._guard.call_async(self.sync)
            await wakeups.sleep(INTERVAL_S)

    async def sync(self) -> None:
        """Ask all agents once."""
        if self._rounds_left == 0:
            self._rounds_left = RESCAN_ROUNDS
            directory = f"{self._shared.host.roots.var_run}/{DIRECTORY}"
            self._sockets = copilots.sockets(self._shared.host.files, directory)
            self._listed = {socket: each for socket, each in self._listed.items() if socket in self._sockets}
        self._rounds_left -= 1
        found: dict[str, ForeignContainer] = {}
        problems: list[str] = []
        for socket in self._sockets:
            try:
                listed = list(map(self._placed, await copilots.containers(socket)))
                owner = socket
                self._listed[socket] = {each.uid: each for each in listed}
            except CopilotError as error:
                problems.append(str(error))
                listed, owner = self._left(self._listed.get(socket, {})), ""
            found |= self._records(listed, owner, problems)
        if not self._sockets:  # an agent that ends takes its socket along, and its containers run on
            found = self._records(self._left({}), "", problems)
        self._take(found, "; ".join(problems))

    def _take(self, found: dict[str, ForeignContainer], problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("containers of other runtimes not read", extra={"problem": problem})
        self.problem = problem
        if found != self._shared.view.foreign:
            self._shared.view.foreign = found
        self.synced.set()

    def _records(
        self, listed: Iterable[ContainerInfo], socket: str, problems: list[str]
    ) -> dict[str, ForeignContainer]:
        found = {}
        for each in listed:
            try:
                group = cgroup_layout.join(each.cgroup_dir)
                if group.rpartition("/")[2] != each.name:
                    # All that is in the group would be ended with the container.
                    raise ProtocolError(
                        f"container {each.name}", "cgroupDir", f"{each.cgroup_dir}: not its own"
                    )
                found[each.uid] = node_pods.foreign(each, self._shared.view.driver, group, socket)
            except (LayoutError, ProtocolError) as error:
                problems.append(str(error))
        return found

    def _placed(self, container: ContainerInfo) -> ContainerInfo:
        """Return a container with its group as we name groups: from where the kubelet makes its own."""
        below = self._shared.host.roots.kubepods_below.strip("/")
        directory = container.cgroup_dir.strip("/")
        own = directory.removeprefix(f"{below}/") if below else directory
        return msgspec.structs.replace(container, cgroup_dir=own)

    # Without the agent

    def _left(self, before: Mapping[str, ContainerInfo]) -> list[ContainerInfo]:
        """Return the containers that have processes: those that were told of, and new ones beside them and in the
        groups of best-effort host applications."""
        host = self._shared.host
        parents = {each.cgroup_dir.rpartition("/")[0]: None for each in before.values()} | dict.fromkeys(
            self._applications()
        )
        left = []
        for parent in parents:
            for group in host.cgroups.children(parent) or ():
                name = group.rpartition("/")[2]
                if copilot.is_yarn_id(name) and members(host, group):
                    left.append(before.get(name) or _unknown(name, group))
        return left

    def _applications(self) -> list[str]:
        view, found = self._shared.view, []
        for each in view.host_applications:
            if qos.of_name(each.qos) is QoSClass.BE:
                try:
                    found.append(cgroup_layout.host_application_dir(view.driver, each))
                except LayoutError:
                    continue  # reported where its group is written to
        return found


def _unknown(name: str, group: str) -> ContainerInfo:
    """Return a YARN container of which no more is known than its group."""
    return ContainerInfo(
        name=name,
        uid=name,
        namespace=copilot.YARN_NAMESPACE,
        priority=copilot.PRIORITY,
        cgroup_dir=group,
        resources=ContainerAmounts({}, {}),
    )
