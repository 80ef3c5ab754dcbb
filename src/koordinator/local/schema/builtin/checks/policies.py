"""Checks of webhook configurations, and of ValidatingAdmissionPolicies and their bindings: expressions are type-checked
when they are written."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from koordinator.cel import checker
from koordinator.cel.overloads import DYN, CELType
from koordinator.cel.values import CompileError
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks import admission_types
from koordinator.local.schema.builtin.checks.common import check_unique

Json = dict[str, Any]

INPROC_SCHEME = "inproc"
"""URLs of webhooks that run in this process (`local.admission`); the only scheme besides https."""

CONDITIONS_MAX = 64
CONDITION_VARIABLES = ("object", "oldObject", "request")
"""Variables of match conditions here: there is no `authorizer`."""

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_REVIEW_VERSIONS = ("v1", "v1beta1")


def check_configuration(obj: Json) -> list[StatusCause]:
    """Check a MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""
    return check_unique(
        (f"webhooks[{index}].name", webhook["name"])
        for index, webhook in enumerate(obj.get("webhooks") or ())
        if webhook.get("name")
    )


def check_webhook(webhook: Json, field: str) -> list[StatusCause]:
    """Check a MutatingWebhook or ValidatingWebhook."""
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
    causes += _check_conditions(
        webhook.get("matchConditions") or [],
        f"{field}.matchConditions",
        {name: admission_types.OF[name] for name in CONDITION_VARIABLES},
    )
    return causes + _check_client(webhook.get("clientConfig") or {}, f"{field}.clientConfig")


def _check_conditions(conditions: list[Json], field: str, known: Mapping[str, CELType]) -> list[StatusCause]:
    if len(conditions) > CONDITIONS_MAX:
        return [errors.too_many(field, len(conditions), CONDITIONS_MAX)]
    causes: list[StatusCause] = []
    for index, condition in enumerate(conditions):
        at = f"{field}[{index}]"
        name, expression = condition.get("name") or "", condition.get("expression") or ""
        causes += names.check_required(names.qualified_name, name, f"{at}.name")
        if not expression.strip():
            causes.append(errors.required(f"{at}.expression"))
            continue
        causes += _check(expression, known, f"{at}.expression", "bool")
    named = (
        (f"{field}[{index}].name", each["name"]) for index, each in enumerate(conditions) if each.get("name")
    )
    return causes + check_unique(named)


def check_rule(rule: Json, field: str) -> list[StatusCause]:
    """Check a rule with operations and resources, of a webhook or a policy."""
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
            detail = f"if '*' is present, must not specify other {part}"
            causes.append(errors.invalid(f"{field}.{part}", values, detail))
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


OBJECTS = ("object", "oldObject", "request")
VARIABLES = (*OBJECTS, "params", "namespaceObject", "variables")
"""Variables of expressions of policies here: there is no `authorizer`."""
_ACTIONS = ("Audit", "Deny", "Warn")
_NO_AUTHORIZER = "authorizer is not supported by this API server"


def check_policy(obj: Json) -> list[StatusCause]:
    """Check a ValidatingAdmissionPolicy."""
    spec = obj.get("spec") or {}
    causes: list[StatusCause] = []
    constraints = spec.get("matchConstraints")
    if not constraints:
        causes.append(errors.required("spec.matchConstraints"))
    elif not constraints.get("resourceRules"):
        causes.append(errors.required("spec.matchConstraints.resourceRules"))
    validations, annotations = spec.get("validations") or [], spec.get("auditAnnotations") or []
    if not validations and not annotations:
        why = "validations or auditAnnotations must contain at least one item"
        causes += [errors.required(f"spec.{part}", why) for part in ("validations", "auditAnnotations")]
    known = {
        name: kind for name, kind in admission_types.OF.items() if spec.get("paramKind") or name != "params"
    }
    causes += _check_conditions(spec.get("matchConditions") or [], "spec.matchConditions", known)
    if spec.get("variables"):
        known["variables"], more = _check_variables(spec["variables"], known)
        causes += more
    for index, validation in enumerate(validations):
        causes += _check_validation(validation, known, f"spec.validations[{index}]")
    for index, annotation in enumerate(annotations):
        field = f"spec.auditAnnotations[{index}]"
        if not annotation.get("key"):
            causes.append(errors.required(f"{field}.key"))
        causes += _check(
            annotation.get("valueExpression"), known, f"{field}.valueExpression", "string", "null"
        )
    return causes


