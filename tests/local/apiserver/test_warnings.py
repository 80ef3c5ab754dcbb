"""What users are told besides the answer."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from koordinator.clock import FixedClock
from tests.local.apiserver.requests import JSON
from tests.local.apiserver.world import real_server

JOB = {
    "metadata": {"name": "j"},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": []}}},
}
JOB["spec"]["template"]["spec"]["containers"] = [{"name": "c", "image": "i:1"}]  # type: ignore[index]
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    server, _ = real_server(FixedClock())
    await server.start()
    async with aiohttp.ClientSession(server.url) as session:
        yield session
    await server.stop()


async def warnings(http: aiohttp.ClientSession, method: str, path: str, body: object = None) -> list[str]:
    async with http.request(method, path, json=body, headers=JSON) as response:
        return response.headers.getall("Warning", [])


async def test_endpoints_are_deprecated(client: aiohttp.ClientSession) -> None:
    (told,) = await warnings(client, "GET", "/api/v1/namespaces/default/endpoints")

    assert "v1 Endpoints is deprecated in v1.33+" in told


async def test_pods_of_a_deleted_job_stay_unless_its_client_says_otherwise(
    client: aiohttp.ClientSession,
) -> None:
    await warnings(client, "POST", JOBS, JOB)
    (told,) = await warnings(client, "DELETE", f"{JOBS}/j?dryRun=All")

    assert "child pods are preserved by default when jobs are deleted" in told
    assert await warnings(client, "DELETE", f"{JOBS}/j", {"propagationPolicy": "Background"}) == []


async def test_refusals_warn_too(client: aiohttp.ClientSession) -> None:
    (told,) = await warnings(client, "POST", JOBS, {"metadata": {"name": "j"}, "spec": {"colour": "red"}})

    assert 'unknown field \\"spec.colour\\"' in told


async def test_a_body_of_a_delete_stands_for_its_query(client: aiohttp.ClientSession) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    await warnings(client, "POST", path, {"metadata": {"name": "c"}})
    await warnings(client, "DELETE", f"{path}/c?dryRun=All", {"gracePeriodSeconds": 0})

    async with client.get(f"{path}/c") as response:
        assert response.status == 404
