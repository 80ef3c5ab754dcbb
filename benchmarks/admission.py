"""Pod admission over TLS: creations per second on one core, and how they grow with profiles and with the pod.

    python -m benchmarks.admission [--seconds 2] [--rate 1000] [--count 1000] [--only "50 profiles"]

One creation is two requests, `/mutate-pod` and `/validate-pod`, sent one after the other as an API server does.
The server (the manager's handlers on `WebhookServer`) runs in a process of its own, so that the figures per core are
those of its CPU time. Two loads: open loop (creations begin at a fixed rate, whether or not earlier ones are
done; latency counts from when a creation was due), and closed loop (as many as the connections carry).

The peer in the same run is an aiohttp server that reads a request and answers with a constant: what HTTP and TLS cost
at the least.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from koordinator.api import crd
from koordinator.api.core import Namespace
from koordinator.api.groups import ClusterColocationProfile, CustomResourceDefinition, PriorityClass
from koordinator.clock import SystemClock
from koordinator.cluster import garbage
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.webhooks import certificates
from koordinator.manager.webhooks.serving import WebhookServer

HOST = "127.0.0.1"
CONNECTIONS = 32
WARM_UP = 300
SCENE_S = 300.0
"""After so long a scene is given up: a server that hangs must not hang us."""
PATHS = ("/mutate-pod", "/validate-pod")


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What the server is asked: how many profiles there are, how many of them match, how large pods are."""

    name: str
    profiles: int = 50
    matching: int = 1
    pod: str = "small"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Creations (pairs of requests); times are of the server's process or of the client's clock."""

    count: int
    wall_s: float
    cpu_s: float
    latencies_ms: list[float]

    @property
    def cpu_us(self) -> float:
        """The server's CPU time per creation."""
        return self.cpu_s / self.count * 1e6

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# What pods and profiles look like


def small_pod(number: int) -> dict[str, Any]:
    """A pod of one container, as a batch framework makes it (about 1.2 kB)."""
    container = {
        "name": "main",
        "image": "registry.example.com/team/executor:1.2.3",
        "env": [{"name": f"KEY_{i}", "value": f"value-{i}"} for i in range(8)],
        "resources": {"requests": {"cpu": "1500m", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
    }
    labels = {"app": "spark", "spark-role": "executor", "team": "team-a", "run": "r-5d4f8c7b9"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"executor-{number}", "namespace": "batch", "labels": labels},
        "spec": {"containers": [container], "schedulerName": "default-scheduler", "restartPolicy": "Never"},
        "status": {},
    }


def large_pod(number: int) -> dict[str, Any]:
    """A pod with sidecars, volumes, probes and managed fields (about 20 kB)."""
    pod = small_pod(number)
    first = pod["spec"]["containers"][0]
    env = [{"name": f"SETTING_{i}", "value": f"{'v' * 40}-{i}"} for i in range(40)]
    mounts = [{"name": f"volume-{i}", "mountPath": f"/mnt/{i}", "readOnly": True} for i in range(12)]
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10, "failureThreshold": 3}
    beside = {"env": env, "volumeMounts": mounts, "livenessProbe": probe, "readinessProbe": probe}
    pod["spec"]["containers"] = [{**first, "name": f"part-{i}", **beside} for i in range(4)]
    pod["spec"]["initContainers"] = [{**first, "name": f"init-{i}", "volumeMounts": mounts} for i in range(2)]
    pod["spec"]["volumes"] = [
        {"name": f"volume-{i}", "configMap": {"name": f"config-{i}"}} for i in range(12)
    ]
    fields: dict[str, Any] = {f"f:field{i}": {"f:inner": {}, "f:other": {}} for i in range(40)}
    pod["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsType": "FieldsV1", "fieldsV1": fields}]
    return pod


PODS = {"small": small_pod, "large": large_pod}


def profiles(count: int, matching: int) -> Iterator[dict[str, Any]]:
    """`matching` of them are meant for the pods above, the others for other applications."""
    for number in range(count):
        app = "spark" if number < matching else f"app-{number}"
        yield {
            "metadata": {"name": f"profile-{number:03}"},
            "spec": {
                "namespaceSelector": {"matchLabels": {"colocation": "enabled"}},
                "selector": {"matchLabels": {"app": app}},
                "qosClass": "BE",
                "priorityClassName": "koord-batch",
                "koordinatorPriority": 1000 + number,
                "schedulerName": "koord-scheduler",
                "labels": {f"example.com/tier-{number % 7}": "batch"},
                "patch": {"spec": {"terminationGracePeriodSeconds": 5}},
            },
        }


# The server


async def manager(scene: Scene) -> Manager:
    cluster = MemoryCluster(registry.in_memory(SystemClock(), checks=False))
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    await cluster.create(Namespace, {"metadata": {"name": "batch", "labels": {"colocation": "enabled"}}})
    await cluster.create(PriorityClass, {"metadata": {"name": "koord-batch"}, "value": 5000})
    for profile in profiles(scene.profiles, scene.matching):
        await cluster.create(ClusterColocationProfile, profile)
    return Manager(cluster)