def _check_variables(variables: list[Json], known: dict[str, CELType]) -> tuple[CELType, list[StatusCause]]:
    """Return the type of `variables`; each expression may speak of those before it."""
    causes: list[StatusCause] = []
    fields: dict[str, CELType] = {}
    for index, variable in enumerate(variables):
        field = f"spec.variables[{index}]"
        scope = {**known, "variables": CELType("variables", (), dict(fields))}
        name = variable.get("name", "")
        if name and not name.isidentifier():
            causes.append(errors.invalid(f"{field}.name", name, "must be a valid CEL identifier"))
        found = _check(variable.get("expression"), scope, f"{field}.expression")
        causes += found
        fields[name] = DYN if found else checker.type_of(variable["expression"], scope)
    return CELType("variables", (), fields), causes


def _check_validation(validation: Json, known: dict[str, CELType], field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    text = (validation.get("expression") or "").strip()
    message, expression = validation.get("message") or "", validation.get("messageExpression") or ""
    if not text:
        causes.append(errors.required(f"{field}.expression", "expression is not specified"))
    else:
        causes += _check(validation["expression"], known, f"{field}.expression", "bool")
    if expression and not expression.strip():
        causes.append(errors.invalid(f"{field}.messageExpression", expression, _NOT_EMPTY))
    elif expression:
        causes += _check(expression, known, f"{field}.messageExpression", "string")
    if message and not message.strip():
        causes.append(errors.invalid(f"{field}.message", message, _NOT_EMPTY))
    elif "\n" in message.strip():
        causes.append(errors.invalid(f"{field}.message", message, "must not contain line breaks"))
    elif "\n" in text and not message:
        detail = "message must be specified if expression contains line breaks"
        causes.append(errors.required(f"{field}.message", detail))
    return causes


_NOT_EMPTY = "must be non-empty if specified"


def _check(text: str | None, known: Mapping[str, CELType], field: str, *wanted: str) -> list[StatusCause]:
    """Return why an expression has no value of a type that is `wanted` (any, without)."""
    if not text or not text.strip():
        return [errors.required(field, "expression is not specified")]
    try:
        found = checker.type_of(text, known)
    except CompileError as error:
        why = (
            _NO_AUTHORIZER
            if "'authorizer'" in error.reason
            else f"compilation failed: {checker.marked(error)}"
        )
        return [errors.invalid(field, text, why)]
    if wanted and found.name not in wanted:
        told = [_TOLD.get(each, each) for each in wanted]
        which = told[0] if len(told) == 1 else f"one of [{' '.join(told)}]"
        shown = _TOLD.get(str(found), str(found))
        return [errors.invalid(field, text, f"must evaluate to {which} but got {shown}")]
    return []


_TOLD = {"null": "null_type"}


def check_binding(obj: Json) -> list[StatusCause]:
    """Check a ValidatingAdmissionPolicyBinding."""
    spec = obj.get("spec") or {}
    causes: list[StatusCause] = []
    actions = spec.get("validationActions") or []
    if not actions:
        causes.append(errors.required("spec.validationActions", "at least one validation action is required"))
    for index, action in enumerate(actions):
        if action not in _ACTIONS:
            causes.append(errors.not_supported(f"spec.validationActions[{index}]", action, _ACTIONS))
    if {"Deny", "Warn"} <= set(actions):
        why = (
            "must not contain both Deny and Warn (repeating the same validation failure information in the API "
            "response and headers serves no purpose)"
        )
        causes.append(errors.invalid("spec.validationActions", actions, why))
    return causes


def check_param(param: Json, field: str) -> list[StatusCause]:
    """Check a ParamRef."""
    causes: list[StatusCause] = []
    if not param.get("name") and param.get("selector") is None:
        causes.append(errors.required(field, "one of name or selector must be specified"))
    if param.get("name") and param.get("selector") is not None:
        causes.append(errors.forbidden(f"{field}.name", "name and selector are mutually exclusive"))
    if not param.get("parameterNotFoundAction"):
        causes.append(errors.required(f"{field}.parameterNotFoundAction"))
    return causes
