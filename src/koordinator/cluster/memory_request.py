"""Raw requests on the in-process API: the URL grammar of Kubernetes, mapped to calls of a `Backend`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, DeleteRequest, ListOptions, WriteOptions
from koordinator.cluster.protocol import PatchType

# Segments after a namespace's name that belong to the Namespace object, not to a resource inside it.
_NAMESPACE_SUBRESOURCES = ("status", "finalize")
# Subresources whose body is of another group than the resource, which clients have to look up.
_SUBRESOURCE_KINDS = {"eviction": ("policy", "v1", "Eviction")}


class RequestPath(msgspec.Struct, frozen=True):
    """The object or collection that a path names; empty texts where it does not say. Without `plural`, a group's
    discovery.
    """

    group: str
    version: str
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse(path: str) -> RequestPath:
    """Return the target of a path such as `/apis/apps/v1/namespaces/shop/deployments/web/scale`.

    Raises: NotFound for what is no path of an API group.
    """
    match [segment for segment in path.split("/") if segment]:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            raise errors.NotFound(f"the server could not find the requested resource: {path}")
    match rest:
        case []:
            return RequestPath(group, version)
        case ["namespaces", name, sub] if not group and sub in _NAMESPACE_SUBRESOURCES:
            return RequestPath(group, version, "namespaces", "", name, sub)
        case ["namespaces", namespace, plural, *more] if len(more) <= 2:
            pass
        case [plural, *more] if len(more) <= 2:
            namespace = ""
        case _:
            raise errors.NotFound(f"the server could not find the requested resource: {path}")
    name, subresource = [*more, "", ""][:2]
    return RequestPath(group, version, plural, namespace, name, subresource)


async def request(
    backend: Backend,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    params: Mapping[str, str],
    options: WriteOptions,
) -> dict[str, Any]:
    """Return the answer to one request. A PATCH is a JSON merge patch. Raises: ApiError, such as
    MethodNotSupported.
    """
    target = parse(path)
    if not target.plural:
        if method != "GET":
            raise errors.MethodNotSupported(f"{method} is not supported on {path}")
        return _discovery(backend, target)
    resource = backend.resolve(target.group, target.version, target.plural)
    options = msgspec.structs.replace(
        options,
        dry_run=params.get("dryRun", "") == "All",
        field_manager=params.get("fieldManager", ""),
        field_validation=params.get("fieldValidation", ""),
    )
    if method == "GET":
        return _read(backend, resource, target, params)
    return await _write(backend, resource, method, target, dict(body or {}), options)


def _read(
    backend: Backend, resource: Resource, target: RequestPath, params: Mapping[str, str]
) -> dict[str, Any]:
    if target.name:
        return backend.get(resource, target.namespace, target.name, target.subresource).obj
    found = backend.list(resource, target.namespace, _list_options(params))
    meta: dict[str, Any] = {"resourceVersion": str(found.version)}
    if found.continue_token:
        meta["continue"] = found.continue_token
    if found.remaining_count is not None:
        meta["remainingItemCount"] = found.remaining_count
    return {
        "kind": f"{resource.kind}List",
        "apiVersion": resource.api_version,
        "metadata": meta,
        "items": [record.obj for record in found.records],
    }


def _list_options(params: Mapping[str, str]) -> ListOptions:
    try:
        limit = int(params.get("limit", "0"))
    except ValueError as error:
        raise errors.BadRequest(f"limit: {params['limit']!r} is not a number") from error
    return ListOptions(
        label_selector=params.get("labelSelector", ""),
        field_selector=params.get("fieldSelector", ""),
        limit=limit,
        continue_token=params.get("continue", ""),
        resource_version=params.get("resourceVersion", ""),
        resource_version_match=params.get("resourceVersionMatch", ""),
    )


async def _write(
    backend: Backend,
    resource: Resource,
    method: str,
    target: RequestPath,
    body: dict[str, Any],
    options: WriteOptions,
) -> dict[str, Any]:
    namespace, name, sub = target.namespace, target.name, target.subresource
    match method:
        case "POST" if sub:
            return await backend.connect(resource, namespace, name, sub, body, options)
        case "POST" if not name:
            return (await backend.create(resource, namespace, body, options)).obj
        case "PUT" if name:
            return (await backend.update(resource, namespace, name, body, options, sub)).obj
        case "PATCH" if name:
            record = await backend.patch(resource, namespace, name, body, PatchType.MERGE, options, sub)
            return record.obj
        case "DELETE" if name and not sub:
            record, _ = await backend.delete(resource, namespace, name, _delete_options(body, options))
            return record.obj
    raise errors.MethodNotSupported(f"{method} is not supported on {resource.qualified} {name!r} {sub!r}")


def _delete_options(body: Mapping[str, Any], options: WriteOptions) -> DeleteRequest:
    preconditions = body.get("preconditions") or {}
    return DeleteRequest(
        grace_period_s=body.get("gracePeriodSeconds"),
        propagation=body.get("propagationPolicy", ""),
        uid=preconditions.get("uid", ""),
        resource_version=preconditions.get("resourceVersion", ""),
        dry_run=options.dry_run,
        user=options.user,
        groups=options.groups,
    )


def _discovery(backend: Backend, target: RequestPath) -> dict[str, Any]:
    """`APIResourceList` of one group version, as a client asks whether a kind is served.

    Raises: NotFound when nothing of that group version is served.
    """
    served = [r for r in backend.resources() if (r.group, r.version) == (target.group, target.version)]
    if not served:
        raise errors.NotFound("the server could not find the requested resource")
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": [
            {
                "name": r.plural,
                "singularName": r.singular,
                "namespaced": r.namespaced,
                "kind": r.kind,
                "shortNames": list(r.short_names),
                "categories": list(r.categories),
            }
            for r in served
        ]
        + [
            {
                "name": f"{r.plural}/{name}",
                "namespaced": r.namespaced,
                "kind": kind,
                "group": group,
                "version": version,
            }
            for r in served
            for name, (group, version, kind) in _SUBRESOURCE_KINDS.items()
            if name in r.subresources
        ],
    }
