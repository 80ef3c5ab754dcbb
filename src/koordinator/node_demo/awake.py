"""Keep CPUs from idling while something is measured.

A request to PM QoS for no latency at all makes cpuidle poll instead of halt, and takes nothing from anybody. Where the
kernel cannot poll, threads of the idle class do it, one on each CPU. They cost more than parking does: a CPU that runs
one never goes idle, so it takes no waiting thread from the queues of other CPUs, and p99 of a service that uses 60 %
of two CPUs was three to fifteen times what it was alone.

Source: Linux, Documentation/power/pm_qos_interface.rst and Documentation/admin-guide/pm/cpuidle.rst.
"""

import contextlib
import enum
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from koordinator.node_demo.plan import DemoError

PM_QOS_DEVICE = Path("/dev/cpu_dma_latency")
SHALLOWEST_STATE = Path("/sys/devices/system/cpu/cpu0/cpuidle/state0/name")
_POLL = "POLL"


class KeptAwakeBy(enum.StrEnum):
    """A way to keep CPUs from idling."""

    PM_QOS = "PM QoS"
    IDLE_CLASS = "idle-class threads"


def means(device: Path = PM_QOS_DEVICE, state: Path = SHALLOWEST_STATE) -> KeptAwakeBy:
    """Return the way that works here: PM QoS where the shallowest idle state of cpuidle polls."""
    try:
        polls = state.read_text(encoding="utf-8").strip() == _POLL
    except OSError:
        polls = False  # no cpuidle driver: idle CPUs halt, whatever PM QoS asks for
    return KeptAwakeBy.PM_QOS if polls and os.access(device, os.W_OK) else KeptAwakeBy.IDLE_CLASS


@contextlib.contextmanager
def polling(device: Path = PM_QOS_DEVICE) -> Iterator[None]:
    """Let idle CPUs poll until this ends; the kernel drops the request with the file. Raises: DemoError."""
    with contextlib.ExitStack() as held:
        try:
            request = held.enter_context(device.open("wb", buffering=0))
            request.write((0).to_bytes(4, sys.byteorder))
        except OSError as error:
            raise DemoError(f"CPUs cannot be kept awake by {device}: {error}") from error
        yield
