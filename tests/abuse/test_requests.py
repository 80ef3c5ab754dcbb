"""Structure-aware requests by the thousand: none is answered 5xx, nothing acknowledged is lost, watches agree."""

import asyncio
import collections
import json
import random
import time
from typing import Any

from tests.abuse import sizes
from tests.abuse.client import Answer, Connection, Follower
from tests.abuse.requests import NAMESPACES, Fuzzer, Request, Resource
from tests.abuse.schemas import Shapes
from tests.abuse.server import Server

SENDERS = 8
LEDGER_EVERY = 100
LEDGER = "/api/v1/namespaces/ledger/configmaps"
FOLLOWED = [LEDGER, "/api/v1/pods", "/api/v1/configmaps", "/apis/apps/v1/deployments", "/api/v1/namespaces"]
SETTLE_S = 120.0
SHOWN_MAX = 20


class Run:
    """The requests of one seed, and what came of them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.codes: collections.Counter[int] = collections.Counter()
        self.failed: list[str] = []
        self.kept: dict[str, str] = {}
        self.left = sizes.REQUESTS
        self.slowest_s = 0.0

    async def send_all(self, fuzzer: Fuzzer) -> None:
        started_s = time.monotonic()

        async def sender(number: int) -> None:
            async with Connection(self.server.url) as connection:
                while self.left > 0:
                    self.left -= 1
                    done = sizes.REQUESTS - self.left
                    await self.send_one(connection, fuzzer)
                    if done % LEDGER_EVERY == 0:
                        await self.enter_ledger(connection, f"entry-{done}")
                    if done % max(1, sizes.REQUESTS // 20) == 0:
                        per_s = done / (time.monotonic() - started_s)
                        memory = f"{self.server.resident_mib():.0f} MiB"
                        sizes.progress(
                            "requests", f"{done:,} sent, {per_s:.0f}/s, {memory}, {self.summary()}"
                        )

        async with asyncio.TaskGroup() as group:
            for number in range(SENDERS):
                group.create_task(sender(number))

    def summary(self) -> str:
        return " ".join(f"{code}:{count}" for code, count in sorted(self.codes.items()))

    async def send_one(self, connection: Connection, fuzzer: Fuzzer) -> None:
        request = fuzzer.request()
        started_s = time.monotonic()
        try:
            answer = await connection.send(request)
            trouble = _trouble(request, answer)
            self.codes[answer.code] += 1
            if answer.code == 201 and request.method == "POST" and request.name:
                fuzzer.made.append(request.name)
        except (ConnectionError, TimeoutError) as error:
            assert self.server.is_alive, self.server.words()
            connection.close()
            self.codes[0] += 1
            trouble = f"no answer: {type(error).__name__}"
        self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
        if trouble and len(self.failed) < SHOWN_MAX:
            headers = [(name, value) for name, value in request.headers if name != b"Accept"]
            self.failed.append(
                f"{request.method} {request.path} {headers} {request.body[:2000]!r}: {trouble}"
            )
            sizes.progress("requests", self.failed[-1][:3_000])

    async def enter_ledger(self, connection: Connection, name: str) -> None:
        """A write as anybody's, amid the abuse; remembered when it is acknowledged."""
        body = {"metadata": {"name": name}, "data": {"x": name}}
        answer = await connection.write("POST", LEDGER, body)
        assert answer.code == 201, answer
        self.kept[name] = answer.json()["metadata"]["uid"]


def _trouble(request: Request, answer: Answer) -> str:
    """What is wrong with an answer; empty when nothing is."""
    # 504 is the API server's own word for a version to come; in protobuf it has no quotes.
    if answer.code >= 500 and not (answer.code == 504 and b"ResourceVersionTooLarge" in answer.body):
        return f"{answer.code} {answer.body[:500]!r}"
    if b"\nHTTP/1." in answer.body:
        return "an answer within an answer"
    if answer.headers.get(b"content-type", b"").startswith(b"application/json") and answer.body:
        try:
            value = json.loads(answer.body.splitlines()[0] if "watch=true" in request.path else answer.body)
        except ValueError as error:
            return f"{answer.code} with a body that is no JSON: {error}: {answer.body[:200]!r}"
        if answer.code >= 400 and (value.get("kind"), value.get("code")) != ("Status", answer.code):
            return f"{answer.code} without its Status: {answer.body[:200]!r}"
    return ""


