"""Sets the node's kernel as `systemStrategy` says; what it does not say (any more) gets back the value first seen.

Source: behaviour/koordlet-act 12.
"""

import asyncio
import functools
import logging

from koordinator.api import resources
from koordinator.api.slo import SystemStrategy
from koordinator.host.errors import ContentError
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import system_config
from koordinator.koordlet.writing import restoring

log = logging.getLogger(__name__)

REASON = "UpdateSystemConfig"


class SystemConfigStrategy:
    """One round acts when the strategy or the node's memory has changed, and checks once in a while."""

    name = "SystemConfig"
    gates: tuple[str, ...] = ("SystemConfig",)

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.qos.reconcile_interval_s
        self._shared = shared
        self._seen: tuple[SystemStrategy, int] | None = None
        self._check_at_s = float("-inf")
        self._told: frozenset[str] = frozenset()

    async def run(self) -> None:
        """One round."""
        view = self._shared.view
        strategy = view.slo.system_strategy if view.slo is not None else None
        memory_bytes = view.capacity(resources.MEMORY)
        if strategy is None or memory_bytes <= 0:
            return
        now_s = asyncio.get_running_loop().time()
        is_same = self._seen is not None and self._seen[0] is strategy and self._seen[1] == memory_bytes
        if is_same and now_s < self._check_at_s:
            return
        self._seen = strategy, memory_bytes
        self._check_at_s = now_s + self._shared.config.qos.force_update_s
        self._carry_out(strategy, memory_bytes)

    def disable(self) -> None:
        """All settings get back what they were."""
        self._shared.executor.restore(self.name)
        self._seen = None

    def _carry_out(self, strategy: SystemStrategy, memory_bytes: int) -> None:
        executor, machine = self._shared.executor, self._shared.host.machine
        files = {
            self._path(file): text
            for file, text in system_config.wanted_files(strategy, memory_bytes).items()
        }
        features = machine.sched_features_path()
        wanted = set(files) | {
            restoring.part_key(features, name) for name in strategy.sched_features if features is not None
        }
        gone = {record.key for record in executor.changed_by(self.name) if record.key not in wanted}
        if gone:
            executor.restore(self.name, keys=gone)
        problems = []
        for path, text in files.items():
            problem = executor.write_file(path, text, owner=self.name, reason=REASON)
            if problem is not None:
                problems.append(str(problem))
        if strategy.sched_features:
            problems += self._set_features(strategy, features)
        self._tell(frozenset(problems))

    def _set_features(self, strategy: SystemStrategy, path: str | None) -> list[str]:
        """Features that differ, one word per write; what is wrong with them."""
        content = self._shared.host.files.read(path) if path is not None else None
        if path is None or content is None:
            return ["the scheduler's features cannot be set: debugfs is not mounted"]
        try:
            words = system_config.wanted_features(strategy, content)
        except ContentError as error:
            return [str(error)]
        problems = []
        for word in words:
            problem = self._shared.executor.write_file(
                path,
                word,
                owner=self.name,
                reason=REASON,
                part=word.removeprefix("NO_"),
                is_held=functools.partial(_has_word, word),
            )
            if problem is not None:
                problems.append(f"{word}: {problem}")
        return problems

    def _path(self, file: str) -> str:
        machine = self._shared.host.machine
        below_proc = file.startswith(system_config.BELOW_PROC_SYS)
        return machine.sysctl_path(file) if below_proc else machine.mm_path(file)

    def _tell(self, problems: frozenset[str]) -> None:
        for problem in sorted(problems - self._told):
            log.warning("kernel not set as configured", extra={"problem": problem})
        self._told = problems


def _has_word(word: str, text: str) -> bool:
    return word in text.split()
