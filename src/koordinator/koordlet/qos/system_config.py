"""Settings of the node's kernel: `systemStrategy` to files below /proc/sys and /sys. Source: behaviour/koordlet-act 12.

Values out of range are left out.
"""

import asyncio
import functools
import logging
from collections.abc import Callable

import msgspec

from koordinator.api import resources
from koordinator.api.slo import SystemStrategy
from koordinator.host.errors import ContentError
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.writing import restore_log

log = logging.getLogger(__name__)

_KIB = 1024
_FACTOR_UNIT = 10_000
_WMARK_NS_MAX = 2**63 - 1

BELOW_PROC_SYS = ("vm/", "kernel/")
"""Files that are below /proc/sys; the others are below /sys/kernel/mm."""

REASON = "UpdateSystemConfig"


class _Setting(msgspec.Struct, frozen=True):
    """One file: where, which values it takes, and the value from strategy and node memory in bytes."""

    file: str
    low: int
    high: int
    value: Callable[[SystemStrategy, int], int | None]


def _min_free_kbytes(strategy: SystemStrategy, memory_bytes: int) -> int | None:
    factor = strategy.min_free_kbytes_factor
    return None if factor is None else memory_bytes // _KIB * factor // _FACTOR_UNIT


_SETTINGS = (
    _Setting("vm/min_free_kbytes", 10 * _KIB, 10 * _KIB * _KIB, _min_free_kbytes),
    _Setting("vm/watermark_scale_factor", 10, 400, lambda strategy, _: strategy.watermark_scale_factor),
    _Setting("memcg_reaper/reap_background", 0, 1, lambda strategy, _: strategy.memcg_reap_back_ground),
    _Setting(
        "kernel/sched_group_identity_enabled", 0, 1, lambda strategy, _: strategy.sched_group_identity_enabled
    ),
    _Setting(
        "kernel/sched_idle_saver_wmark", 0, _WMARK_NS_MAX, lambda strategy, _: strategy.sched_idle_saver_wmark
    ),
    _Setting("pagecache_limit/enabled", 0, 1, lambda strategy, _: strategy.page_cache_limit_enabled),
)


def wanted_files(strategy: SystemStrategy, memory_bytes: int) -> dict[str, str]:
    """File → text, for a node with that much memory."""
    wanted = {}
    for setting in _SETTINGS:
        value = setting.value(strategy, memory_bytes)
        if value is not None and setting.low <= value <= setting.high:
            wanted[setting.file] = str(value)
    return wanted


def wanted_features(strategy: SystemStrategy, current: str) -> list[str]:
    """Words to write to the kernel's `sched_features`, one at a time: those that differ from what it says.

    Raises: ContentError when the current content contradicts itself.
    """
    words = set(current.split())
    for word in words:
        if _opposite(word) in words:
            raise ContentError("sched_features", f"both {word} and {_opposite(word)}")
    wanted = (name if is_on else f"NO_{name}" for name, is_on in sorted(strategy.sched_features.items()))
    return [word for word in wanted if word not in words]


def _opposite(word: str) -> str:
    return word.removeprefix("NO_") if word.startswith("NO_") else f"NO_{word}"


class SystemConfigStrategy:
    """One round acts when the strategy or the node's memory has changed, and checks once in a while.

    Settings that the strategy does not name (any more) get back the value first seen.
    """

    name = "SystemConfig"
    gates: tuple[str, ...] = ("SystemConfig",)

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.qos.reconcile_interval_s
        self._shared = shared
        self._seen: tuple[SystemStrategy, int] | None = None
        self._check_at_s = float("-inf")
        self._reported: frozenset[str] = frozenset()

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
        """Restore all settings."""
        self._shared.executor.restore(self.name)
        self._seen = None

    def _carry_out(self, strategy: SystemStrategy, memory_bytes: int) -> None:
        executor, machine = self._shared.executor, self._shared.host.machine
        files = {self._path(file): text for file, text in wanted_files(strategy, memory_bytes).items()}
        features = machine.sched_features_path()
        wanted = set(files) | {
            restore_log.part_key(features, name) for name in strategy.sched_features if features is not None
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
        self._report_problem(frozenset(problems))

    def _set_features(self, strategy: SystemStrategy, path: str | None) -> list[str]:
        """Features that differ, one word per write; what is wrong with them."""
        if path is None or (content := self._shared.host.files.read(path)) is None:
            return ["the scheduler's features cannot be set: debugfs is not mounted"]
        try:
            words = wanted_features(strategy, content)
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
        below_proc = file.startswith(BELOW_PROC_SYS)
        return machine.sysctl_path(file) if below_proc else machine.mm_path(file)

    def _report_problem(self, problems: frozenset[str]) -> None:
        for problem in sorted(problems - self._reported):
            log.warning("kernel settings not applied", extra={"problem": problem})
        self._reported = problems


def _has_word(word: str, text: str) -> bool:
    return word in text.split()
