"""One request on its way through the server: the media types of its body and of its answer, and how that is written.

Answers are JSON, YAML or, for built-in kinds, protobuf; a client may ask for a `Table` (what `kubectl get` prints, in
JSON or YAML) or for metadata only.
"""

import asyncio
import enum
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import yaml
from aiohttp import web

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.delegated_auth import User
from koordinator.cluster.resource_path import ResourcePath
from koordinator.local.apiserver import bodies, protobuf, query
from koordinator.local.apiserver.short_requests import AnyRequest, ShortRequest


class MediaForm(enum.Enum):
    """The shape of an answer."""

    OBJECT = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"
    AGGREGATED_DISCOVERY = "APIGroupDiscoveryList"


class NegotiatedForm(msgspec.Struct, frozen=True):
    """The first acceptable offer: its form, the group and version of the form, and how it is written."""

    form: MediaForm = MediaForm.OBJECT
    group: str = ""
    version: str = ""
    yaml: bool = False
    protobuf: bool = False


_JSON_TYPES = frozenset({"application/json", "application/*", "*/*"})
_YAML_TYPES = frozenset({"application/yaml"})
_IN_PROTOBUF = frozenset({MediaForm.OBJECT, MediaForm.METADATA, MediaForm.METADATA_LIST})
_META_VERSIONS = frozenset({"v1", "v1beta1"})
_FORM_GROUPS = {
    MediaForm.TABLE: ("meta.k8s.io", _META_VERSIONS),
    MediaForm.METADATA: ("meta.k8s.io", _META_VERSIONS),
    MediaForm.METADATA_LIST: ("meta.k8s.io", _META_VERSIONS),
    MediaForm.AGGREGATED_DISCOVERY: ("apidiscovery.k8s.io", frozenset({"v2", "v2beta1"})),
}


@lru_cache(maxsize=256)
def wanted(accept: str, *, has_protobuf: bool = False) -> NegotiatedForm:
    """Return the form that an `Accept` header likes best: the highest quality first, equal ones as listed.

    Raises: NotAcceptable when nothing in the list is JSON, YAML or (where it `has_protobuf`) protobuf.
    """
    if not accept.strip():
        return NegotiatedForm()
    ranges = sorted(map(_parse_range, accept.split(",")), key=lambda part: -part[2])
    for media, params, quality in ranges:
        if quality <= 0:
            continue
        offer = _offer(media, params, has_protobuf)
        if offer is not None:
            return offer
    offered = ("application/json", "application/yaml", *((protobuf.MEDIA_TYPE,) if has_protobuf else ()))
    raise errors.NotAcceptable(f"only the following media types are accepted: {', '.join(offered)}")


def _offer(media: str, params: dict[str, str], has_protobuf: bool) -> NegotiatedForm | None:
    if media in _YAML_TYPES and "as" not in params:
        return NegotiatedForm(yaml=True)
    is_protobuf = has_protobuf and media == protobuf.MEDIA_TYPE
    if media not in _JSON_TYPES and not is_protobuf:
        return None
    if not params.get("as"):
        return NegotiatedForm(protobuf=is_protobuf)
    try:
        form = MediaForm(params["as"])
    except ValueError:
        return None
    group, versions = _FORM_GROUPS[form]
    version = params.get("v", "v1")
    if params.get("g", group) != group or version not in versions:
        return None
    if is_protobuf and form not in _IN_PROTOBUF:
        return None
    return NegotiatedForm(form, group, version, protobuf=is_protobuf)


def _parse_range(text: str) -> tuple[str, dict[str, str], float]:
    media, *rest = text.split(";")
    params = {}
    for part in rest:
        key, _, value = part.strip().partition("=")
        params[key.strip().lower()] = value.strip().strip('"')
    try:
        quality = float(params.pop("q", "1"))
    except ValueError:
        quality = 1.0
    return media.strip().lower(), params, quality


def body_type(content_type: str) -> str:
    """Return the media type of a body without its parameters; JSON when the client does not say."""
    return content_type.partition(";")[0].strip().lower() or "application/json"


def unsupported(accepted: tuple[str, ...]) -> errors.UnsupportedMediaType:
    """415: clients that tried something else fall back to JSON."""
    return errors.UnsupportedMediaType(
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
    )


JSON = "application/json"
BODY_S_MAX = 60  # for all of a body to arrive, as the API server gives a request
# Below this, compressing costs more than sending (the API server's own threshold).
GZIP_BYTES_MIN = 128 * 1024
_GZIP_LEVEL = 1
# One slice is compressed in about 3 ms; between slices others get the loop.
_GZIP_SLICE_BYTES = 256 * 1024

WARNINGS_CHARS_MAX = 4096  # clients refuse answers whose headers are longer than some 10 kB
WARNING_CHARS_MAX = 256  # of each, where all together are longer

_JSON_HEADERS = {"Content-Type": JSON, "Cache-Control": "no-cache, private"}


class ResourceCall:
    """A request for a resource: who asks for what, and in which form the answer is wanted."""

    __slots__ = ("params", "request", "resource", "target", "user", "wanted", "warnings")

    def __init__(self, request: AnyRequest, target: ResourcePath, resource: Resource, user: User) -> None:
        self.request = request
        self.target = target
        self.resource = resource
        self.user = user
        self.params: Mapping[str, str] = request.query
        accept = request.headers.get("Accept", "")
        self.wanted = wanted(accept, has_protobuf=protobuf.has(resource))
        self.warnings: list[str] = []

    def write_options(self, kind: str) -> WriteOptions:
        """Options of a create, update or patch; `kind` is CreateOptions, UpdateOptions or PatchOptions.

        Raises: Invalid.
        """
        agent = self.request.headers.get("User-Agent", "")
        return query.write_options(self.params, self.user, kind, agent, self.warnings.append)


