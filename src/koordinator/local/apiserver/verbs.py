"""Get, list, create, update, patch and delete over HTTP: the thin shell around `Backend`."""

import asyncio
import logging
from typing import Any

import msgspec
from aiohttp import web

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, DeleteRequest, ObjectRecord
from koordinator.cluster.protocol import PatchType
from koordinator.local.apiserver import bodies, calls, protobuf, query, tables
from koordinator.local.apiserver.calls import MediaForm, ResourceCall
from koordinator.local.schema.decode import word_of

log = logging.getLogger(__name__)

_OBJECT_TYPES = ("application/json", "application/yaml", protobuf.MEDIA_TYPE)
_ENCODED_TOGETHER = 64  # objects of a list, about 10 ms
_PATCH_TYPES = {patch.value: patch for patch in PatchType}
# Kinds whose deletion is answered with the object rather than with a Status, as in the API server.
_RETURNS_DELETED = {
    "": frozenset(
        {
            *("Pod", "Service", "ServiceAccount", "PersistentVolume", "PersistentVolumeClaim", "PodTemplate"),
            "ResourceQuota",
        }
    ),
    "storage.k8s.io": frozenset({"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"}),
    "resource.k8s.io": frozenset(
        {"DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"}
    ),
}


_JOB_CHILDREN = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or "
    "set propagationPolicy=Orphan to suppress this warning"
)


