"""AdmissionReview: what a webhook is asked and what it answers. Pure."""

import base64
import binascii
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import ApiError, from_status

Json = dict[str, Any]

GROUP = "admission.k8s.io"
VERSIONS = ("v1", "v1beta1")
WARNING_CHARS_MAX = 256  # longer ones are cut, as in the API server
_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class BadAnswer(Exception):
    """A webhook's answer is no AdmissionReview that fits the request; its text says why."""


class WebhookResponse(msgspec.Struct, frozen=True):
    """The answer of a webhook: `patch` are JSON patch operations, empty when it wants no change."""

    allowed: bool
    patch: list[Any]
    warnings: list[str]
    status: Json


def version_for(accepted: tuple[str, ...]) -> str:
    """Return the first version in a webhook's list that we speak."""
    return next((version for version in accepted if version in VERSIONS), "v1")


def request(
    *,
    uid: str,
    operation: str,
    resource: Resource,
    asked_as: Resource,
    subresource: str,
    namespace: str,
    name: str,
    options: WriteOptions,
) -> Json:
    """Return the request without its objects. `asked_as` is the version that the webhook's rule names (matchPolicy
    Equivalent).
    """
    made: Json = {
        "uid": uid,
        "kind": _kind(asked_as, subresource),
        "resource": {"group": asked_as.group, "version": asked_as.version, "resource": asked_as.plural},
        "requestKind": _kind(resource, subresource),
        "requestResource": {
            "group": resource.group,
            "version": resource.version,
            "resource": resource.plural,
        },
        "operation": operation,
        "userInfo": {"username": options.user, "groups": list(options.groups)},
        "dryRun": options.dry_run,
        "options": _options(operation, options),
    }
    if subresource:
        made["subResource"] = made["requestSubResource"] = subresource
    if name:
        made["name"] = name
    if namespace:
        made["namespace"] = namespace
    return made


def question(version: str, request: Json, obj: Json | None, old: Json | None) -> bytes:
    """Return the body that a webhook gets; objects as `in_version` shows them."""
    whole = {**request, "object": obj, "oldObject": old}
    return msgspec.json.encode(
        {"kind": "AdmissionReview", "apiVersion": f"{GROUP}/{version}", "request": whole}
    )


_SUBRESOURCE_KINDS = {
    "binding": {"group": "", "version": "v1", "kind": "Binding"},
    "eviction": {"group": "policy", "version": "v1", "kind": "Eviction"},
    "scale": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
}


def _kind(resource: Resource, subresource: str) -> Json:
    own = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return _SUBRESOURCE_KINDS.get(subresource, own)


def _options(operation: str, options: WriteOptions) -> Json | None:
    kind = _OPTIONS.get(operation)
    if kind is None:
        return None
    body: Json = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if options.dry_run:
        body["dryRun"] = ["All"]
    if operation != "DELETE":
        if options.field_manager:
            body["fieldManager"] = options.field_manager
        if options.field_validation:
            body["fieldValidation"] = options.field_validation
    return body


def in_version(obj: Json | None, wanted: Resource, have: Resource) -> Json | None:
    """Return an object as another version shows it; versions here differ by their name only."""
    if obj is None or wanted.api_version == have.api_version or obj.get("apiVersion") != have.api_version:
        return obj
    return {**obj, "apiVersion": wanted.api_version}


def read(body: bytes, *, uid: str, version: str, mutating: bool) -> WebhookResponse:
    """Return the answer in a webhook's response body. Raises: BadAnswer."""
    try:
        review = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"couldn't get version/kind; json parse error: {error}") from error
    if not isinstance(review, dict):
        raise BadAnswer("couldn't get version/kind; json parse error: the body is no object")
    wanted = f"{GROUP}/{version}"
    if review.get("kind") != "AdmissionReview" or review.get("apiVersion") != wanted:
        raise BadAnswer(
            f"expected webhook response of {wanted}, Kind=AdmissionReview, got {review.get('apiVersion', '/')}, "
            f"Kind={review.get('kind', '')}"
        )
    response = review.get("response")
    if not isinstance(response, dict):
        raise BadAnswer("webhook response was absent")
    # v1beta1 did not ask webhooks to repeat the uid.
    if version == "v1" and response.get("uid") != uid:
        raise BadAnswer(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    allowed, status = response.get("allowed", False), response.get("status") or {}
    warnings = response.get("warnings") or []
    if not isinstance(allowed, bool) or not isinstance(status, dict) or not isinstance(warnings, list):
        raise BadAnswer("response.allowed, response.status or response.warnings has a wrong type")
    patch = _patch(response, version, mutating) if allowed else []
    return WebhookResponse(allowed, patch, [str(warning)[:WARNING_CHARS_MAX] for warning in warnings], status)


def _patch(response: Json, version: str, mutating: bool) -> list[Any]:
    text, kind = response.get("patch"), response.get("patchType")
    if not text:
        if kind and version == "v1":
            raise BadAnswer("webhook returned response.patchType but not response.patch")
        return []
    if not mutating:
        raise BadAnswer("validating webhook may not return response.patch")
    if kind is None and version == "v1":
        raise BadAnswer("webhook returned response.patch but not response.patchType")
    if kind not in {None, "JSONPatch"}:
        raise BadAnswer(f'invalid value of response.patchType="{kind}", must be "JSONPatch"')
    try:
        patch = msgspec.json.decode(base64.b64decode(text, validate=True))
    except (TypeError, ValueError, binascii.Error, msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"response.patch is no base64 of JSON: {error}") from error
    if not isinstance(patch, list):
        raise BadAnswer("response.patch is no list of operations")
    return patch


def denial(name: str, status: Json) -> ApiError:
    """Return the failure that a webhook's refusal becomes. Without a code of 400 or more it is a 400, as in the API
    server (webhooks built on controller-runtime say 403 themselves).
    """
    code = status.get("code")
    code = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else 400
    said = str(status.get("message") or status.get("reason") or "")
    text = f'admission webhook "{name}" denied the request'
    message = f"{text}: {said}" if said else f"{text} without explanation"
    error = from_status(code, {**status, "message": message})
    error.reason = str(status.get("reason") or "")
    return error


__all__ = [
    "BadAnswer",
    "WebhookResponse",
    "denial",
    "in_version",
    "question",
    "read",
    "request",
    "version_for",
]
