"""`Cluster` over HTTP: any Kubernetes API server."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import msgspec

import koordinator
from koordinator.api.meta import Object
from koordinator.clock import Clock, SystemClock
from koordinator.cluster import errors, wire
from koordinator.cluster.backoff import Rate
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.protocol import Page, PatchType, WatchEvent
from koordinator.cluster.transport import HttpRequest, Transport

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

# As client-go: large enough to be few requests, small enough for the server to hold.
LIST_LIMIT = 500
# As client-go's reflector: 5 to 10 minutes, drawn anew, so that watches do not all end at once.
WATCH_S_MIN = 300
# What the end of a watch may be late before we think the server dead.
WATCH_GRACE_S = 30.0
REQUEST_TIMEOUT_S = 30.0
# API servers send a bookmark to each watch every 60 to 75 s. One that hears nothing for longer may hang in a proxy. Or
# its kind never changed since the server began (bookmarks tell what etcd said): so silence is no error, only an end.
SILENT_S_MAX = 100.0


class KubeCluster:
    """The API at `config`. Use as `async with KubeCluster(config, rng=rng) as cluster`.

    `component` goes into the User-Agent; `rate` limits our own requests (none by default: API servers have
    priority and fairness); `rng` seeds the jitter.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        rng: random.Random,
        component: str = "koordinator",
        rate: Rate | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.transport = Transport(
            config,
            rng=rng,
            user_agent=f"{component}/{koordinator.__version__}",
            timeout_s=timeout_s,
            rate=rate,
        )
        self._rng = rng

    async def __aenter__(self) -> Self:
        await self.transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        call = HttpRequest(method="GET", path=view.resource.path(namespace, name), repeatable=True)
        return wire.read_object(view, await self.transport.send(call))

    async def list(
        self,
        view: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        transform: Callable[[T], T] | None = None,
    ) -> Page[T]:
        selection = _selection(label_selector, field_selector)
        try:
            return await self._list(view, namespace, selection, LIST_LIMIT, transform)
        except errors.Gone:
            # The list took longer than the server keeps versions: ask for all at once.
            return await self._list(view, namespace, selection, 0, transform)

    async def watch(
        self,
        view: type[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        timeout_s = int(WATCH_S_MIN * (1.0 + self._rng.random()))
        params = _selection(label_selector, field_selector) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        reader = wire.WatchReader(view)
        call = HttpRequest(method="GET", path=view.resource.path(namespace), params=params)
        async with self.transport.stream(
            call, timeout_s=timeout_s + WATCH_GRACE_S, head_timeout_s=SILENT_S_MAX
        ) as chunks:
            while (chunk := await _within(SILENT_S_MAX, chunks, call)) is not None:
                if batch := reader.feed(chunk):
                    yield batch

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        kind = {"apiVersion": view.resource.api_version, "kind": view.resource.kind}
        # Not repeatable: after a create that did arrive, a second would be refused as a duplicate.
        call = HttpRequest(
            method="POST", path=view.resource.path(namespace), body=msgspec.json.encode({**kind, **obj})
        )
        return wire.read_object(view, await self.transport.send(call))

    async def patch(
        self,
        view: type[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        field_manager: str = "",
    ) -> T:
        params = {"fieldManager": field_manager} if field_manager else {}
        if patch_type is PatchType.APPLY:
            params["force"] = "true"
        call = HttpRequest(
            method="PATCH",
            path=view.resource.path(namespace, name, subresource),
            params=params,
            body=msgspec.json.encode(patch),
            content_type=patch_type.value,
            # The other types say what should be, not what to do.
            repeatable=patch_type is not PatchType.JSON,
        )
        return wire.read_object(view, await self.transport.send(call))

    async def delete(
        self,
        view: type[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_period_s: int | None = None,
        propagation: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        asked = wire.delete_options(uid, grace_period_s, options, propagation)
        body = {"apiVersion": "v1", "kind": "DeleteOptions"} | asked
        call = HttpRequest(
            method="DELETE",
            path=view.resource.path(namespace, name),
            body=msgspec.json.encode(body),
            repeatable=bool(uid),  # else the second could meet a successor of the same name
        )
        await self.transport.send(call)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        body = msgspec.json.encode(wire.binding(namespace, pod, node, uid))
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding"
        await self.transport.send(HttpRequest(method="POST", path=path, body=body))

    async def evict(
        self,
        namespace: str,
        pod: str,
        *,
        uid: str = "",
        grace_period_s: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        body = msgspec.json.encode(wire.eviction(namespace, pod, uid, grace_period_s, options))
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        await self.transport.send(HttpRequest(method="POST", path=path, body=body, repeatable=bool(uid)))

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send one request and return its answer. A PATCH is a JSON merge patch, as in `MemoryCluster`.

        Raises: ApiError, such as InternalError when the answer is no JSON object.
        """
        call = HttpRequest(
            method=method,
            path=path,
            params=params or {},
            body=None if body is None else msgspec.json.encode(body),
            content_type=PatchType.MERGE.value if method == "PATCH" else "application/json",
            repeatable=method == "GET",
        )
        data = await self.transport.send(call)
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise errors.InternalError(f"{method} {path}: the answer is no JSON object: {error}") from error

    async def _list(
        self,
        view: type[T],
        namespace: str,
        selection: Mapping[str, str],
        limit: int,
        transform: Callable[[T], T] | None,
    ) -> Page[T]:
        """Return all pages; while one is read, the next is on its way."""
        items: list[T] = []
        unreadable: list[tuple[str, str]] = []
        params = dict(selection) | ({"limit": str(limit)} if limit else {})

        def call(token: str) -> HttpRequest:
            more = {"continue": token} if token else {}
            path = view.resource.path(namespace)
            return HttpRequest(method="GET", path=path, params=params | more, repeatable=True)

        coming: asyncio.Task[bytes] | None = None
        data = await self.transport.send(call(""))
        try:
            while True:
                if token := wire.token_ahead(data):
                    coming = asyncio.create_task(self.transport.send(call(token)))
                    await asyncio.sleep(0)  # the request leaves
                page, left_out = wire.read_page(view, data)
                items += page.items if transform is None else map(transform, page.items)
                unreadable += left_out
                if not (token := page.metadata.continue_token):
                    return Page(items, page.metadata.resource_version, tuple(unreadable))
                data = await (coming or self.transport.send(call(token)))
                coming = None
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)


async def _within(silent_s_max: float, chunks: AsyncIterator[bytes], call: HttpRequest) -> bytes | None:
    """Return the next part of a watch; None at its end, or when it was silent for too long."""
    giving_up = asyncio.timeout(silent_s_max)
    try:
        async with giving_up:
            return await anext(chunks, None)
    except TimeoutError:
        if not giving_up.expired():
            raise  # the connection's own time was over
        log.debug("watch restarted after %g s without an event: %s", silent_s_max, call.path)
        return None


def _selection(label_selector: str, field_selector: str) -> dict[str, str]:
    wanted = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in wanted.items() if value}
