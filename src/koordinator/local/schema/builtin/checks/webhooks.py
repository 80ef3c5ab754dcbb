"""Checks of webhook configurations."""

from typing import Any
from urllib.parse import urlsplit

from koordinator import cel
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import check_label_selector, check_unique

Json = dict[str, Any]

INPROC_SCHEME = "inproc"
"""URLs of webhooks that run in this process (`local.admission`); the only scheme besides https."""

CONDITIONS_MAX = 64
CONDITION_VARIABLES = ("object", "oldObject", "request")
"""What match conditions may speak of here: there is no `authorizer`."""

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_REVIEW_VERSIONS = ("v1", "v1beta1")


def check_configuration(obj: Json) -> list[StatusCause]:
    """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""
    causes: list[StatusCause] = []
    webhooks = obj.get("webhooks") or []
    for index, webhook in enumerate(webhooks):
        causes += _check_webhook(webhook, f"webhooks[{index}]")
    return causes + check_unique(
        (f"webhooks[{index}].name", webhook["name"])
        for index, webhook in enumerate(webhooks)
        if webhook.get("name")
    )


def _check_webhook(webhook: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    name = webhook.get("name", "")
    reason = names.subdomain_1123(name) if name else ""
    if not reason and name and name.count(".") < 2:
        reason = "should be a domain with at least three segments separated by dots"
    if reason:
        causes.append(errors.invalid(f"{field}.name", name, reason))
    versions = webhook.get("admissionReviewVersions") or []
    if versions and not set(versions) & set(_REVIEW_VERSIONS):
        detail = f"must include at least one of {', '.join(_REVIEW_VERSIONS)}"
        causes.append(errors.invalid(f"{field}.admissionReviewVersions", versions, detail))
    for index, rule in enumerate(webhook.get("rules") or ()):
        causes += check_rule(rule, f"{field}.rules[{index}]")
    for part in ("namespaceSelector", "objectSelector"):
        if webhook.get(part):
            causes += check_label_selector(webhook[part], f"{field}.{part}")
    causes += _check_conditions(webhook.get("matchConditions") or [], f"{field}.matchConditions")
    return causes + _check_client(webhook.get("clientConfig") or {}, f"{field}.clientConfig")


def _check_conditions(conditions: list[Json], field: str) -> list[StatusCause]:
    if len(conditions) > CONDITIONS_MAX:
        return [errors.too_many(field, len(conditions), CONDITIONS_MAX)]
    causes: list[StatusCause] = []
    for index, condition in enumerate(conditions):
        at = f"{field}[{index}]"
        name, expression = condition.get("name") or "", condition.get("expression") or ""
        if not name:
            causes.append(errors.required(f"{at}.name"))
        if not expression.strip():
            causes.append(errors.required(f"{at}.expression"))
            continue
        try:
            cel.compile_expression(expression, CONDITION_VARIABLES)
        except cel.CompileError as error:
            causes.append(errors.invalid(f"{at}.expression", expression, f"compilation failed: {error}"))
    named = (
        (f"{field}[{index}].name", each["name"]) for index, each in enumerate(conditions) if each.get("name")
    )
    return causes + check_unique(named)


def check_rule(rule: Json, field: str) -> list[StatusCause]:
    """A rule with operations and resources, of a webhook or a policy."""
    causes = [
        errors.required(f"{field}.{part}")
        for part in ("operations", "apiGroups", "apiVersions", "resources")
        if not rule.get(part)
    ]
    for index, operation in enumerate(rule.get("operations") or ()):
        if operation not in _OPERATIONS:
            causes.append(errors.not_supported(f"{field}.operations[{index}]", operation, _OPERATIONS))
    for part in ("operations", "apiGroups", "apiVersions"):
        values = rule.get(part) or []
        if "*" in values and len(values) > 1:
            detail = "if '*' is present, must not specify other " + {"operations": "operations"}.get(
                part, part
            )
            causes.append(errors.invalid(f"{field}.{part}", values, detail))
    if rule.get("scope", "*") not in _SCOPES:
        causes.append(errors.not_supported(f"{field}.scope", rule["scope"], _SCOPES))
    return causes


def _check_client(client: Json, field: str) -> list[StatusCause]:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        return [errors.required(field, "exactly one of url or service is required")]
    if service is not None:
        return []
    parts = urlsplit(url or "")
    if parts.scheme == INPROC_SCHEME and parts.netloc:
        return []
    if parts.scheme != "https":
        detail = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
        return [errors.invalid(f"{field}.url", url, detail)]
    if not parts.netloc:
        return [
            errors.invalid(f"{field}.url", url, "host must be specified; desired format: https://host[/path]")
        ]
    if "@" in parts.netloc:
        return [errors.invalid(f"{field}.url", url, "user information is not permitted in the URL")]
    if parts.fragment or parts.query:
        what = "fragments" if parts.fragment else "query parameters"
        return [errors.invalid(f"{field}.url", url, f"{what} are not permitted in the URL")]
    return []


__all__ = ["CONDITIONS_MAX", "INPROC_SCHEME", "check_configuration", "check_rule"]