class Verbs:
    """Carries out requests for resources that live in the backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tables = tables.Tables(backend)

    async def get(self, call: ResourceCall) -> web.Response:
        target = call.target
        record = self._backend.get(call.resource, target.namespace, target.name, target.subresource)
        return self._object(call, record)

    async def list(self, call: ResourceCall) -> web.Response:
        """Raises: NotAcceptable when the form of a single object is asked for."""
        options = query.list_options(call.params)
        page = self._backend.list(call.resource, call.target.namespace, options)
        meta: dict[str, Any] = {"resourceVersion": str(page.version)}
        if page.continue_token:
            meta["continue"] = page.continue_token
            if page.remaining_count is not None:
                meta["remainingItemCount"] = page.remaining_count
        if call.wanted.form is MediaForm.TABLE:
            return calls.encoded(self._tables.encode(call, page.records, meta))
        if call.wanted.form is MediaForm.METADATA:
            raise errors.NotAcceptable(
                f"you requested PartialObjectMetadata, but the requested object is a list ({_go_list(call.resource)})"
            )
        if call.wanted.form is MediaForm.METADATA_LIST:
            items = [metadata_only(record.obj) for record in page.records]
            listed = {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": meta,
                "items": items,
            }
            return calls.answer(listed)
        if call.wanted.protobuf:
            return calls.encoded(await list_protobuf(call.resource, page.records, meta), protobuf.MEDIA_TYPE)
        return calls.encoded(list_json(call.resource, page.records, meta))

    async def create(self, call: ResourceCall) -> web.Response:
        target = call.target
        options = call.write_options("CreateOptions")
        obj = await self.read_object(call, options.field_validation)
        record = await self._backend.create(call.resource, target.namespace, obj, options)
        return self._object(call, record, status=201)

    async def update(self, call: ResourceCall) -> web.Response:
        target = call.target
        options = call.write_options("UpdateOptions")
        obj = await self.read_object(call, options.field_validation)
        creates = not target.subresource and not self._exists(call)
        record = await self._backend.update(
            call.resource, target.namespace, target.name, obj, options, target.subresource
        )
        return self._object(call, record, status=201 if creates else 200)

    async def patch(self, call: ResourceCall) -> web.Response:
        target = call.target
        media = calls.body_type(call.request.headers.get("Content-Type", ""))
        patch_type = _PATCH_TYPES.get(media)
        if patch_type is None:
            raise calls.unsupported(tuple(_PATCH_TYPES))
        query.check_apply(call.params, apply=patch_type is PatchType.APPLY)
        options = call.write_options("PatchOptions")
        body = await calls.read_body(call.request)
        patch = await _decode_patch(body, patch_type)
        call.warnings += await _duplicates(body, patch, options.field_validation)
        creates = patch_type is PatchType.APPLY and not target.subresource and not self._exists(call)
        record = await self._backend.patch(
            call.resource, target.namespace, target.name, patch, patch_type, options, target.subresource
        )
        return self._object(call, record, status=201 if creates else 200)

    async def delete(self, call: ResourceCall) -> web.Response:
        target = call.target
        options = query.delete_options(call.params, await _read_options(call), call.user)
        _warn_of_children(call, options)
        record, gone = await self._backend.delete(call.resource, target.namespace, target.name, options)
        if gone and call.resource.kind not in _RETURNS_DELETED.get(call.resource.group, ()):
            return calls.answer(_success(call.resource, record))
        return self._object(call, record)

    async def delete_collection(self, call: ResourceCall) -> web.Response:
        selection = query.list_options(call.params)
        options = query.delete_options(call.params, await _read_options(call), call.user)
        _warn_of_children(call, options)
        version = self._backend.list(call.resource, call.target.namespace, selection).version
        deleted = await self._backend.delete_collection(
            call.resource, call.target.namespace, selection, options
        )
        return calls.encoded(list_json(call.resource, list(deleted), {"resourceVersion": str(version)}))

    async def connect(self, call: ResourceCall) -> web.Response:
        target = call.target
        options = call.write_options("CreateOptions")
        obj = await self.read_object(call, options.field_validation, connect=True)
        answer = await self._backend.connect(
            call.resource, target.namespace, target.name, target.subresource, obj, options
        )
        return calls.answer(answer, status=201)

    def missing_subresource(self, call: ResourceCall) -> errors.NotFound:
        """A kind has no such subresource: of custom kinds the API server says that there is no such object."""
        of = call.resource
        if _is_custom(of):
            return errors.not_found(of.qualified, call.target.name, group=of.group, kind=of.plural)
        return errors.NotFound("the server could not find the requested resource")

    def _exists(self, call: ResourceCall) -> bool:
        try:
            self._backend.get(call.resource, call.target.namespace, call.target.name)
        except errors.NotFound:
            return False
        return True

    def _object(self, call: ResourceCall, record: ObjectRecord, *, status: int = 200) -> web.Response:
        """One object in the form that the client wants."""
        if call.wanted.form is MediaForm.TABLE:
            meta = {"resourceVersion": str(record.version)} if record.version else {}
            body = self._tables.encode(call, [record], meta)
        elif call.wanted.form is MediaForm.METADATA:
            body = msgspec.json.encode(metadata_only(record.obj))
        else:
            body = record.json()
        return calls.encoded(body, status=status)

    async def read_object(
        self, call: ResourceCall, field_validation: str, *, connect: bool = False
    ) -> dict[str, Any]:
        """Return the JSON object in the body, of the kind that the URL names, or of any kind for `connect`.

        Raises: BadRequest, RequestTooLarge, UnsupportedMediaType.
        """
        kind = call.resource.kind
        body, obj, unknown = await _read_value(call, kind)
        if not isinstance(obj, dict):
            raise errors.BadRequest(
                f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
                f"json parse error: json: cannot unmarshal {word_of(obj)} into Go value of type "
                f"struct ({bodies.summary(body)})"
            )
        if not connect and call.target.subresource != "scale":
            _check_kind(call.resource, obj, body)
        call.warnings += _told([f'unknown field "{field}"' for field in unknown], field_validation)
        call.warnings += await _duplicates(body, obj, field_validation)
        return obj


def _warn_of_children(call: ResourceCall, options: DeleteRequest) -> None:
    if call.resource.qualified == "jobs.batch" and not options.propagation:
        call.warnings.append(_JOB_CHILDREN)


def list_json(resource: Resource, records: list[ObjectRecord], meta: dict[str, Any]) -> bytes:
    """Return a list made of its items' own encodings; those of built-in kinds do not say again what they are."""
    head = b'{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":[' % (
        resource.kind.encode(),
        resource.api_version.encode(),
        msgspec.json.encode(meta),
    )
    if _is_custom(resource):
        return head + b",".join([record.json() for record in records]) + b"]}"
    kind = b'{"apiVersion":"%s","kind":"%s",' % (resource.api_version.encode(), resource.kind.encode())
    items = [_without_kind(record, kind) for record in records]
    return head + b",".join(items) + b"]}"


def _without_kind(record: ObjectRecord, kind: bytes) -> bytes:
    text = record.json()
    if text.startswith(kind):  # how objects are stored
        return b"{" + text[len(kind) :]
    return msgspec.json.encode({k: v for k, v in record.obj.items() if k not in ("apiVersion", "kind")})


async def list_protobuf(resource: Resource, records: list[ObjectRecord], meta: dict[str, Any]) -> bytes:
    """Return a list in protobuf; between slices of its items others get the loop."""
    write = protobuf.message_writer(protobuf.message_of(resource.api_version, resource.kind))
    parts = [protobuf.field(1, protobuf.message_writer("meta/v1.ListMeta")(meta))]
    for start in range(0, len(records), _ENCODED_TOGETHER):
        if start:
            await asyncio.sleep(0)
        some = records[start : start + _ENCODED_TOGETHER]
        parts += [protobuf.field(2, write(record.obj)) for record in some]
    return protobuf.wrapped(resource.api_version, f"{resource.kind}List", b"".join(parts))


