"""Manager and scheduler with ServiceAccount tokens and exactly their roles, on our API server with RBAC."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from koordinator.api import defaults
from koordinator.api.core import Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster import errors
from koordinator.cluster.config import from_url
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.leader import ElectionConfig, LeaderElector
from koordinator.cluster.memory import MemoryCluster
from koordinator.install import rbac
from koordinator.install.steps import resource_of_body
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer
from koordinator.local.apiserver.auth import StaticToken
from koordinator.local.apiserver.short_requests import AnyRequest
from koordinator.manager.manager import Manager
from koordinator.manager.metrics import LEASE
from koordinator.scheduler.scheduler import Scheduler
from tests.manager import doors

WAIT_S = 60.0
"""For what takes about a second of CPU, on a machine that does much else."""


class Recorder(ApiServer):
    """Remembers what was refused, and who asked for anything."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.refused: list[str] = []
        self.agents: set[str] = set()

    async def _answer(self, request: AnyRequest) -> web.StreamResponse:
        answer = await super()._answer(request)
        self.agents.add(request.headers.get("User-Agent", "").partition("/")[0])
        if answer.status in (401, 403):
            body = answer.body if isinstance(answer, web.Response) else b""
            self.refused.append(f"{request.method} {request.path}: {body!r}")
        return answer


async def token_of(server: ApiServer, component: str) -> str:
    path = f"/api/v1/namespaces/{defaults.NAMESPACE}/serviceaccounts/{component}/token"
    headers = {"Authorization": "Bearer admin"}
    async with (
        aiohttp.ClientSession(server.url, headers=headers) as http,
        http.post(path, json={"spec": {}}) as answer,
    ):
        return str((await answer.json())["status"]["token"])


@contextlib.asynccontextmanager
async def running(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        assert not any(task.done() for task in tasks), tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_manager_and_scheduler_need_no_more_than_their_roles() -> None:
    backend, admin = await doors.cluster()
    registry.seed_roles(backend)
    for component in (rbac.MANAGER, rbac.SCHEDULER):
        for body in rbac.objects(component, defaults.NAMESPACE):
            await backend.create(resource_of_body(body), body["metadata"].get("namespace", ""), body)
    server = Recorder(
        backend, tokens=[StaticToken("admin")], authorizer=backend.authorizer, accounts=backend.tokens
    )
    await server.start()

    def client(token: str, name: str) -> KubeCluster:
        config = from_url(server.url, token=token)
        return KubeCluster(config, rng=random.Random(1), component=name)

    tokens = [await token_of(server, component) for component in (rbac.MANAGER, rbac.SCHEDULER)]
    async with client(tokens[0], "manager") as for_manager, client(tokens[1], "scheduler") as for_scheduler:
        election = LeaderElector(
            for_manager,
            ElectionConfig(name=LEASE, namespace=defaults.NAMESPACE, identity="a"),
            rng=random.Random(2),
        )
        async with running(Manager(for_manager).run(election), Scheduler(for_scheduler).run()):
            await placed(admin)

    assert server.refused == []
    assert {"manager", "scheduler"} <= server.agents
    await server.stop()


async def placed(admin: MemoryCluster) -> None:
    """Return when the manager asks the node for reports, and the scheduler has bound a pod."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await admin.create(Node, {"metadata": {"name": "n"}, "status": status})
    spec = {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "x"}]}
    await admin.create(Pod, {"metadata": {"name": "p"}, "spec": spec}, "default")
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(errors.NotFound):
                await admin.get(NodeMetric, "n")
                if (await admin.get(Pod, "p", "default")).spec.node_name:
                    return
            await asyncio.sleep(0.05)
