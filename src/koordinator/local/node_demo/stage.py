"""Where the service and batch run: what a measurement needs to know of it."""

from pathlib import Path
from typing import Protocol

import msgspec

from koordinator.local.node_demo.plan import Hog, Mode

SERVICE_REQUEST_MILLI = 1_000
BATCH_PODS = 2
"""Batch pods of a scenario; unmanaged they request together what the service requests."""


class Setting(msgspec.Struct, frozen=True):
    """A stage that is set for a mode."""

    port: int
    service_group: str
    batch_groups: list[str]
    counters: list[Path]
    agents: list[int]
    evidence: dict[str, str]
    """Values of knobs that matter, by their file."""


class Stage(Protocol):
    """Keeps the service running and changes what is beside it."""

    async def open(self) -> None:
        """Start the service."""

    async def enter(self, mode: Mode, hog: Hog) -> Setting:
        """Have the batch pods of a mode running, and nothing else."""

    async def close(self) -> None:
        """End everything and leave the machine as it was."""
