"""Find which webhooks are asked about a request. Pure.

Source: Kubernetes, "Dynamic Admission Control", matching requests: rules, matchPolicy, objectSelector,
namespaceSelector.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from koordinator import cel
from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Resource
from koordinator.local.schema.builtin.checks.policies import CONDITION_VARIABLES

Json = dict[str, Any]
Predicate = label_selector.Predicate

_ANY = "*"
_EXEMPT_GROUP = "admissionregistration.k8s.io"


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
    configuration: str
    mutating: bool
    rules: tuple[WebhookRule, ...]
    by_equivalent: bool
    namespace_selects: Predicate | None
    object_selects: Predicate | None
    client: Json
    review_versions: tuple[str, ...]
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


def compile_configuration(configuration: Json, *, mutating: bool) -> list[CompiledWebhook]:
    """Return the webhooks of a configuration (decoded, defaulted and validated)."""
    name = configuration["metadata"]["name"]
    return [_webhook(webhook, name, mutating) for webhook in configuration.get("webhooks") or ()]


def _webhook(webhook: Json, configuration: str, mutating: bool) -> CompiledWebhook:
    return CompiledWebhook(
        name=webhook["name"],
        configuration=configuration,
        mutating=mutating,
        rules=tuple(compile_rule(rule) for rule in webhook.get("rules") or ()),
        by_equivalent=webhook.get("matchPolicy", "Equivalent") == "Equivalent",
        namespace_selects=compile_selector(webhook.get("namespaceSelector")),
        object_selects=compile_selector(webhook.get("objectSelector")),
        client=webhook.get("clientConfig") or {},
        review_versions=tuple(webhook.get("admissionReviewVersions") or ("v1",)),
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


def is_exempt(resource: Resource) -> bool:
    """Webhook configurations are never shown to webhooks: a bad one could not be repaired."""
    return resource.group == _EXEMPT_GROUP


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
    are.
    """
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


def in_order(webhooks: Sequence[CompiledWebhook]) -> list[CompiledWebhook]:
    """By the name of their configuration; those of one configuration stay as they are listed."""
    return sorted(webhooks, key=lambda webhook: webhook.configuration)


__all__ = [
    "CompiledCondition",
    "CompiledWebhook",
    "WebhookRule",
    "compile_configuration",
    "compile_rule",
    "compile_selector",
    "conditions_hold",
    "in_order",
    "is_exempt",
    "namespace_selected",
    "object_selected",
]