async def read_body(request: AnyRequest) -> bytes:
    """Return the whole body.

    The HTTP server unpacks nothing: of a body that is refused it would unpack the rest, too, at one go.

    Raises: BadRequest (cut off, or not what its Content-Encoding says), RequestTooLarge, Timeout.
    """
    if isinstance(request, ShortRequest):
        return request.body
    if (request.content_length or 0) > bodies.BODY_BYTES_MAX:
        raise errors.RequestTooLarge(bodies.TOO_LARGE)
    try:
        async with asyncio.timeout(BODY_S_MAX):
            body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise errors.RequestTooLarge(bodies.TOO_LARGE) from None
    except web.RequestPayloadError as error:
        why = str(error).strip().rpartition("\n")[2].strip()
        raise errors.BadRequest(f"the body cannot be read: {why}") from None
    except TimeoutError:
        raise errors.Timeout(f"Timeout: the body did not arrive within {BODY_S_MAX} s") from None
    return bodies.unpacked(body, request.headers.get("Content-Encoding", ""))


def failure(error: errors.ApiError) -> web.Response:
    """Return the `Status` answer of an error."""
    response = answer(error.status(), status=error.code)
    if error.details is not None and error.details.retry_after_seconds:
        response.headers["Retry-After"] = str(error.details.retry_after_seconds)
    return response


def answer(value: Any, *, status: int = 200) -> web.Response:
    """Return a JSON answer of a value made here."""
    return web.Response(body=msgspec.json.encode(value), status=status, headers=_JSON_HEADERS)


def encoded(body: bytes, media: str = JSON, *, status: int = 200) -> web.Response:
    """Return an answer that is encoded already."""
    headers = _JSON_HEADERS if media == JSON else {**_JSON_HEADERS, "Content-Type": media}
    return web.Response(body=body, status=status, headers=headers)


_DEPRECATED = {
    ("", "v1", "endpoints"): "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
}


def warn(response: web.StreamResponse, call: ResourceCall) -> None:
    """Put the warnings of a call on its answer, unless that has begun: refusals have them, too."""
    resource = call.resource
    deprecated = _DEPRECATED.get((resource.group, resource.version, resource.plural))
    if deprecated is not None:
        call.warnings.append(deprecated)
    if call.warnings and not response.prepared:
        for warning in shortened(call.warnings):
            response.headers.add("Warning", f"299 - {_quoted(warning)}")


def shortened(warnings: Iterable[str]) -> list[str]:
    """Return each warning once; where they are too long together, the start of each, as many as fit (as the API
    server)."""
    distinct = list(dict.fromkeys(warnings))
    if sum(map(len, distinct)) <= WARNINGS_CHARS_MAX:
        return distinct
    found: list[str] = []
    left = WARNINGS_CHARS_MAX
    for text in distinct:
        if left <= 0:
            break
        found.append(text[:WARNING_CHARS_MAX])
        left -= len(found[-1])
    return found


def in_wanted_form(response: web.Response, wanted: NegotiatedForm) -> web.Response:
    """Return the answer as YAML or in protobuf where the client asked for that; errors, too."""
    if wanted.yaml:
        return as_yaml(response)
    return _as_protobuf(response) if wanted.protobuf else response


def as_yaml(response: web.Response) -> web.Response:
    """Return the same answer as YAML, for clients that asked for it."""
    value = msgspec.json.decode(response.body) if response.body else None  # type: ignore[arg-type]
    response.body = yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=True).encode()
    response.headers["Content-Type"] = "application/yaml"
    return response


def _as_protobuf(response: web.Response) -> web.Response:
    """Return the same answer in protobuf; what is no object (logs) stays as it is."""
    if response.body and response.headers.get("Content-Type") == JSON:
        response.body = protobuf.encode(msgspec.json.decode(response.body))  # type: ignore[arg-type]
        response.headers["Content-Type"] = protobuf.MEDIA_TYPE
    return response


async def compress(request: AnyRequest, response: web.Response) -> web.StreamResponse:
    """Return the answer compressed slice by slice, when it is large and the client accepts gzip."""
    body = response.body
    if not isinstance(body, bytes) or len(body) < GZIP_BYTES_MIN or not _accepts_gzip(request):
        return response
    headers = response.headers.copy()
    headers.pop("Content-Length", None)
    headers["Content-Encoding"] = "gzip"
    headers["Vary"] = "Accept-Encoding"
    if isinstance(request, ShortRequest):
        packed = b"".join([slice_ async for slice_ in _gzip_slices(body)])
        return web.Response(body=packed, status=response.status, headers=headers)
    stream = web.StreamResponse(status=response.status, headers=headers)
    await stream.prepare(request)
    async for slice_ in _gzip_slices(body):
        await stream.write(slice_)
    await stream.write_eof()
    return stream


async def _gzip_slices(body: bytes) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for start in range(0, len(body), _GZIP_SLICE_BYTES):
        piece = packer.compress(body[start : start + _GZIP_SLICE_BYTES])
        if piece:
            yield piece
    yield packer.flush()


def _accepts_gzip(request: AnyRequest) -> bool:
    return "gzip" in request.headers.get("Accept-Encoding", "")


def _quoted(text: str) -> str:
    """Return an HTTP quoted-string; control characters have no place in a header."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
