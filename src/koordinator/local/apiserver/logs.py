"""`pods/NAME/log`: what a container wrote, from whoever runs the pods."""

from typing import Protocol

import msgspec
from aiohttp import web

from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, Record
from koordinator.local.apiserver import query
from koordinator.local.apiserver.calls import Call


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a container's log is wanted; 0 and None mean all of it."""

    container: str
    previous: bool = False
    tail_lines: int | None = None
    limit_bytes: int = 0
    since_s: int = 0
    timestamps: bool = False


class LogSource(Protocol):
    """Knows what containers wrote."""

    async def read(self, pod: Record, options: LogOptions) -> bytes:
        """Raises: ApiError where there is no log."""
        ...


class NoLogs:
    """Nobody runs the pods for real, so there is nothing to read."""

    async def read(self, pod: Record, options: LogOptions) -> bytes:
        name = pod.obj["metadata"]["name"]
        raise errors.BadRequest(
            f'container "{options.container}" in pod "{name}" has no log: this node simulates its containers'
        )


async def pod_log(call: Call, backend: Backend, source: LogSource) -> web.Response:
    """Answer a request for a container's log.

    Raises: NotFound, BadRequest.
    """
    target = call.target
    pod = backend.get(call.resource, target.namespace, target.name)
    params = call.params
    options = LogOptions(
        container=_container(pod, params.get("container", "")),
        previous=bool(query.boolean(params, "previous")),
        tail_lines=query.integer(params, "tailLines") if params.get("tailLines") else None,
        limit_bytes=query.integer(params, "limitBytes"),
        since_s=query.integer(params, "sinceSeconds"),
        timestamps=bool(query.boolean(params, "timestamps")),
    )
    text = await source.read(pod, options)
    return web.Response(body=text, headers={"Content-Type": "text/plain"})


def _container(pod: Record, asked: str) -> str:
    """The container whose log is meant: the named one, or the only one."""
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
