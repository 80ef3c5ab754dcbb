"""Suppresses more and less without a pause, until it is killed: `python -m tests.kernel.suppress_worker GROUP JOURNAL
POLICY`.
"""

import sys
from pathlib import Path

from tests.kernel.strategy_node import StrategyNode, pod_object


def main(group: str, journal: str, policy: str) -> None:
    node = StrategyNode(group, Path(journal))
    node.know(pod_object("w", "LS"), pod_object("b", "BE", "BestEffort"))
    node.suppress_by(policy)
    suppress = node.suppress()
    print("ready", flush=True)
    while True:
        for share in (1.0, 0.2, 0.6, 0.0):
            cores = share * node.cpu_count
            node.second(cores, w=cores, b=0.0)
            suppress.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
