"""A process beside the test node: an API server with the Node and its policies, a kubelet that lists pods of a file.

python -m tests.runtime.surroundings FOLDER    # writes FOLDER/surroundings.json; FOLDER/pods.json is the list
"""

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web

from koordinator.api import crd
from koordinator.api.core import Node
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.clock import SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local.cluster import served
from tests.local.apiserver.world import real_server

NODE = "n1"
FILE, PODS = "surroundings.json", "pods.json"
_POLICY = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}


async def main(folder: Path) -> None:
    async def pods(_: web.Request) -> web.Response:
        path = folder / PODS
        return web.json_response({"items": json.loads(path.read_text()) if path.exists() else []})

    kubelet = web.Application()
    kubelet.add_routes([web.get("/pods/", pods)])
    server, backend = real_server(SystemClock())
    await _objects(MemoryCluster(backend))
    await server.start()
    async with served(kubelet) as kubelet_url:
        where = {"api": server.url, "kubelet_port": kubelet_url.rpartition(":")[2]}
        beside = folder / f"{FILE}.new"
        beside.write_text(json.dumps(where))
        beside.rename(folder / FILE)
        await asyncio.Event().wait()


async def _objects(cluster: MemoryCluster) -> None:
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    amounts = {"cpu": "2", "memory": "8Gi"}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
    }
    await cluster.create(Node, {"metadata": {"name": NODE}, "status": status})
    await cluster.create(NodeMetric, {"metadata": {"name": NODE}, "spec": {}})
    await cluster.create(NodeSLO, {"metadata": {"name": NODE}, "spec": _POLICY})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
