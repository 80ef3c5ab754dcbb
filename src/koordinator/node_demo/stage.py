"""Define where the service and batch run, as far as a measurement needs to know."""

from pathlib import Path
from typing import Protocol

import msgspec

from koordinator.node_demo.plan import DemoMode, DemoScenario


class StageSetting(msgspec.Struct, frozen=True):
    """A stage that is set for a mode."""

    service_group: str
    batch_groups: list[str]
    counters: list[Path]
    agents: list[int]
    evidence: dict[str, str]
    """Values of knobs that matter, by their file."""


class Written(msgspec.Struct, frozen=True):
    """A file that the agent wrote, by its own audit log."""

    path: str
    message: str
    reason: str


class DemoStage(Protocol):
    """Keeps the service running and changes what is beside it."""

    async def open(self) -> None:
        """Start what does not change."""

    async def enter(
        self, mode: DemoMode, scenario: DemoScenario, target_ms: float | None = None
    ) -> StageSetting:
        """Have the service of a scenario running, ready to answer, and the batch pods of a mode; nothing else.

        `target_ms` is the service's objective for p99 in the closed loop.
        """

    async def close(self) -> None:
        """End everything and leave the machine as it was."""

    def written(self) -> list[Written]:
        """Return what the agent wrote, after `close`."""
