"""Hooks over real groups: the kubelet's layout below a group of the test's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from koordinator.api.core import Pod
from koordinator.host.cgroups import Cgroups
from koordinator.host.host import open_host
from tests.kernel.conftest import ROOTS, make
from tests.koordlet.hooks.hook_node import BEST_EFFORT, BURSTABLE, ROOT, HookNode


class RealNode(HookNode):
    """A node whose groups the kernel keeps; `below` is the group in which the kubelet makes its own."""

    def __init__(self, journal: Path, real: Cgroups, below: str, **how: Any) -> None:
        self.real, self.below = real, below
        host = open_host(msgspec.structs.replace(ROOTS, kubepods_below=below), hot_files_max=64)
        super().__init__(journal, host=host, version=real.version, **how)
        for each in (ROOT, BURSTABLE, BEST_EFFORT):
            if not self.host.cgroups.exists(each):
                self.group(each)

    def group(self, name: str) -> None:
        make(self.real, f"{self.below}/{name}")

    def start(self, *pods: Pod) -> None:
        """The agent starts, then the kubelet tells of pods."""
        self.hooks.start()
        self.run_pods(*pods)

    def restarted(self, **changes: Any) -> "RealNode":
        again = RealNode(self.root, self.real, self.below, **changes)
        again.clock.now_s = self.clock.now_s + 1
        again.view.pods, again.view.has_pods = self.view.pods, self.view.has_pods
        again.view.slo, again.view.node, again.view.topology = (
            self.view.slo,
            self.view.node,
            self.view.topology,
        )
        return again

    def usage_ns(self, groups: Mapping[str, str]) -> dict[str, int]:
        """CPU time of groups so far, by the names given to them."""
        return {name: self.host.cgroups.cpu_usage_ns(group) or 0 for name, group in groups.items()}
