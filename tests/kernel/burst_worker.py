"""Raises and resets the quota of a container without a pause, until it is killed: `python -m tests.kernel.burst_worker
GROUP JOURNAL`.
"""

import sys
from pathlib import Path

from koordinator.koordlet.qos.cpu_burst_run import CPUBurst
from tests.kernel.strategy_node import StrategyNode
from tests.kernel.test_burst import WEB, patch_slo, throttled


def main(group: str, journal: str) -> None:
    node = StrategyNode(group, Path(journal))
    node.know(WEB)
    burst = CPUBurst(node.shared)
    print("ready", flush=True)
    while True:
        patch_slo(node, "auto")
        throttled(node, burst, 0.5, rounds=7)
        patch_slo(node, "none")
        throttled(node, burst, 0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
