"""Find which webhooks are asked about a request, what an AdmissionReview asks them, and what they answer. Pure.

Source: Kubernetes, "Dynamic Admission Control", matching requests: rules, matchPolicy, objectSelector,
namespaceSelector.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from koordinator import cel
from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Resource
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import ApiError, from_status
from koordinator.local.interfaces import AdmissionAttributes
from koordinator.local.schema.builtin.checks.policies import CONDITION_VARIABLES

Json = dict[str, Any]

GROUP = "admission.k8s.io"
_VERSIONS = ("v1", "v1beta1")  # that we speak
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


def request(uid: str, asked: AdmissionAttributes, asked_as: Resource) -> Json:
    """Return the request without its objects. `asked_as` is the version that the webhook's rule names (matchPolicy
    Equivalent)."""
    resource, options = asked.resource, asked.options
    made: Json = {
        "uid": uid,
        "kind": _kind(asked_as, asked.subresource),
        "resource": {"group": asked_as.group, "version": asked_as.version, "resource": asked_as.plural},
        "requestKind": _kind(resource, asked.subresource),
        "requestResource": {
            "group": resource.group,
            "version": resource.version,
            "resource": resource.plural,
        },
        "operation": asked.operation,
        "userInfo": {"username": options.user, "groups": list(options.groups)},
        "dryRun": options.dry_run,
        "options": _options(asked.operation, options),
    }
    if asked.subresource:
        made["subResource"] = made["requestSubResource"] = asked.subresource
    if asked.name:
        made["name"] = asked.name
    if asked.namespace:
        made["namespace"] = asked.namespace
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


def read(body: bytes, webhook: "CompiledWebhook", uid: str) -> WebhookResponse:
    """Return the answer in a webhook's response body. Raises: BadAnswer."""
    try:
        review = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"couldn't get version/kind; json parse error: {error}") from error
    if not isinstance(review, dict):
        raise BadAnswer("couldn't get version/kind; json parse error: the body is no object")
    version = webhook.review_version
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
    patch = _patch(response, version, webhook.mutating) if allowed else []
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
    server (webhooks built on controller-runtime say 403 themselves)."""
    code = status.get("code")
    code = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else 400
    said = str(status.get("message") or status.get("reason") or "")
    text = f'admission webhook "{name}" denied the request'
    message = f"{text}: {said}" if said else f"{text} without explanation"
    error = from_status(code, {**status, "message": message})
    error.reason = str(status.get("reason") or "")
    return error


Predicate = label_selector.Predicate

_ANY = "*"


class WebhookRule(msgspec.Struct, frozen=True):
    """One rule of a webhook, ready to be asked."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[str, ...]
    scope: str

    def matches(self, resource: Resource, operation: str, subresource: str) -> bool:
        """Return whether the rule names this request."""
        return (
            _has(self.operations, operation)
            and _has(self.groups, resource.group)
            and _has(self.versions, resource.version)
            and any(_names(pattern, resource.plural, subresource) for pattern in self.resources)
            and _scope_fits(self.scope, resource, subresource)
        )


def _has(allowed: frozenset[str], value: str) -> bool:
    return value in allowed or _ANY in allowed


def _names(pattern: str, plural: str, subresource: str) -> bool:
    """`pods`, `pods/status`, `pods/*`, `*`, `*/scale`, `*/*`."""
    name, slash, below = pattern.partition("/")
    if name not in {_ANY, plural}:
        return False
    if not slash:
        return not subresource
    return below in {_ANY, subresource}


def _scope_fits(scope: str, resource: Resource, subresource: str) -> bool:
    if scope in {"", _ANY}:
        return True
    # A Namespace object counts as cluster-scoped, as in the API server.
    return (scope == "Namespaced") == resource.namespaced


class CompiledCondition(msgspec.Struct, frozen=True):
    """A match condition, compiled."""

    name: str
    program: cel.Program


class CompiledWebhook(msgspec.Struct, frozen=True):
    """One webhook of a configuration, compiled."""

    name: str
    mutating: bool
    rules: tuple[WebhookRule, ...]
    by_equivalent: bool
    namespace_selects: Predicate | None
    object_selects: Predicate | None
    client: Json
    review_version: str
    timeout_s: int
    fails_closed: bool
    reinvoked: bool
    side_effects: str
    conditions: tuple[CompiledCondition, ...]

    def match(
        self, resource: Resource, operation: str, subresource: str, equivalents: Iterable[Resource]
    ) -> Resource | None:
        """Return the resource as which the webhook wants to see the request; None when it is not asked."""
        for rule in self.rules:
            if rule.matches(resource, operation, subresource):
                return resource
        if self.by_equivalent:
            for other in equivalents:
                if any(rule.matches(other, operation, subresource) for rule in self.rules):
                    return other
        return None


