"""The nodes of a test as a process: the hollow nodes of `koordinator up`, over HTTP.

python -m tests.real.hollow KUBECONFIG COUNT CPUS
"""

import asyncio
import random
import sys

from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.local.nodes.fleet import FleetPolicy, HollowFleet, alike
from koordinator.local.nodes.hollow import HollowConfig, HollowNodes

MEMORY_GIB = 128
"""As `koordinator up` has it by default."""


async def main(kubeconfig: str, count: int, cpus: int) -> None:
    rng = random.Random(0)
    client = connect.load(kubeconfig_file=kubeconfig)
    async with KubeCluster(client, rng=rng, component="hollow-nodes") as cluster:
        fleet = HollowFleet(alike(count, cpus, MEMORY_GIB), FleetPolicy())
        await HollowNodes(cluster, fleet, HollowConfig(pod_events=True), rng=rng).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
