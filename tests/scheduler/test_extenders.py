"""HTTP extenders: a real server on the loopback is asked, believed, and survived."""

import asyncio
import base64
import contextlib
import pathlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from koordinator.cluster.supervise import strictly
from koordinator.manager.webhooks import certificates
from koordinator.scheduler.config import config, default_plugins
from tests.scheduler.reservation.test_plugin import reservation
from tests.scheduler.world import World, node, pod

Json = dict[str, Any]


class Oracle:
    """An extender: `answers` maps verbs to what it says, `asked` holds what it was told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Json]] = []
        self.answers: dict[str, Callable[[Json], Any]] = {}
        self.port = 0
        self.pause_s = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        verb = request.match_info["verb"]
        body = await request.json()
        self.asked.append((verb, body))
        await asyncio.sleep(self.pause_s)
        answer = self.answers[verb](body)
        return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer)

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]


@contextlib.asynccontextmanager
async def serving(oracle: Oracle, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_post("/api/{verb}", oracle.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    oracle.port = runner.addresses[0][1]
    try:
        yield
    finally:
        await runner.cleanup()


def play(
    story: Callable[[World, Oracle], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
    *,
    is_shipped: bool = False,
    **extender: Any,
) -> None:
    """A story in real time (sockets do not know virtual time) with one extender, and the shipped profile or the
    stock one."""

    async def main() -> None:
        oracle = Oracle()
        async with serving(oracle, tls):
            scheme = "http" if tls is None else "https"
            described = {"urlPrefix": f"{scheme}://127.0.0.1:{oracle.port}/api/", **extender}
            settings = config.decode({"extenders": [described], "podMaxBackoffSeconds": 0})
            if is_shipped:
                profiles = default_plugins.shipped_config().profiles
                settings = msgspec.structs.replace(settings, profiles=profiles)
            world = World(settings)
            with strictly():
                task = asyncio.create_task(world.scheduler.run())
                await world.scheduler.synced.wait()
                try:
                    await story(world, oracle)
                finally:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    asyncio.run(main())


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


def test_an_extender_refuses_nodes_and_users_read_why() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: {
            "NodeNames": [],
            "FailedNodes": {"node-0": "too noisy"},
            "FailedAndUnresolvableNodes": {"node-1": "too far"},
        }
        world.nodes(2)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.condition("web"))

        assert world.condition("web")["message"].startswith(
            "0/2 nodes are available: 1 too far, 1 too noisy. no new claims to deallocate, preemption: "
            "0/2 nodes are available: "
            "1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
        )
        [(_, body)] = oracle.asked
        assert body["NodeNames"] == ["node-0", "node-1"] and body["Nodes"] is None
        assert body["Pod"]["metadata"]["name"] == "web" and body["Pod"]["kind"] == "Pod"

        # Any event may help, as nobody knows what the extender looks at.
        oracle.answers["filter"] = lambda body: {"nodenames": ["node-1"]}
        world.api.put("Node", node("node-0", labels={"a": "b"}))
        await until(lambda: world.api.placements()["web"])
        assert world.api.placements()["web"] == "node-1"

    play(story, filterVerb="filter", nodeCacheCapable=True)


def test_an_extender_without_a_cache_is_sent_whole_nodes() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: {"nodes": {"items": body["Nodes"]["items"][1:]}}
        for name in ("a", "b"):
            body = node(name)
            body["status"]["nodeInfo"] = {"machineID": name}
            world.api.put("Node", body)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.api.placements()["web"])

        assert world.api.placements()["web"] == "b"
        items = oracle.asked[0][1]["Nodes"]["items"]
        assert [item["status"]["nodeInfo"]["machineID"] for item in items] == ["a", "b"]

    play(story, filterVerb="filter")


def test_scores_of_an_extender_count_ten_times_its_weight() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        # The empty node leads by less than what 5 * 10 * 3 = 150 points make up for.
        oracle.answers["prioritize"] = lambda body: [
            {"Host": "full", "Score": 5},
            {"host": "empty", "score": 0},
        ]
        world.api.put("Node", node("full", cpu="4", memory="4Gi"))
        world.api.put("Node", node("empty", cpu="4", memory="4Gi"))
        world.api.put("Pod", pod("there", cpu="1", memory="1Gi", scheduler="x", nodeName="full"))
        await asyncio.sleep(0.05)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.api.placements()["web"])

        assert world.api.placements()["web"] == "full"

    play(story, prioritizeVerb="prioritize", weight=3, nodeCacheCapable=True)


def test_only_pods_that_name_a_managed_resource_are_shown_and_fit_leaves_it_alone() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: {"NodeNames": body["NodeNames"]}
        world.nodes(1)
        world.api.put("Pod", pod("plain"))
        world.api.put("Pod", pod("wants", requests={"cpu": "1", "example.com/card": "1"}))
        await until(lambda: all(world.api.placements().values()))

        assert [body["Pod"]["metadata"]["name"] for _, body in oracle.asked] == ["wants"]

    managed = [{"name": "example.com/card", "ignoredByScheduler": True}]
    play(story, filterVerb="filter", nodeCacheCapable=True, managedResources=managed)


def test_a_failing_extender_fails_the_attempt_unless_it_may_be_ignored() -> None:
    async def fails(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: web.Response(status=500)
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.condition("web"))
        assert world.condition("web")["reason"] == "SchedulerError"
        assert "filter was answered with code 500" in world.condition("web")["message"]

    async def goes_on(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: {"Error": "out of order"}
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.api.placements()["web"])

    play(fails, filterVerb="filter", nodeCacheCapable=True)
    play(goes_on, filterVerb="filter", nodeCacheCapable=True, ignorable=True)


def test_an_extender_that_binds_does_so_instead_of_us() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["bind"] = lambda body: {}
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: oracle.asked)

        [(_, body)] = oracle.asked
        uid = next(each["metadata"]["uid"] for each in world.api.pods())
        assert body == {"PodName": "web", "PodNamespace": "default", "PodUID": uid, "Node": "node-0"}
        await asyncio.sleep(0.05)
        assert not world.api.bindings

    play(story, bindVerb="bind")


def test_who_binds_is_left_out_when_it_fails_and_may_be_ignored() -> None:
    async def fails(world: World, oracle: Oracle) -> None:
        oracle.answers["bind"] = lambda body: {"Error": "out of order"}
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.condition("web"))
        assert "out of order" in world.condition("web")["message"] and not world.api.bindings

    async def goes_on(world: World, oracle: Oracle) -> None:
        oracle.answers["bind"] = lambda body: {"Error": "out of order"}
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.api.placements()["web"])

    play(fails, bindVerb="bind")
    play(goes_on, bindVerb="bind", ignorable=True)


def test_reservations_are_shown_and_nobody_else_binds_them() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: {"NodeNames": body["NodeNames"]}
        oracle.answers["bind"] = lambda body: {"Error": "no such pod"}
        world.nodes(1)
        world.api.put("Reservation", reservation("room"))
        await until(lambda: world.api.objects["Reservation"][("", "room")].get("status", {}).get("nodeName"))

        assert oracle.verbs() == ["filter"]
        assert oracle.asked[0][1]["Pod"]["spec"]["containers"]

    play(story, is_shipped=True, filterVerb="filter", bindVerb="bind", nodeCacheCapable=True)


ILL_FILTERS: list[Any] = [
    [],
    "node-0",
    {"NodeNames": "node-0"},
    {"NodeNames": [1]},
    {"NodeNames": ["node-0"], "FailedNodes": ["node-0"]},
    {"Nodes": ["node-0"]},
]


@pytest.mark.parametrize("answer", ILL_FILTERS, ids=str)
def test_an_answer_of_another_shape_counts_as_a_failure(answer: Any) -> None:
    async def goes_on(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: answer
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.api.placements()["web"])

    play(goes_on, filterVerb="filter", nodeCacheCapable=True, ignorable=True)


def test_what_an_extender_lets_pass_passes_and_what_it_does_not_name_nobody_can_clear() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: {
            "NodeNames": [] if body["Pod"]["metadata"]["name"] == "none" else ["node-1"],
            "FailedAndUnresolvableNodes": {"node-1": "too far"},
        }
        world.nodes(2)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.api.placements()["web"])
        assert world.api.placements()["web"] == "node-1"
        world.api.put("Pod", pod("none"))
        await until(lambda: world.condition("none"))
        assert "2 Preemption is not helpful for scheduling" in world.condition("none")["message"]

    play(story, filterVerb="filter", nodeCacheCapable=True)


def test_scores_for_a_node_add_up_and_below_zero_only_compare() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["prioritize"] = lambda body: [
            *({"Host": "node-0", "Score": -60} for _ in range(2)),
            {"Host": "node-1", "Score": -100},
            {"Host": "node-2", "Score": -200},
        ]
        world.nodes(3)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.api.placements()["web"])

        assert world.api.placements()["web"] == "node-1"

    play(story, prioritizeVerb="prioritize", weight=1, nodeCacheCapable=True)


def test_an_extender_may_choose_other_victims_of_the_node() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        def other(body: Json) -> Json:
            [(name, victims)] = body["NodeNameToVictims"].items()
            [proposed] = victims["Pods"]
            uid = next(
                each["metadata"]["uid"]
                for each in world.api.pods()
                if each["metadata"]["name"] not in ("high", proposed["metadata"]["name"])
            )
            return {"NodeNameToMetaVictims": {name: {"Pods": [{"UID": uid}]}}}

        oracle.answers["preempt"] = other
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("least", cpu="2", priority=1))
        world.api.put("Pod", pod("less", cpu="2", priority=2))
        await until(lambda: all(world.api.placements().values()))
        world.api.put("Pod", pod("high", cpu="2", priority=1000))
        await until(lambda: world.api.placements().get("high"))

        assert set(world.api.placements()) == {"least", "high"}

    play(story, preemptVerb="preempt")


@pytest.mark.parametrize(
    "answer",
    [
        {"nowhere": {"Pods": [{"UID": "x"}]}},
        {"node-0": {"Pods": [{"UID": "nobody"}]}},
        {"node-0": {"Pods": ["x"]}},
        ["node-0"],
    ],
    ids=str,
)
def test_victims_that_are_not_there_are_a_failure(answer: Any) -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["preempt"] = lambda body: {"NodeNameToMetaVictims": answer}
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("low", cpu="4", priority=1))
        await until(lambda: all(world.api.placements().values()))
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await until(lambda: world.api.placements().get("high"))  # as if it had not been asked

    play(story, preemptVerb="preempt", nodeCacheCapable=True, ignorable=True)


def test_an_extender_has_a_say_in_whom_to_evict() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.answers["preempt"] = lambda body: {
            "NodeNameToMetaVictims": {"node-1": body["NodeNameToMetaVictims"]["node-1"]}
        }
        world.nodes(2, cpu="4")
        for number in range(2):
            world.api.put("Pod", pod(f"low-{number}", cpu="4", priority=number))
        await until(lambda: all(world.api.placements().values()))
        where = {place: name for name, place in world.api.placements().items()}
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await until(lambda: world.api.placements().get("high"))

        assert world.api.placements()["high"] == "node-1"
        assert where["node-1"] not in world.api.placements()
        assert set(oracle.verbs()) == {"preempt"}

    play(story, preemptVerb="preempt", nodeCacheCapable=True)


def test_a_slow_extender_is_given_up_after_its_timeout() -> None:
    async def story(world: World, oracle: Oracle) -> None:
        oracle.pause_s = 1.0
        oracle.answers["filter"] = lambda body: {}
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.condition("web"))
        assert "no answer to filter in 0.1s" in world.condition("web")["message"]
        oracle.pause_s = 0.0

    play(story, filterVerb="filter", httpTimeout="100ms", nodeCacheCapable=True)


def test_tls_verifies_the_server_by_the_given_authority(tmp_path: pathlib.Path) -> None:
    certs = certificates.renewed(None, "oracle.example", time.time())
    (tmp_path / "cert").write_bytes(certs.cert)
    (tmp_path / "key").write_bytes(certs.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    ca = base64.b64encode(certs.ca_cert).decode()

    async def trusted(world: World, oracle: Oracle) -> None:
        oracle.answers["filter"] = lambda body: {"NodeNames": body["NodeNames"]}
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.api.placements()["web"])

    async def another_name(world: World, oracle: Oracle) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await until(lambda: world.condition("web"))
        assert "CERTIFICATE_VERIFY_FAILED" in world.condition("web")["message"]
        assert not oracle.asked

    options: Json = {"filterVerb": "filter", "nodeCacheCapable": True, "enableHTTPS": True}
    play(trusted, server, **options, tlsConfig={"caData": ca, "serverName": "oracle.example"})
    play(another_name, server, **options, tlsConfig={"caData": ca})
    play(trusted, server, **options)  # as upstream: without an authority nothing is verified
