"""The AdmissionReview protocol: bytes in, bytes out, whatever the handler decides (behaviour/manager 12).

The same function serves the HTTPS server and in-process callers (simulation on virtual time).
"""

import base64
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koordinator.manager.webhooks import json_diff

log = logging.getLogger(__name__)

API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


class GroupVersionResource(msgspec.Struct, frozen=True):
    """The type of object that a request is about."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(msgspec.Struct, frozen=True):
    """The user who asks."""

    username: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of `AdmissionRequest` that handlers read; objects stay JSON."""

    uid: str = ""
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    dry_run: bool | None = None
    user_info: UserInfo = UserInfo()


class AdmissionReview(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The envelope."""

    api_version: str = API_VERSIONS[0]
    kind: str = "AdmissionReview"
    request: AdmissionRequest | None = None


class AdmissionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a handler. `obj` is the object after mutation, None when it is unchanged."""

    allowed: bool = True
    obj: dict[str, Any] | None = None
    code: int = 200
    message: str = ""
    warnings: tuple[str, ...] = ()


ALLOWED = AdmissionVerdict()

Handler = Callable[[AdmissionRequest], Awaitable[AdmissionVerdict]]
Page = Callable[[], bytes]
"""A document for people, as JSON."""
Answering = Callable[[bytes], Awaitable[bytes]]
"""A handler behind the protocol: AdmissionReview in, AdmissionReview out, as JSON."""


def denied(message: str, code: int = 400) -> AdmissionVerdict:
    """A refusal with the text that the user sees."""
    return AdmissionVerdict(allowed=False, code=code, message=message)


async def review(handler: Handler, body: bytes) -> bytes:
    """The answer to one AdmissionReview; a body that is none is refused with code 400."""
    try:
        envelope = msgspec.json.decode(body, type=AdmissionReview)
    except (msgspec.DecodeError, RecursionError) as error:
        return _encode(API_VERSIONS[0], "", denied(f"decode AdmissionReview: {error}"), None)
    request = envelope.request
    version = envelope.api_version
    if version not in API_VERSIONS:
        return _encode(API_VERSIONS[0], "", denied(f"unsupported AdmissionReview version {version!r}"), None)
    if request is None:
        return _encode(version, "", denied("AdmissionReview without request"), None)
    try:
        verdict = await handler(request)
    except Exception as error:
        log.exception(
            "admission handler failed",
            extra={"resource": request.resource.resource, "object": f"{request.namespace}/{request.name}"},
        )
        verdict = denied(f"{type(error).__name__}: {error}", 500)
    return _encode(version, request.uid, verdict, request.object)


def _encode(version: str, uid: str, verdict: AdmissionVerdict, original: dict[str, Any] | None) -> bytes:
    response: dict[str, Any] = {
        "uid": uid,
        "allowed": verdict.allowed,
        "status": {"code": verdict.code, "message": verdict.message},
    }
    if verdict.allowed and verdict.obj is not None and original is not None:
        patch = json_diff.diff(original, verdict.obj)
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return msgspec.json.encode({"apiVersion": version, "kind": "AdmissionReview", "response": response})
