"""What the manager serves besides webhooks."""

import asyncio

import pytest
from aiohttp.test_utils import TestClient, TestServer

from koordinator import endpoints, health
from koordinator.clock import FixedClock
from koordinator.manager import http
from koordinator.manager.metrics import FAILED, ManagerMetrics


async def test_metrics_are_reported_by_what_they_are_about() -> None:
    metrics = ManagerMetrics(FixedClock())
    metrics.nodeslo_reconciles.inc(FAILED, "createNodeSLO")
    async with TestClient(TestServer(http.metrics_application(metrics))) as client:
        found = {
            path: await (await client.get(path)).text()
            for path in ("/metrics", "/internal-metrics", "/external-metrics", "/all-metrics")
        }

    reconciles = 'slo_controller_nodeslo_reconcile_count{status="failed",reason="createNodeSLO"} 1'
    assert reconciles in found["/internal-metrics"] and reconciles not in found["/metrics"]
    assert "workqueue_depth" in found["/metrics"] and "workqueue_depth" not in found["/internal-metrics"]
    assert "slo_controller" not in found["/external-metrics"]
    for part in ("/metrics", "/internal-metrics", "/external-metrics"):
        assert found[part].strip() in found["/all-metrics"]
    assert "koordinator_manager_is_leader 0" in found["/internal-metrics"]


async def test_a_check_that_fails_is_named_and_can_be_asked_alone() -> None:
    troubles = {"webhook-ready": "no certificate yet"}

    async def webhook() -> str:
        return troubles["webhook-ready"]

    app = http.health_application({"ping": health.well}, {"ping": health.well, "webhook-ready": webhook})
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/healthz")).status == 200
        answer = await client.get("/readyz")
        assert answer.status == 500
        assert "[+]ping ok\n[-]webhook-ready failed: no certificate yet\n" in await answer.text()
        assert (await client.get("/readyz/webhook-ready")).status == 500
        assert (await client.get("/readyz/ping")).status == 200
        assert (await client.get("/readyz?exclude=webhook-ready")).status == 200

        troubles["webhook-ready"] = ""
        answer = await client.get("/readyz")
        assert (answer.status, await answer.text()) == (200, "ok")


async def test_a_check_that_hangs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "CHECK_S_MAX", 0.01)

    async def hangs() -> str:
        await asyncio.sleep(3600)
        return ""

    async with TestClient(TestServer(http.health_application({}, {"slow": hangs}))) as client:
        answer = await client.get("/readyz")
        assert answer.status == 500 and "no answer within 0.01 s" in await answer.text()