def compile_webhook(webhook: Json, *, mutating: bool) -> CompiledWebhook:
    """Return a webhook of a configuration (decoded, defaulted and validated), ready to be asked."""
    accepted = webhook.get("admissionReviewVersions") or ()
    return CompiledWebhook(
        name=webhook["name"],
        mutating=mutating,
        rules=tuple(compile_rule(rule) for rule in webhook.get("rules") or ()),
        by_equivalent=webhook.get("matchPolicy", "Equivalent") == "Equivalent",
        namespace_selects=compile_selector(webhook.get("namespaceSelector")),
        object_selects=compile_selector(webhook.get("objectSelector")),
        client=webhook.get("clientConfig") or {},
        review_version=next((version for version in accepted if version in _VERSIONS), "v1"),
        timeout_s=webhook.get("timeoutSeconds", 10),
        fails_closed=webhook.get("failurePolicy", "Fail") == "Fail",
        reinvoked=webhook.get("reinvocationPolicy") == "IfNeeded",
        side_effects=webhook.get("sideEffects", ""),
        conditions=tuple(
            CompiledCondition(each["name"], cel.compile_expression(each["expression"], CONDITION_VARIABLES))
            for each in webhook.get("matchConditions") or ()
        ),
    )


def compile_rule(rule: Json) -> WebhookRule:
    """Return a rule with operations and resources, ready to be asked."""
    return WebhookRule(
        operations=frozenset(rule.get("operations") or ()),
        groups=frozenset(rule.get("apiGroups") or ()),
        versions=frozenset(rule.get("apiVersions") or ()),
        resources=tuple(rule.get("resources") or ()),
        scope=rule.get("scope", _ANY),
    )


def compile_selector(selector: Json | None) -> Predicate | None:
    """Return a label selector, ready to be asked; None selects everything."""
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        return None
    return label_selector.compile_selector(msgspec.convert(selector, LabelSelector))


class Selecting(Protocol):
    """The holder of selectors: a webhook, or the matching of a policy."""

    @property
    def namespace_selects(self) -> Predicate | None: ...

    @property
    def object_selects(self) -> Predicate | None: ...


def object_selected(webhook: Selecting, obj: Json | None, old: Json | None) -> bool:
    """Return whether the new or the old object has the labels that the webhook asks for."""
    selects = webhook.object_selects
    return selects is None or any(selects(_labels(one)) for one in (obj, old) if one is not None)


def namespace_selected(
    webhook: Selecting,
    resource: Resource,
    namespace: str,
    obj: Json | None,
    old: Json | None,
    labels_of: Callable[[str], Mapping[str, str]],
) -> bool:
    """Return whether the request's namespace is one that the webhook asks for; other cluster-scoped objects always
    are."""
    selects = webhook.namespace_selects
    if selects is None:
        return True
    if resource.kind == "Namespace" and not resource.group:
        return selects(_labels(obj if obj is not None else old))
    return selects(labels_of(namespace)) if namespace else True


def _labels(obj: Json | None) -> Mapping[str, str]:
    meta = (obj or {}).get("metadata")
    labels: Mapping[str, str] = (meta.get("labels") or {}) if isinstance(meta, dict) else {}
    return labels


def conditions_hold(webhook: CompiledWebhook, values: Json) -> bool:
    """Return whether all match conditions are true. `values`: object, oldObject and request.

    One that is false decides, whatever is wrong with others, as in the API server.
    Raises: cel.EvaluationError with the condition's name.
    """
    problem: cel.EvaluationError | None = None
    for condition in webhook.conditions:
        try:
            found = condition.program(values)
        except cel.EvaluationError as error:
            problem = problem or cel.EvaluationError(
                f"expression '{condition.name}' resulted in error: {error}"
            )
            continue
        if found is False:
            return False
        if found is not True:
            problem = problem or cel.EvaluationError(
                f"expression '{condition.name}' is neither true nor false"
            )
    if problem is not None:
        raise problem
    return True
