"""The AdmissionReview protocol: bytes in, bytes out, whatever the handler decides (behaviour/manager 12).

The same function serves the HTTPS server and in-process callers (simulation on virtual time). What a handler changed
is answered as a JSON patch (RFC 6902). `Steps` measures handlers
(`koord_manager_webhook_webhook_duration_milliseconds`).
"""

import base64
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koordinator.manager import metrics as names
from koordinator.manager.metrics import ManagerMetrics
from koordinator.prometheus import HistogramSeries

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
    """Return a refusal with the text that the user sees."""
    return AdmissionVerdict(allowed=False, code=code, message=message)


async def review(handler: Handler, body: bytes) -> bytes:
    """Return the answer to one AdmissionReview; a body that is none is refused with code 400."""
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
        patch = diff(original, verdict.obj)
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return msgspec.json.encode({"apiVersion": version, "kind": "AdmissionReview", "response": response})


_MISSING = object()


def diff(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """Operations in order; empty when the values are equal.

    Objects are compared member by member (those without a common member are replaced), arrays of equal length
    element by element; arrays that changed their length are replaced, which keeps the patch correct under any
    reordering. Parts that both values share (the same object in memory) are not looked into, so the cost follows
    the change, not the size.
    """
    if old is new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return _diff_objects(old, new, path)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        operations = []
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            operations += diff(before, after, f"{path}/{index}")
        return operations
    if type(old) is type(new) and old == new:
        return []
    return [{"op": "replace", "path": path, "value": new}]


def _diff_objects(old: dict[str, Any], new: dict[str, Any], path: str) -> list[dict[str, Any]]:
    if old.keys().isdisjoint(new):
        return [{"op": "replace", "path": path, "value": new}] if old or new else []
    operations: list[dict[str, Any]] = []
    for key, before in old.items():
        after = new.get(key, _MISSING)
        if after is before:
            continue
        if after is _MISSING:
            operations.append({"op": "remove", "path": f"{path}/{_escape(key)}"})
        else:
            operations += diff(before, after, f"{path}/{_escape(key)}")
    for key, after in new.items():
        if key not in old:
            operations.append({"op": "add", "path": f"{path}/{_escape(key)}", "value": after})
    return operations


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


MUTATE, VALIDATE = "mutate", "validate"


class Steps:
    """The steps (`plugin_name`) of one handler, for one `webhook_type` and `object_type`.

    By the process's own timer: a loop's time may stand still between two turns.
    """

    def __init__(self, metrics: ManagerMetrics, webhook_type: str, object_type: str) -> None:
        self._durations = metrics.webhook_durations
        self._webhook_type = webhook_type
        self._object_type = object_type
        self._series: dict[tuple[str, str, bool], HistogramSeries] = {}

    def start(self) -> float:
        """Return the moment when a first step begins."""
        return time.perf_counter()

    def done(self, operation: str, plugin: str, began_s: float, *, allowed: bool = True) -> float:
        """A step that began then is over; the moment when the next one begins."""
        now_s = time.perf_counter()
        self.took(operation, plugin, now_s - began_s, allowed=allowed)
        return now_s

    def took(self, operation: str, plugin: str, duration_s: float, *, allowed: bool) -> None:
        """Note that a step is over. `operation` as the API server says it (`CREATE`)."""
        key = operation, plugin, allowed
        series = self._series.get(key)
        if series is None:
            status = names.ALLOWED if allowed else names.REJECTED
            series = self._durations.of(self._webhook_type, self._object_type, operation, plugin, status)
            self._series[key] = series
        series.observe(duration_s * 1000)


def timed(handler: Handler, steps: Steps, plugin: str) -> Handler:
    """Return a handler of one step, timed as a whole; a step that raises is a rejected one."""

    async def ask(request: AdmissionRequest) -> AdmissionVerdict:
        began_s, allowed = steps.start(), False
        try:
            verdict = await handler(request)
            allowed = verdict.allowed
            return verdict
        finally:
            steps.done(request.operation, plugin, began_s, allowed=allowed)

    return ask