async def resources_of(connection: Connection) -> list[Resource]:
    """Everything that the discovery lists, with its subresources."""
    groups = (await connection.get("/apis")).json()["groups"]
    versions = [("", "v1")] + [
        (group["name"], version["version"]) for group in groups for version in group["versions"]
    ]
    found: list[Resource] = []
    for group, version in versions:
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        listed = (await connection.get(path)).json()["resources"]
        for each in (one for one in listed if "/" not in one["name"]):
            name = each["name"]
            below = tuple(
                one["name"].partition("/")[2] for one in listed if one["name"].startswith(f"{name}/")
            )
            verbs = frozenset(each["verbs"])
            found.append(Resource(group, version, name, each["kind"], each["namespaced"], verbs, below))
    return found


async def documents_of(connection: Connection) -> list[Any]:
    index = (await connection.get("/openapi/v3")).json()["paths"]
    return [(await connection.get(f"/openapi/v3/{path}")).json() for path in index]


async def abuse(server: Server) -> Run:
    run = Run(server)
    async with Connection(server.url) as connection:
        for name in (*NAMESPACES, "ledger"):
            assert (
                await connection.write("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            ).code == 201
        resources = await resources_of(connection)
        shapes = Shapes(await documents_of(connection), random.Random(sizes.SEED))
        fuzzer = Fuzzer(shapes, resources, sizes.SEED)
        followers = [Follower(server.url, path) for path in FOLLOWED]
        following = [asyncio.create_task(each.run()) for each in followers]
        await run.send_all(fuzzer)
        run.failed += await lists_that_fail(connection, resources)
        await check_ledger(connection, run)
        for path, follower, task in zip(FOLLOWED, followers, following, strict=True):
            await check_follower(connection, path, follower, task)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    return run


async def lists_that_fail(connection: Connection, resources: list[Resource]) -> list[str]:
    """Whatever was stored can be shown, in every form."""
    failed = []
    for resource in resources:
        if "list" not in resource.verbs:
            continue
        path = f"{resource.root}/{resource.plural}"
        for accept in (
            b"application/json",
            b"application/yaml",
            b"application/json;as=Table;v=v1;g=meta.k8s.io",
        ):
            answer = await connection.get(path, (b"Accept", accept))
            if answer.code != 200:
                failed.append(f"GET {path} as {accept.decode()}: {answer.code} {answer.body[:300]!r}")
    return failed


async def check_ledger(connection: Connection, run: Run) -> None:
    listed = (await connection.get(LEDGER)).json()["items"]
    there = {item["metadata"]["name"]: item["metadata"]["uid"] for item in listed}
    there.pop("kube-root-ca.crt", None)
    assert there == run.kept


async def check_follower(
    connection: Connection, path: str, follower: Follower, task: "asyncio.Task[None]"
) -> None:
    """The watch tells what the list tells, as soon as it has caught up."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        listed = (await connection.get(path)).json()["items"]
        there = {
            (item["metadata"].get("namespace", ""), item["metadata"]["name"]): item["metadata"][
                "resourceVersion"
            ]
            for item in listed
        }
        if task.done():
            task.result()
        if there == follower.objects:
            return
        assert time.monotonic() < deadline, {key: (there.get(key), follower.objects.get(key))
                                             for key in there.keys() | follower.objects.keys()
                                             if there.get(key) != follower.objects.get(key)}  # fmt: skip
        await asyncio.sleep(0.5)


def test_no_request_fails_the_server_and_nothing_acknowledged_is_lost(server: Server) -> None:
    run = asyncio.run(abuse(server))
    sizes.note(
        "requests", sent=f"{sizes.REQUESTS:,}", codes=run.summary(), failed=len(run.failed),
        ledger_entries=len(run.kept), slowest=f"{run.slowest_s:.1f} s", memory=f"{server.resident_mib():.0f} MiB",
        failures_in_the_log=len(server.failures()),
    )  # fmt: skip

    assert server.is_alive
    assert not run.failed, "\n".join(run.failed[:SHOWN_MAX])
    assert run.codes[200] + run.codes[201] > sizes.REQUESTS // 8, run.summary()
