"""What the agent serves."""

import random

from aiohttp.test_utils import TestClient, TestServer

from koordinator.clock import FixedClock
from koordinator.koordlet import http
from koordinator.koordlet.audit import AuditLog, AuditQuery
from koordinator.koordlet.metrics import AgentMetrics


async def test_metrics_are_served_together_and_apart() -> None:
    metrics = AgentMetrics("n1", FixedClock())
    metrics.start_time.set(5)
    metrics.allocatable.set(7, "kubernetes.io/batch-cpu", "integer")
    troubles = {"pods": "no answer"}
    app = http.application(metrics.internal, metrics.external, None, lambda: troubles)
    async with TestClient(TestServer(app)) as client:
        pages = {}
        for path in ("/metrics", "/internal-metrics", "/external-metrics", "/healthz", "/readyz", "/events"):
            answer = await client.get(path)
            pages[path] = answer.status, await answer.text()
    inner, outer = 'koordlet_start_time{node="n1"} 5', 'koordlet_node_resource_allocatable{node="n1"'
    assert inner in pages["/metrics"][1] and outer in pages["/metrics"][1]
    assert inner in pages["/internal-metrics"][1] and outer not in pages["/internal-metrics"][1]
    assert inner not in pages["/external-metrics"][1] and outer in pages["/external-metrics"][1]
    assert pages["/healthz"] == (200, "ok"), "an API server that is away is no reason to restart us"
    assert pages["/readyz"] == (503, "pods: no answer\n")
    assert pages["/events"][0] == 404, "without the gate"


async def test_the_audit_log_is_served_page_by_page() -> None:
    clock = FixedClock()
    audit = AuditLog(clock)
    for number in range(3):
        audit.node(1, "Test", f"event {number}")
    query = AuditQuery(audit, clock, random.Random(0))
    metrics = AgentMetrics("n1", clock)
    app = http.application(metrics.internal, metrics.external, query, dict)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/events", params={"size": "2"})
        text, token = await answer.text(), answer.headers["Next-Page-Token"]
        assert [line.rpartition('"message":"')[2] for line in text.splitlines()] == ['event 2"}', 'event 1"}']
        answer = await client.get(
            "/events", params={"pageToken": token}, headers={"Accept": "application/json"}
        )
        body = await answer.json()
        assert [event["message"] for event in body["Events"]] == ["event 0"] and body["NextPageToken"] == ""
        answer = await client.get("/events", params={"reason": "Test", "type": "pod"})
        assert (answer.status, await answer.text()) == (200, "")
        answer = await client.get("/events", params={"reason": "Test", "type": "node", "size": "9"})
        assert (await answer.text()).count('"reason":"Test"') == 3
        assert (await client.get("/events", params={"pageToken": "x"})).status == 409
        assert (await client.get("/events", params={"size": "-1"})).status == 400
