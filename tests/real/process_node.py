"""This machine as a node of a real API server: the process node of `koordinator up --process-node`, over HTTP.

The node has a kubelet's identity, its agent that of the koordlet's ServiceAccount.

    python -m tests.real.process_node NODE-KUBECONFIG AGENT-KUBECONFIG FOLDER AGENT-TOKEN-FILE
"""

import asyncio
import contextlib
import random
import signal
import sys
from pathlib import Path

from koordinator.cli import process_node
from koordinator.clock import SystemClock
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.host.host import open_host
from koordinator.host.roots import HostRoots
from koordinator.local.processes.kubelet import ProcessKubelet

HOT_FILES = 64


async def main(node_kubeconfig: str, agent_kubeconfig: Path, folder: Path, token: str) -> None:
    rng = random.Random()
    client = connect.load(kubeconfig_file=node_kubeconfig)
    options = process_node.options(folder, "", "", (token,), SystemClock())
    async with KubeCluster(client, rng=rng, component="kubelet") as cluster:
        kubelet = ProcessKubelet(cluster, open_host(HostRoots.below(""), HOT_FILES), options, rng=rng)
        try:
            await kubelet.prepare()
            running = asyncio.create_task(kubelet.run(), name="process node")
            agent = process_node.start_agent(options, agent_kubeconfig)
            assert agent is not None, "the node stands in the root group"
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await running
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)
        finally:
            await kubelet.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]).read_text()))
