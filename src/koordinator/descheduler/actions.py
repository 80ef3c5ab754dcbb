"""Define the actions that a plugin may ask for. A plugin's pass is a generator: it yields one action, is sent
whether that succeeded, and decides on; so the decision stays pure while evictions happen in between.
"""

from collections.abc import Generator
from typing import TypeVar

import msgspec

from koordinator.api.core import Pod

R = TypeVar("R")


class EvictAction(msgspec.Struct, frozen=True):
    """Evict the pod; `reason` is for people, empty where the trigger says it all."""

    pod: Pod
    reason: str = ""


class SetCordon(msgspec.Struct, frozen=True):
    """Set whether the node takes new pods."""

    node: str
    cordoned: bool


Action = EvictAction | SetCordon
Evictions = Generator[EvictAction, bool, R]
Actions = Generator[Action, bool, R]
