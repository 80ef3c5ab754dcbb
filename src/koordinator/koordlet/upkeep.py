"""Keep a long life even: old metrics, cache entries and open files go, the audit log reaches the disk."""

import asyncio
import logging
from typing import NoReturn

from koordinator.cluster.supervise import Guard
from koordinator.koordlet import audit
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)

EXPIRE_S = 60.0


async def expire(shared: Shared) -> NoReturn:
    """Drop what nobody touched, once a minute."""
    guard = Guard("upkeep")
    while True:
        await asyncio.sleep(EXPIRE_S)
        for drop in (shared.metrics.expire, shared.executor.expire, shared.host.files.sweep):
            guard.call(drop)


async def flush_audit(shared: Shared) -> NoReturn:
    """Write audit events; a disk that is full, or gone, is told once."""
    guard = Guard("audit log")
    told = ""
    while True:
        await asyncio.sleep(audit.FLUSH_INTERVAL_S)
        guard.call(shared.audit.flush)
        problem = "" if shared.audit.problem is None else str(shared.audit.problem)
        if problem and problem != told:
            log.warning("audit log not written", extra={"problem": problem})
        told = problem
