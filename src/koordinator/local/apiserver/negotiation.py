"""Negotiate media types: read the body's type, and choose the answer's by the Accept header.

Answers are JSON, YAML or, for built-in kinds, protobuf; a client may ask for a `Table` (what `kubectl get` prints,
in JSON or YAML) or for metadata only.
"""

import enum
from functools import lru_cache

import msgspec

from koordinator.cluster import errors
from koordinator.local.apiserver import protobuf


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
