"""Find the verb of a request for a resource, and whether the resource has it."""

from typing import Any

from aiohttp import web

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend
from koordinator.local.apiserver import calls, exec_streams, query
from koordinator.local.apiserver.calls import ResourceCall
from koordinator.local.apiserver.exec_streams import ContainerCommands
from koordinator.local.apiserver.extras import Extra
from koordinator.local.apiserver.logs import LogSource, container_of, pod_log
from koordinator.local.apiserver.negotiation import MediaForm
from koordinator.local.apiserver.paths import ResourcePath
from koordinator.local.apiserver.verbs import Verbs, metadata_only
from koordinator.local.apiserver.watching import Watches

# Subresources that need a kubelet to talk to; nobody here has one.
_STREAMS = frozenset({"attach", "exec", "portforward", "proxy"})
_CONNECTED = frozenset({"binding", "eviction", "token"})
_UNKNOWN = "the server could not find the requested resource"
_NO_METHOD = "the server does not allow this method on the requested resource"


class Requests:
    """Routes calls to the verbs, the watches and the extras."""

    def __init__(
        self,
        backend: Backend,
        extras: list[Extra],
        watches: Watches,
        logs: LogSource,
        commands: ContainerCommands,
    ) -> None:
        self._backend = backend
        self._verbs = Verbs(backend)
        self._watches = watches
        self._logs = logs
        self._commands = commands
        self._extras = {
            (extra.served.resource.group, extra.served.resource.version, extra.served.resource.plural): extra
            for extra in extras
        }

    def resource_of(self, target: ResourcePath) -> Resource:
        """Raises: NotFound for what is not served at this path."""
        extra = self._extras.get((target.group, target.version, target.plural))
        if extra is not None:
            resource = extra.served.resource
        else:
            resource = self._backend.resolve(target.group, target.version, target.plural)
        if (target.namespace and not resource.namespaced) or target.rest:
            raise errors.NotFound(_UNKNOWN) if target.subresource != "proxy" else _no_streams(target)
        return resource

    async def answer(self, call: ResourceCall) -> web.StreamResponse:
        """Raises: ApiError."""
        target = call.target
        extra = self._extras.get((target.group, target.version, target.plural))
        if extra is not None:
            return await self._extra(call, extra)
        if target.subresource:
            return await self._subresource(call)
        method = call.request.method
        if not target.name:
            return await self._collection(call, method)
        if call.resource.namespaced and not target.namespace:
            raise errors.NotFound(_UNKNOWN)
        if method == "GET":
            if target.watch or query.boolean(call.params, "watch"):
                return await self._watches.serve(call)
            return await self._verbs.get(call)
        if method == "PUT":
            return await self._verbs.update(call)
        if method == "PATCH":
            return await self._verbs.patch(call)
        if method == "DELETE":
            return await self._verbs.delete(call)
        raise errors.MethodNotSupported(_NO_METHOD)

    async def _collection(self, call: ResourceCall, method: str) -> web.StreamResponse:
        target = call.target
        if method == "GET":
            if target.watch or query.boolean(call.params, "watch"):
                return await self._watches.serve(call)
            return await self._verbs.list(call)
        if call.resource.namespaced and not target.namespace:
            raise errors.MethodNotSupported(_NO_METHOD)
        if method == "POST":
            return await self._verbs.create(call)
        if method == "DELETE":
            return await self._verbs.delete_collection(call)
        raise errors.MethodNotSupported(_NO_METHOD)

    async def _subresource(self, call: ResourceCall) -> web.StreamResponse:
        target, method, name = call.target, call.request.method, call.target.subresource
        pod = call.resource.plural == "pods" and not call.resource.group
        if pod and name == "log" and method == "GET":
            return await pod_log(call, self._backend, self._logs)
        if pod and name == "exec" and method in ("GET", "POST"):
            return await self._exec(call)
        if name in _STREAMS and not call.resource.group:
            raise _no_streams(target)
        if name not in call.resource.subresources or (call.resource.namespaced and not target.namespace):
            raise errors.NotFound(_UNKNOWN)
        if name in _CONNECTED:
            if method != "POST":
                raise errors.MethodNotSupported(_NO_METHOD)
            return await self._verbs.connect(call)
        if method == "GET" and name != "finalize":
            return await self._verbs.get(call)
        if method == "PUT":
            return await self._verbs.update(call)
        if method == "PATCH" and name != "finalize":
            return await self._verbs.patch(call)
        raise errors.MethodNotSupported(_NO_METHOD)

    async def _exec(self, call: ResourceCall) -> web.StreamResponse:
        target, params = call.target, call.params
        pod = self._backend.get(call.resource, target.namespace, target.name)
        request = call.request
        if not isinstance(request, web.BaseRequest):
            raise _no_streams(target)
        wanted = exec_streams.ExecOptions(
            container=container_of(pod, params.get("container", "")),
            command=tuple(request.query.getall("command", [])),
            stdin=bool(query.boolean(params, "stdin")),
            stdout=bool(query.boolean(params, "stdout")),
            stderr=bool(query.boolean(params, "stderr")),
            tty=bool(query.boolean(params, "tty")),
        )
        return await exec_streams.serve(request, pod, wanted, self._commands)

    async def _extra(self, call: ResourceCall, extra: Extra) -> web.Response:
        target, method = call.target, call.request.method
        if target.subresource:
            raise errors.NotFound(_UNKNOWN)
        if target.watch or query.boolean(call.params, "watch"):
            raise errors.MethodNotSupported(_NO_METHOD)
        if method == "POST" and "create" in extra.served.verbs and not target.name:
            body = await self._verbs.read_object(call, "")
            return calls.answer(await extra.create(call, body), status=201)
        if method == "GET" and "get" in extra.served.verbs:
            if target.name:
                return calls.answer(_in_form(call, extra.get(call)))
            return calls.answer(_extra_list(call, extra))
        raise errors.MethodNotSupported(_NO_METHOD)


def _extra_list(call: ResourceCall, extra: Extra) -> dict[str, Any]:
    resource = extra.served.resource
    items = [_in_form(call, item) for item in extra.list(call)]
    listed = {
        "kind": f"{resource.kind}List",
        "apiVersion": resource.api_version,
        "metadata": {},
        "items": items,
    }
    if call.wanted.form in (MediaForm.METADATA, MediaForm.METADATA_LIST):
        listed.update(kind="PartialObjectMetadataList", apiVersion="meta.k8s.io/v1")
    return listed


def _in_form(call: ResourceCall, obj: dict[str, Any]) -> dict[str, Any]:
    return metadata_only(obj) if call.wanted.form in (MediaForm.METADATA, MediaForm.METADATA_LIST) else obj


def _no_streams(target: ResourcePath) -> errors.BadRequest:
    return errors.BadRequest(
        f"{target.plural}/{target.subresource} is not served: "
        "the pods of this cluster have no kubelet to connect to"
    )
