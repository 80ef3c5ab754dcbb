"""Tell whether a machine is quiet enough to measure on."""

import os
import time
from pathlib import Path

from koordinator.node_demo.errors import DemoError
from koordinator.node_demo.observe import cpu_times

LOOK_S = 2.0
BUSY_RATIO_MAX = 0.10
"""Of all CPUs. What others use beyond that is larger than most of the differences that are to be shown."""


def check() -> None:
    """Look for two seconds. Raises: DemoError, which says how busy the machine is and what to do."""
    before = _times()
    time.sleep(LOOK_S)
    if trouble := trouble_of(before, _times(), os.cpu_count() or 1):
        raise DemoError(trouble)


def trouble_of(before: tuple[float, float, float], after: tuple[float, float, float], cpus: int) -> str:
    """Return why not to measure now; empty when the machine is quiet. Both are busy, idle and stolen CPU seconds."""
    busy, idle, stolen = (later - earlier for later, earlier in zip(after, before, strict=True))
    taken = (busy + stolen) / max(busy + idle + stolen, 1e-9)
    if taken <= BUSY_RATIO_MAX:
        return ""
    who = "other machines on the same host" if stolen > busy else "other processes"
    return (
        f"{who} use {taken * cpus:.1f} of {cpus} CPUs now: latencies would tell of them. Stop them (`top` shows "
        "who), or measure all the same with --busy"
    )


def _times() -> tuple[float, float, float]:
    return cpu_times(Path("/proc/stat").read_text(encoding="utf-8"))
