"""`pods/NAME/log`: what a container wrote, from whoever runs the pods."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec
from aiohttp import web

from koordinator import clock
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, ObjectRecord
from koordinator.local.apiserver import query
from koordinator.local.apiserver.calls import ResourceCall


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a container's log that is wanted; 0 and None mean all of it."""

    container: str
    previous: bool = False
    tail_lines: int | None = None
    limit_bytes: int = 0
    since_s: int = 0
    """Only what was written in the last so many seconds."""
    since_time_s: float | None = None
    """Only what was written from this moment on."""
    timestamps: bool = False
    follow: bool = False


class LogSource(Protocol):
    """Knows what containers wrote."""

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        """Return the log in pieces; with `follow` until the container has ended, an empty piece now and then
        meanwhile.

        Raises: ApiError where there is no log.
        """
        ...


class NoLogs:
    """Nobody runs the pods for real, so there is nothing to read."""

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        """Refuse, since the node simulates containers. Raises: BadRequest."""
        name = pod.obj["metadata"]["name"]
        raise errors.BadRequest(
            f'container "{options.container}" in pod "{name}" has no log: this node simulates its containers'
        )


async def pod_log(call: ResourceCall, backend: Backend, source: LogSource) -> web.StreamResponse:
    """Answer a request for a container's log.

    Raises: NotFound, BadRequest.
    """
    target = call.target
    pod = backend.get(call.resource, target.namespace, target.name)
    options = options_of(container_of(pod, call.params.get("container", "")), call.params)
    pieces = await source.open(pod, options)
    request = call.request
    assert isinstance(request, web.BaseRequest), "only the general server streams"
    return await send(request, pieces)


def options_of(container: str, params: Mapping[str, str]) -> LogOptions:
    """Return the options of a query for logs, of the API server's as of the kubelet's. Raises: BadRequest."""
    return LogOptions(
        container=container,
        previous=bool(query.boolean(params, "previous")),
        tail_lines=query.integer(params, "tailLines") if params.get("tailLines") else None,
        limit_bytes=query.integer(params, "limitBytes"),
        since_s=query.integer(params, "sinceSeconds"),
        since_time_s=_time(params.get("sinceTime", "")),
        timestamps=bool(query.boolean(params, "timestamps")),
        follow=bool(query.boolean(params, "follow")),
    )


async def send(request: web.BaseRequest, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send a log as it comes, until its end or until the client leaves."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        async for piece in pieces:
            if piece:
                await response.write(piece)
            elif request.transport is None or request.transport.is_closing():
                return response
        await response.write_eof()
    return response


def _time(text: str) -> float | None:
    try:
        return clock.parse_rfc3339(text) if text else None
    except ValueError:
        raise errors.BadRequest(f'parsing time "{text}" as RFC 3339: cannot parse it') from None


def container_of(pod: ObjectRecord, asked: str) -> str:
    """Return the container that is meant: the named one, or the only one. Raises: BadRequest."""
    spec, name = pod.obj.get("spec") or {}, pod.obj["metadata"]["name"]
    names = [item["name"] for key in ("initContainers", "containers") for item in spec.get(key) or []]
    main: list[str] = [item["name"] for item in spec.get("containers") or []]
    if asked:
        if asked not in names:
            raise errors.BadRequest(f"container {asked} is not valid for pod {name}")
        return asked
    if len(main) != 1:
        raise errors.BadRequest(
            f"a container name must be specified for pod {name}, choose one of: [{' '.join(main)}]"
        )
    return main[0]