def metadata_only(obj: dict[str, Any]) -> dict[str, Any]:
    """`PartialObjectMetadata` of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj.get("metadata", {}),
    }


def _check_kind(resource: Resource, obj: dict[str, Any], body: bytes) -> None:
    """Fill in kind and apiVersion where they may be left out; refuse those of another resource."""
    kind, version = obj.get("kind"), obj.get("apiVersion")
    if kind == resource.kind and version == resource.api_version:
        return
    for name, value in (("kind", kind), ("apiVersion", version)):
        if value is not None and not isinstance(value, str):
            raise bodies.unrecognised(
                resource.kind,
                body,
                bodies.MalformedBody(
                    f"json: cannot unmarshal {word_of(value)} into Go struct field .{name} of type string"
                ),
            )
    if not kind and _is_custom(resource):
        raise errors.BadRequest(
            f"the object provided is unrecognized (must be of type {resource.kind}): "
            f"Object 'Kind' is missing in '{bodies.summary(body)}'"
        )
    if version and version != resource.api_version:
        raise errors.BadRequest(
            f"the API version in the data ({version}) does not match "
            f"the expected API version ({resource.api_version})"
        )
    if kind and kind != resource.kind:
        raise errors.BadRequest(
            f'{kind} in version "{version or resource.api_version}" cannot be handled as a {resource.kind}: '
            f"converting ({kind}) to ({resource.kind}): unknown conversion"
        )
    obj["kind"], obj["apiVersion"] = resource.kind, resource.api_version


def _go_list(resource: Resource) -> str:
    """Return the Go type of a list, as an error names it: `*core.PodList`."""
    if _is_custom(resource):
        return "*unstructured.UnstructuredList"
    package = resource.group.partition(".")[0]
    return f"*{'core' if package in ('', 'events') else package}.{resource.kind}List"


def _is_custom(resource: Resource) -> bool:
    return "." in resource.group and not resource.group.endswith(".k8s.io")


async def _decode_patch(body: bytes, patch_type: PatchType) -> Any:
    try:
        if patch_type is PatchType.APPLY:
            patch = await bodies.decode_yaml_beside(body)
        else:
            patch = bodies.decode_json(body)
    except bodies.MalformedBody as error:
        raise errors.BadRequest(f"error decoding patch: {error}") from None
    expected: type = list if patch_type is PatchType.JSON else dict
    if not isinstance(patch, expected):
        wanted = "jsonpatch.Patch" if expected is list else "map[string]interface {}"
        raise errors.BadRequest(
            f"error decoding patch: json: cannot unmarshal {word_of(patch)} into Go value of type {wanted}"
        )
    return patch


async def _duplicates(body: bytes, value: Any, field_validation: str) -> list[str]:
    """Warnings for keys given twice; an error where the client asked for strictness."""
    if field_validation == "Ignore":
        return []
    found = [f'duplicate field "{path}"' for path in await bodies.duplicate_fields_beside(body, value)]
    return _told(found, field_validation)


async def _read_options(call: ResourceCall) -> Any:
    """Return the value in the body of a delete; None without a body."""
    body, value, _ = await _read_value(call, "DeleteOptions", may_be_empty=True)
    return value if body.strip() else None


def _told(found: list[str], field_validation: str) -> list[str]:
    """Return the warnings, unless they are to be ignored; an error where the client asked for strictness."""
    if found and field_validation == "Strict":
        raise errors.BadRequest("strict decoding error: " + ", ".join(found))
    return [] if field_validation == "Ignore" else found


async def _read_value(
    call: ResourceCall, kind: str, *, may_be_empty: bool = False
) -> tuple[bytes, Any, list[str]]:
    """Return the body, the value that it holds, in any of the media types for objects, and fields of protobuf that
    nobody knows.

    Raises: BadRequest, RequestTooLarge, UnsupportedMediaType.
    """
    body = await calls.read_body(call.request)
    if may_be_empty and not body.strip():
        return body, None, []
    media = calls.body_type(call.request.headers.get("Content-Type", ""))
    try:
        if media == "application/json":
            return body, bodies.decode_json(body), []
        if media == "application/yaml":
            return body, await bodies.decode_yaml_beside(body), []
        if media == protobuf.MEDIA_TYPE:
            return (body, *protobuf.decode(body))
    except (bodies.MalformedBody, protobuf.Malformed) as error:
        raise bodies.unrecognised(kind, body, error) from None
    except protobuf.JsonOnly as error:
        log.info("protobuf refused", extra={"kind": kind, "reason": str(error)})
    raise calls.unsupported(_OBJECT_TYPES)


def _success(resource: Resource, record: ObjectRecord) -> dict[str, Any]:
    meta = record.obj.get("metadata", {})
    details = {"name": meta.get("name", ""), "kind": resource.plural, "uid": meta.get("uid", "")}
    if resource.group:
        details["group"] = resource.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
