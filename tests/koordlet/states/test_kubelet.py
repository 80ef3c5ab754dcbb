"""Where the kubelet is, and who we are to it."""

import asyncio

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from koordinator.api.core import DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeStatus
from koordinator.clock import FixedClock
from koordinator.cluster.config import ClusterConfigError
from koordinator.host.cgroup_layout import Driver
from koordinator.host.kubelet import KubeletAccess, KubeletClient, KubeletError
from koordinator.koordlet.config import KubeletClientConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.states.kubelet import KubeletIdentity, NodeKubelet, access
from koordinator.koordlet.view import NodeView

ADDRESSES = [
    ("Hostname", "n1"),
    ("InternalIP", "10.0.0.1"),
    ("InternalIP", "fd00::1"),
    ("ExternalIP", "1.2.3.4"),
]


def node(addresses: list[tuple[str, str]], port: int = 0) -> Node:
    endpoints = NodeDaemonEndpoints(kubelet_endpoint=DaemonEndpoint(port=port))
    found = [NodeAddress(type=kind, address=address) for kind, address in addresses]
    return Node(status=NodeStatus(addresses=found, daemon_endpoints=endpoints))


def url(addresses: list[tuple[str, str]], port: int = 0, **config: object) -> str | None:
    settings = msgspec.convert(config, KubeletClientConfig)
    found = access(node(addresses, port), settings, KubeletIdentity())
    return None if found is None else found.url


def test_the_preferred_address_is_called() -> None:
    assert url(ADDRESSES) == "https://10.0.0.1:10250"
    assert url(ADDRESSES, 1234, address_type="Hostname") == "https://n1:1234"
    assert url(ADDRESSES, address_type="Nonsense") == "https://10.0.0.1:10250"
    assert url([("Hostname", "n1")]) == "https://n1:10250"
    assert url(ADDRESSES, 1234, insecure=True) == "http://10.0.0.1:10255"
    assert url([]) is None


async def test_each_request_carries_our_identity_and_follows_the_node() -> None:
    seen: list[str] = []

    async def pods(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.json_response({"items": [{"metadata": {"name": "a", "uid": "u"}}]})

    async def identity() -> str:
        return f"Bearer {len(seen)}"

    application = web.Application()
    application.add_routes([web.get("/pods/", pods)])
    view, metrics = NodeView(Driver.CGROUPFS), AgentMetrics("n", FixedClock())
    async with TestServer(application) as server:
        config = KubeletClientConfig(insecure=True, read_only_port=server.port or 0)
        kubelet = NodeKubelet(config, view, metrics, KubeletIdentity(authorization=identity))
        assert await _problem(kubelet) == "kubelet: the Node is not known yet"
        view.node = node([])
        assert await _problem(kubelet) == "kubelet: the Node has no address yet"
        view.node = node([("InternalIP", "127.0.0.1")])
        assert [pod.metadata.uid for pod in await kubelet.pods()] == ["u"]
        view.node = node([("InternalIP", "127.0.0.2")])  # nobody listens there
        assert f"http://127.0.0.2:{server.port}/pods/: no answer" in await _problem(kubelet)
        await kubelet.close()
    assert seen == [""], "plain HTTP never carries a token"
    assert metrics.kubelet_request.of("get", "/pods/", "200").counts != []


async def test_a_token_goes_over_tls_only() -> None:
    async def identity() -> str:
        return "Bearer secret"

    plain = KubeletClient(KubeletAccess(address="127.0.0.1", port=1, is_plain=True), authorization=identity)
    secure = KubeletClient(KubeletAccess(address="127.0.0.1", port=1), authorization=identity)
    assert await plain._headers() == {}
    assert await secure._headers() == {"Authorization": "Bearer secret"}
    await asyncio.gather(plain.close(), secure.close())


async def test_credentials_that_cannot_be_had_are_a_problem_of_that_request() -> None:
    async def identity() -> str:
        raise ClusterConfigError("kubeconfig", "users[0].exec", "the plugin failed")

    view = NodeView(Driver.CGROUPFS)
    view.node = node([("InternalIP", "127.0.0.1")], 1)
    metrics = AgentMetrics("n", FixedClock())
    kubelet = NodeKubelet(KubeletClientConfig(), view, metrics, KubeletIdentity(authorization=identity))
    problem = await _problem(kubelet)
    assert problem == "kubelet: no credentials: kubeconfig: users[0].exec: the plugin failed"
    await kubelet.close()


async def _problem(kubelet: NodeKubelet) -> str:
    try:
        await kubelet.pods()
    except KubeletError as error:
        return str(error)
    return ""
