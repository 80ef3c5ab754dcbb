"""Where a life on our controllers differs from the same life on kube-controller-manager."""

import asyncio
import random
import string
from collections.abc import Sequence
from pathlib import Path

from tests.real.lives import lead, look
from tests.real.lives.lead import Life
from tests.real.lives.look import Seen

CONTROLLER_FLAGS = ("--kube-api-qps=2000", "--kube-api-burst=4000")
PATIENT_QUIET_S = 3.0
"""A life that differs is led again, with more time for busy machines: they may have been looked at too early."""


def differing(kubeconfig: Path, lives: Sequence[Life], at_once: int) -> list[tuple[Life, list[str]]]:
    """Those that differ twice, and where."""
    found = _once(kubeconfig, lives, at_once, lead.QUIET_S)
    suspects = [life for life, _ in found]
    return _once(kubeconfig, suspects, max(at_once // 3, 4), PATIENT_QUIET_S) if suspects else []


def _once(
    kubeconfig: Path, lives: Sequence[Life], at_once: int, quiet_s: float
) -> list[tuple[Life, list[str]]]:
    prefix = "".join(random.SystemRandom().choices(string.ascii_lowercase, k=6))
    theirs = asyncio.run(lead.on_real(kubeconfig, lives, at_once, quiet_s, prefix))
    return [
        (life, lines)
        for life, seen in zip(lives, theirs, strict=True)
        if (lines := differences(seen, lead.on_ours(life, quiet_s)))
    ]


def differences(theirs: Sequence[Seen], ours: Sequence[Seen]) -> list[str]:
    """Of the first step that has any; what follows would mostly repeat them."""
    for number, (first, second) in enumerate(zip(theirs, ours, strict=True)):
        if lines := list(look.differences(first, second)):
            return [f"step {number}: {line}" for line in lines]
    return []