async def _answer_constantly(certs: certificates.CertificateSet) -> int:
    response = {"uid": "1", "allowed": True, "status": {"code": 200}}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    body = json.dumps(review).encode()

    async def constant(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        cert.write_bytes(certs.cert)
        key.write_bytes(certs.key)
        context.load_cert_chain(cert, key)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(web.Server(constant, access_log=None), HOST, 0, ssl=context)
    return int(listener.sockets[0].getsockname()[1])


async def _serve(pipe: Connection, certs: certificates.CertificateSet, scene: Scene | None) -> None:
    async with asyncio.TaskGroup() as group:
        if scene is None:
            pipe.send(await _answer_constantly(certs))
        else:
            running = await manager(scene)
            task = group.create_task(running.run())
            await running.synced.wait()
            server = WebhookServer(running.handlers, synced=running.synced, host=HOST)
            server.present(certs)
            await server.start()
            garbage.set_aside()  # full caches, as in the manager's command
            pipe.send(server.port)
        while True:
            while not pipe.poll():  # noqa: ASYNC110 (a pipe has no event)
                await asyncio.sleep(0.05)
            if pipe.recv() == "stop":
                break
            pipe.send(time.process_time())
        if scene is not None:
            await server.stop()
            task.cancel()


def _run_server(pipe: Connection, certs: certificates.CertificateSet, scene: Scene | None) -> None:
    with garbage.collected_rarely():  # as in the manager's command
        _run(_serve(pipe, certs, scene))


def _run(main: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


class Server:
    """A server process and the CPU time it used; without a scene it is the peer."""

    def __init__(self, certs: certificates.CertificateSet, scene: Scene | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run_server, args=(theirs, certs, scene), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()

    def cpu_s(self) -> float:
        self._pipe.send("usage")
        return float(self._pipe.recv())

    def stop(self) -> None:
        """Ask it to end, and end it when it does not."""
        self._pipe.send("stop")
        self._process.join(10)
        self._process.kill()


# The client


class Connected:
    """One keep-alive connection that costs the client little: requests are bytes made beforehand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, request: bytes) -> bytes:
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head[9:12] == b"200", head
        start = head.index(b"content-length: ") + 16
        return await self._reader.readexactly(int(head[start : head.index(b"\r", start)]))

    async def create(self, requests: tuple[bytes, bytes]) -> None:
        for request in requests:
            assert b'"allowed":true' in (await self.send(request)).replace(b" ", b""), "refused"

    def close(self) -> None:
        self._writer.close()


def _http(path: str, pod: dict[str, Any]) -> bytes:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "name": pod["metadata"]["name"],
        "namespace": "batch",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:job-controller", "groups": ["a", "b"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    envelope = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    body = json.dumps(envelope, separators=(",", ":")).encode()
    head = (
        f"POST {path}?timeout=10s HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: kube-apiserver-admission\r\n"
        f"Accept: application/json, */*\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Accept-Encoding: gzip\r\n\r\n"
    )
    return head.encode() + body


def _mutated(pod: dict[str, Any]) -> dict[str, Any]:
    """About what the API server sends to the validating webhook."""
    amounts = {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "2Gi"}
    containers = [
        {**container, "resources": {"requests": amounts, "limits": amounts}}
        for container in pod["spec"]["containers"]
    ]
    own = {**pod["metadata"]["labels"], "koordinator.sh/qosClass": "BE"}
    spec = {**pod["spec"], "containers": containers, "priority": 5000, "priorityClassName": "koord-batch"}
    return {**pod, "metadata": {**pod["metadata"], "labels": own}, "spec": spec}


def requests_of(kind: str, count: int = 64) -> list[tuple[bytes, bytes]]:
    """The two requests of each of some pods."""
    pods = [PODS[kind](number) for number in range(count)]
    return [(_http(PATHS[0], pod), _http(PATHS[1], _mutated(pod))) for pod in pods]


async def connect(server: Server, certs: certificates.CertificateSet) -> list[Connected]:
    context = ssl.create_default_context(cadata=certs.ca_cert.decode())
    return [
        Connected(*await asyncio.open_connection(HOST, server.port, ssl=context)) for _ in range(CONNECTIONS)
    ]


async def closed_loop(
    server: Server, pool: list[Connected], requests: list[tuple[bytes, bytes]], count: int
) -> Measured:
    """All connections busy until `count` creations are done."""
    left = iter(range(count))
    latencies: list[float] = []

    async def worker(connection: Connected) -> None:
        for number in left:
            began = time.perf_counter()
            await connection.create(requests[number % len(requests)])
            latencies.append((time.perf_counter() - began) * 1e3)

    before, start = server.cpu_s(), time.perf_counter()
    await asyncio.gather(*(worker(connection) for connection in pool[:8]))
    wall_s = time.perf_counter() - start
    return Measured(count=count, wall_s=wall_s, cpu_s=server.cpu_s() - before, latencies_ms=latencies)


async def open_loop(
    server: Server,
    pool: list[Connected],
    requests: list[tuple[bytes, bytes]],
    rate: float,
    seconds: float,
) -> Measured:
    """A creation is due every 1/rate seconds; it waits for a free connection when the server falls behind."""
    count = int(rate * seconds)
    free: asyncio.Queue[Connected] = asyncio.Queue()
    for connection in pool:
        free.put_nowait(connection)
    latencies: list[float] = []

    async def one(number: int, due_s: float) -> None:
        connection = await free.get()
        await connection.create(requests[number % len(requests)])
        free.put_nowait(connection)
        latencies.append((time.perf_counter() - due_s) * 1e3)

    before, start = server.cpu_s(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            due_s = start + number / rate
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(one(number, due_s))
    wall_s = time.perf_counter() - start
    return Measured(count=count, wall_s=wall_s, cpu_s=server.cpu_s() - before, latencies_ms=latencies)


# The figures


def _line(name: str, closed: Measured, opened: Measured, rate: float) -> None:
    share = opened.cpu_s / opened.wall_s
    print(
        f"{name:40} {closed.cpu_us:6.0f} us CPU {1e6 / closed.cpu_us:7,.0f} /s per core "
        f"{closed.count / closed.wall_s:7,.0f} /s closed loop | {rate:,.0f} /s: "
        f"{opened.count / opened.wall_s:5,.0f} /s done, {share:4.0%} of a core, "
        f"p50 {opened.quantile_ms(0.5):5.2f} p99 {opened.quantile_ms(0.99):6.2f} ms",
        flush=True,
    )


async def measure(
    name: str,
    certs: certificates.CertificateSet,
    scene: Scene | None,
    pods: str,
    arguments: argparse.Namespace,
) -> float:
    """Prints the figures of one scene; microseconds of the server's CPU time per creation."""
    server = Server(certs, scene)
    try:
        async with asyncio.timeout(SCENE_S):
            return await _measure(name, server, certs, pods, arguments)
    finally:
        server.stop()


async def _measure(
    name: str, server: Server, certs: certificates.CertificateSet, pods: str, arguments: argparse.Namespace
) -> float:
    pool = await connect(server, certs)
    requests = requests_of(pods)
    await closed_loop(server, pool, requests, WARM_UP)
    gc.collect()
    # The best of several rounds: what else the machine does makes the others worse, never better.
    closed = [await closed_loop(server, pool, requests, arguments.count) for _ in range(arguments.rounds)]
    opened = [
        await open_loop(server, pool, requests, arguments.rate, arguments.seconds)
        for _ in range(arguments.rounds)
    ]
    best = min(closed, key=lambda each: each.cpu_s)
    _line(name, best, min(opened, key=lambda each: each.quantile_ms(0.99)), arguments.rate)
    for connection in pool:
        connection.close()
    return best.cpu_us


SCENES = (
    Scene(name="1 profile", profiles=1),
    Scene(name="10 profiles, 1 matches", profiles=10),
    Scene(name="50 profiles, 1 matches", profiles=50),
    Scene(name="200 profiles, 1 matches", profiles=200),
    Scene(name="50 profiles, 5 match", profiles=50, matching=5),
    Scene(name="50 profiles, all match", profiles=50, matching=50),
    Scene(name="50 profiles, 1 matches, large pods", profiles=50, pod="large"),
)


async def run(arguments: argparse.Namespace) -> None:
    certs = certificates.renewed(None, HOST, time.time())
    sizes = {kind: statistics.mean(len(pair[0]) for pair in requests_of(kind)) for kind in PODS}
    print(f"requests: small pods {sizes['small']:,.0f} bytes, large pods {sizes['large']:,.0f} bytes")
    floor = {
        kind: await measure(f"peer: constant answers, {kind} pods", certs, None, kind, arguments)
        for kind in PODS
    }
    cost: dict[str, float] = {}
    for scene in SCENES:
        if not arguments.only or arguments.only in scene.name:
            cost[scene.name] = await measure(scene.name, certs, scene, scene.pod, arguments)
    for scene in SCENES:
        if scene.name in cost:
            ratio = cost[scene.name] / floor[scene.pod]
            print(f"{scene.name:44} {ratio:5.2f} times the peer")
    few, many = cost.get("1 profile"), cost.get("200 profiles, 1 matches")
    if few and many:
        print(f"199 more profiles that do not match: {many - few:+.0f} us per creation")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round of the open loop")
    parser.add_argument("--rate", type=float, default=1000.0, help="creations per second of the open loop")
    parser.add_argument("--count", type=int, default=1000, help="creations of each round of the closed loop")
    parser.add_argument("--rounds", type=int, default=5, help="of each loop; the best one counts")
    parser.add_argument("--only", default="", help="scenes whose name contains this")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, {CONNECTIONS} keep-alive connections")
    _run(run(arguments))


if __name__ == "__main__":
    main()
