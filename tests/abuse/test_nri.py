"""Damaged conversations with a container runtime: no crash, no hang, no leak."""

import asyncio
import random
import resource
import time
from collections import Counter
from pathlib import Path

from koordinator.cluster.supervise import strictly
from tests.abuse import sizes
from tests.koordlet.hooks.hook_node import HookNode
from tests.koordlet.nri import damage
from tests.koordlet.nri.joining import new_plugin

WARM_UP = 2_000
GROWTH_MIB_MAX = 10


async def test_damaged_nri_frames(tmp_path: Path) -> None:
    rng, plugin = random.Random(sizes.SEED), new_plugin(HookNode(tmp_path))
    outcomes: Counter[str] = Counter()
    longest_s, began_mib = 0.0, 0.0

    with strictly():
        for number in range(sizes.REQUESTS):
            if number == WARM_UP:
                began_mib = peak_mib()
            start_s = time.process_time()
            outcomes[await damage.converse(rng, plugin.answered)] += 1
            await asyncio.sleep(0)  # as between packets: the loop drops timers that are not needed any more
            longest_s = max(longest_s, time.process_time() - start_s)

    grown_mib = peak_mib() - began_mib
    sizes.note(
        "nri", conversations=sizes.REQUESTS, **outcomes, longest_ms=longest_s * 1000, grown_mib=grown_mib
    )
    assert sum(outcomes.values()) == sizes.REQUESTS
    assert grown_mib < GROWTH_MIB_MAX


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
