"""This machine as a node of a real API server: the process node of `koordinator up --process-node`, over HTTP.

The node has a kubelet's identity, its agent that of the koordlet's ServiceAccount. The API server shows the node a
certificate of the cluster's authority.

    python -m tests.real.process_node NODE-KUBECONFIG AGENT-KUBECONFIG FOLDER AGENT-TOKEN-FILE CLIENT-CA
"""

import asyncio
import contextlib
import random
import signal
import sys
from pathlib import Path

import msgspec

from koordinator.cli import up
from koordinator.clock import SystemClock
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.host.files import HostRoots
from koordinator.host.host import open_host
from koordinator.local.processes.server import ProcessKubelet

HOT_FILES = 64


async def main(node_kubeconfig: str, agent_kubeconfig: Path, folder: Path, token: str, ca: Path) -> None:
    rng = random.Random()
    client = connect.load(kubeconfig_file=node_kubeconfig)
    made = up.node_options(folder, "", "", (token,), SystemClock())
    options = msgspec.structs.replace(made, client_ca=ca)
    async with KubeCluster(client, rng=rng, component="kubelet") as cluster:
        kubelet = ProcessKubelet(cluster, open_host(HostRoots.below(""), HOT_FILES), options, rng=rng)
        try:
            await kubelet.prepare()
            running = asyncio.create_task(kubelet.run(), name="process node")
            agent = up.start_agent(options, agent_kubeconfig)
            assert agent is not None, "the node stands in the root group"
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await running
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)
        finally:
            await kubelet.close()


if __name__ == "__main__":
    node, agent, folder, token, ca = sys.argv[1:]
    asyncio.run(main(node, Path(agent), Path(folder), Path(token).read_text(), Path(ca)))
