"""Just enough of an agent to follow pods on real directories, on the real loop."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from koordinator.clock import SystemClock
from koordinator.host.cgroup_layout import Driver
from koordinator.host.host import tree_host
from koordinator.host.syscalls import Syscalls
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.config import AgentConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.view import NodeView, Topic
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from tests.koordlet.agent_world import FakeKubelet


class PodsNode:
    """Groups below `base` are those of best-effort pods."""

    def __init__(self, root: Path, syscalls: Syscalls) -> None:
        self.base = root / "sys/fs/cgroup/cpu/kubepods/besteffort"
        self.base.mkdir(parents=True)
        self.kubelet = FakeKubelet()
        clock, host, nobody = SystemClock(), tree_host(str(root), syscalls), cast(Any, None)
        audit, store = AuditLog(clock), SeriesStore()
        self.shared = Shared(
            config=AgentConfig(node_name="n"),
            gates=koordlet_gates.of(),
            clock=clock,
            rng=random.Random(0),
            host=host,
            view=NodeView(Driver.CGROUPFS),
            store=store,
            readings=Readings(store, clock, 1.0),
            executor=Executor(host.cgroups, clock, audit, RestoreLog()),
            audit=audit,
            metrics=AgentMetrics("n", clock),
            cluster=nobody,
            events=nobody,
            kubelet=self.kubelet,
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that is looked at after each list of pods; the test's time-out bounds it."""
        listed = asyncio.Event()
        self.shared.view.listen(Topic.PODS, "test", listed.set)
        while not holds():
            listed.clear()
            await listed.wait()
