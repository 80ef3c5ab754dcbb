"""The nodes of a test as a process: the hollow nodes of `koordinator up`, over HTTP.

python -m tests.real.hollow KUBECONFIG COUNT CPUS [--gpus N[:MODEL]] [--rdma N] [--partitions] [--lend-gpus AGE]
"""

import argparse
import asyncio
import random

from koordinator.cli.up_cards import read_age, read_gpus
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.local.nodes.fleet import HollowFleet, alike
from koordinator.local.nodes.hollow import HollowConfig, HollowNodes
from koordinator.local.nodes.lent_gpus import agents_of

MEMORY_GIB = 128
"""As `koordinator up` has it by default."""


async def main(asked: argparse.Namespace) -> None:
    rng = random.Random(0)
    client = connect.load(kubeconfig_file=asked.kubeconfig)
    gpus, model = asked.gpus
    shapes = alike(
        asked.count,
        asked.cpus,
        MEMORY_GIB,
        gpus=gpus,
        gpu_model=model,
        rdma_cards=asked.rdma,
        has_partitions=asked.partitions,
    )
    async with KubeCluster(client, rng=rng, component="hollow-nodes") as cluster:
        fleet = HollowFleet(shapes, agents_of(asked.lend_gpus))
        config = HollowConfig(
            first_report_s=5.0, pod_events=True, topology=any(shape.has_devices for shape in shapes)
        )
        await HollowNodes(cluster, fleet, config, rng=rng).run()


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line; the flags are those of `koordinator up`."""
    found = argparse.ArgumentParser()
    found.add_argument("kubeconfig")
    found.add_argument("count", type=int)
    found.add_argument("cpus", type=int)
    found.add_argument("--gpus", type=read_gpus, default=(0, ""))
    found.add_argument("--rdma", type=int, default=0)
    found.add_argument("--partitions", action="store_true")
    found.add_argument("--lend-gpus", type=read_age, default=None)
    return found


if __name__ == "__main__":
    asyncio.run(main(parser().parse_args()))
