"""ValidatingAdmissionPolicies: expressions that judge writes, bound to where they count.

Policies and bindings are compiled when they change. Source: Kubernetes, "Validating Admission Policy"; texts are
those of the API server.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator import cel
from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.errors import StatusCause, StatusDetails
from koordinator.local.admission import rules
from koordinator.local.admission.webhooks import AdmissionPlugin
from koordinator.local.interfaces import AdmissionAttributes
from koordinator.local.schema.builtin.checks.policies import VARIABLES
from koordinator.local.store import ObjectStore

log = logging.getLogger(__name__)

Json = dict[str, Any]

GROUP = "admissionregistration.k8s.io"
BUDGET = 50_000
"""Rounds of loops that the expressions of one policy may take for one write."""
_EXEMPT = frozenset({"validatingadmissionpolicies", "validatingadmissionpolicybindings"})
_ERRORS: dict[str, type[errors.ApiError]] = {
    "Forbidden": errors.Forbidden,
    "Invalid": errors.Invalid,
    "RequestEntityTooLarge": errors.RequestTooLarge,
}

Versions = Callable[[Resource], Sequence[Resource]]
Resources = Callable[[], Iterable[Resource]]


class _Match(msgspec.Struct, frozen=True):
    """`matchConstraints` or `matchResources`, compiled; a binding without rules adds none."""

    chosen: tuple[tuple[rules.WebhookRule, frozenset[str]], ...]
    excluded: tuple[tuple[rules.WebhookRule, frozenset[str]], ...]
    by_equivalent: bool
    namespace_selects: rules.Predicate | None
    object_selects: rules.Predicate | None

    def names(self, resource: Resource, operation: str, subresource: str, versions: Versions) -> bool:
        """Return whether the rules name such a write, whatever object it is about."""
        if not self.chosen:
            return True
        candidates = [resource, *(versions(resource) if self.by_equivalent else ())]
        return any(
            rule.matches(each, operation, subresource) for rule, _ in self.chosen for each in candidates
        )

    def wants(
        self, asked: AdmissionAttributes, obj: Json | None, labels: Mapping[str, str], versions: Versions
    ) -> bool:
        """Return whether this very write is meant."""
        candidates = [asked.resource, *(versions(asked.resource) if self.by_equivalent else ())]
        name = asked.name or ((obj or {}).get("metadata") or {}).get("name", "")

        def holds(among: Iterable[tuple[rules.WebhookRule, frozenset[str]]]) -> bool:
            return any(
                (not names or name in names) and rule.matches(each, asked.operation, asked.subresource)
                for rule, names in among
                for each in candidates
            )

        if (self.chosen and not holds(self.chosen)) or holds(self.excluded):
            return False
        return rules.object_selected(self, obj, asked.old) and rules.namespace_selected(
            self, asked.resource, asked.namespace, obj, asked.old, lambda _: labels
        )


class _Expression(msgspec.Struct, frozen=True):
    text: str
    program: cel.Program


class _Validation(msgspec.Struct, frozen=True):
    expression: _Expression
    message: str
    message_program: cel.Program | None
    reason: str


class _Policy(msgspec.Struct, frozen=True):
    name: str
    match: _Match
    conditions: tuple[_Expression, ...]
    variables: tuple[tuple[str, _Expression], ...]
    validations: tuple[_Validation, ...]
    annotations: tuple[_Expression, ...]
    fails_closed: bool
    param_kind: Json | None


class _Binding(msgspec.Struct, frozen=True):
    name: str
    policy: _Policy
    match: _Match
    actions: frozenset[str]
    param_ref: Json | None


class _Failure(msgspec.Struct, frozen=True):
    message: str
    reason: str = "Invalid"
    always_denies: bool = False
    """Whether the actions of the binding do not matter: the policy could not be asked."""


class ValidatingPolicies(AdmissionPlugin):
    """The plugin. `versions` gives the other versions of a resource, `resources` all
    that are served."""

    def __init__(self, store: ObjectStore, versions: Versions, resources: Resources) -> None:
        self._store = store
        self._policies = store.table(f"validatingadmissionpolicies.{GROUP}")
        self._bindings = store.table(f"validatingadmissionpolicybindings.{GROUP}")
        self._namespaces = store.table("namespaces")
        self._versions = versions
        self._resources = resources
        self._position = (-1, -1)
        self._compiled: list[_Binding] = []

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """See `AdmissionPlugin`."""
        if not len(self._bindings) or not len(self._policies):
            return False
        if resource.group == GROUP and resource.plural in _EXEMPT:
            return False
        return any(
            each.policy.match.names(resource, operation, subresource, self._versions)
            for each in self._current()
        )

    def validate(self, asked: AdmissionAttributes, obj: Json | None) -> None:
        """Raises: ApiError of the first binding that denies; the others' warnings are given before."""
        denied: errors.ApiError | None = None
        namespace = self._namespaces.get("", asked.namespace) if asked.namespace else None
        labels = (namespace.obj["metadata"].get("labels") or {}) if namespace is not None else {}
        scope: Json = {}
        for binding in self._current():
            is_meant = all(
                match.wants(asked, obj, labels, self._versions)
                for match in (binding.policy.match, binding.match)
            )
            if not is_meant:
                continue
            scope = scope or _scope(asked, obj, None if namespace is None else namespace.obj)
            for failure in self._judged(binding, asked, scope):
                denied = denied or _carried_out(binding, failure, asked, obj)
        if denied is not None:
            raise denied

    def _current(self) -> list[_Binding]:
        """Return all bindings of policies that are there, by name."""
        position = (self._policies.position, self._bindings.position)
        if position != self._position:
            policies = {
                record.obj["metadata"]["name"]: _policy(record.obj) for record in self._policies.records()
            }
            self._compiled = [
                _binding(record.obj, policies[name])
                for record in self._bindings.records()
                if (name := (record.obj.get("spec") or {}).get("policyName", "")) in policies
            ]
            self._position = position
        return self._compiled

    def _judged(self, binding: _Binding, asked: AdmissionAttributes, scope: Json) -> list[_Failure]:
        policy = binding.policy
        try:
            found: list[_Failure] = []
            for params in self._params(binding, asked):
                found += _evaluated(policy, {**scope, "params": params})
            return found
        except _Unconfigured as error:
            if policy.fails_closed:
                return [_Failure(str(error), always_denies=True)]
            log.warning("policy ignored", extra={"policy": policy.name, "reason": str(error)})
            return []

    def _params(self, binding: _Binding, asked: AdmissionAttributes) -> list[Json | None]:
        """Return the objects that the binding's parameters are taken from, one judgement each. Raises:
        _Unconfigured."""
        kind, ref = binding.policy.param_kind, binding.param_ref
        if kind is None or ref is None:
            return [None]
        group, _, version = kind.get("apiVersion", "").rpartition("/")
        resource = next(
            (
                each
                for each in self._resources()
                if (each.group, each.version, each.kind) == (group, version, kind.get("kind", ""))
            ),
            None,
        )
        if resource is None:
            raise _Unconfigured(
                "failed to configure policy: failed to find resource referenced by paramKind: "
                f"'{group}/{version}, Kind={kind.get('kind', '')}'"
            )
        namespace = (ref.get("namespace") or asked.namespace) if resource.namespaced else ""
        found = self._referenced(resource, namespace, ref)
        if not found and ref.get("parameterNotFoundAction") == "Deny":
            raise _Unconfigured(
                "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
            )
        return [*found]

    def _referenced(self, resource: Resource, namespace: str, ref: Json) -> list[Json]:
        table = self._store.table(resource.qualified)
        if ref.get("name"):
            record = table.get(namespace, ref["name"])
            return [] if record is None else [record.obj]
        selects = label_selector.compile_selector(msgspec.convert(ref.get("selector") or {}, LabelSelector))
        records = sorted(table.in_namespace(namespace), key=lambda one: str(one.obj["metadata"]["name"]))
        return [one.obj for one in records if selects(one.obj["metadata"].get("labels") or {})]


class _Unconfigured(Exception):
    """The policy cannot be asked; the text says why."""


class _Variables(dict[str, Any]):
    """Variables of a policy, worked out when an expression first asks for one."""

    def __init__(self, policy: _Policy, scope: Json, budget: cel.Budget) -> None:
        super().__init__()
        self._expressions = dict(policy.variables)
        self._scope, self._budget = {**scope, "variables": self}, budget

    def __contains__(self, name: object) -> bool:
        return name in self._expressions

    def __missing__(self, name: str) -> Any:
        try:
            value = self[name] = self._expressions[name].program(self._scope, self._budget)
        except cel.OutOfBudget:
            raise
        except cel.EvaluationError as error:
            raise cel.EvaluationError(f'composited variable "{name}" fails to evaluate: {error}') from error
        return value


def _evaluated(policy: _Policy, scope: Json) -> list[_Failure]:
    """Return what a policy finds wrong with a write."""
    budget = cel.Budget(BUDGET)
    scope = {**scope, "variables": _Variables(policy, scope, budget)}
    failures: list[_Failure] = []
    for condition in policy.conditions:
        try:
            # Match conditions know nothing of the namespace, though they may speak of it.
            if condition.program({**scope, "namespaceObject": None}, budget) is not True:
                return []
        except cel.EvaluationError as error:
            failures.append(_Failure(_error_text(condition, error)))
    if failures:
        return failures[:1] if policy.fails_closed else []
    for validation in policy.validations:
        try:
            if validation.expression.program(scope, budget) is True:
                continue
            failures.append(_Failure(_message(validation, scope, budget), validation.reason))
        except cel.EvaluationError as error:
            if policy.fails_closed:
                failures.append(_Failure(_error_text(validation.expression, error)))
    return failures + _unsayable(policy, scope, budget)


def _unsayable(policy: _Policy, scope: Json, budget: cel.Budget) -> list[_Failure]:
    """Return what is wrong with annotations for the audit log, which counts as a failure of the policy."""
    failures: list[_Failure] = []
    for annotation in policy.annotations if policy.fails_closed else ():
        try:
            annotation.program(scope, budget)
        except cel.EvaluationError as error:
            failures.append(_Failure(_error_text(annotation, error), always_denies=True))
    return failures


def _error_text(expression: _Expression, error: cel.EvaluationError) -> str:
    return f"expression '{expression.text}' resulted in error: {error}"


def _message(validation: _Validation, scope: Json, budget: cel.Budget) -> str:
    if validation.message_program is not None:
        try:
            said = validation.message_program(scope, budget)
            if isinstance(said, str) and said.strip() and "\n" not in said:
                return said.strip()
        except cel.EvaluationError as error:
            log.info("message expression failed", extra={"reason": str(error)})
    return validation.message


def _carried_out(
    binding: _Binding, failure: _Failure, asked: AdmissionAttributes, obj: Json | None
) -> errors.ApiError | None:
    """Return the refusal if the binding denies; it warns or is noted otherwise."""
    where = f"ValidatingAdmissionPolicy '{binding.policy.name}' with binding '{binding.name}'"
    actions = {"Deny"} if failure.always_denies else binding.actions
    if "Warn" in actions and asked.options.warn is not None:
        asked.options.warn(f"Validation failed for {where}: {failure.message}")
    if "Audit" in actions:
        log.info("policy violated", extra={"policy": binding.policy.name, "reason": failure.message})
    if "Deny" not in actions:
        return None
    message = f"{where} denied request: {failure.message}"
    refusal = asked.forbidden(message, obj)
    named = refusal.details or StatusDetails()
    details = msgspec.structs.replace(named, causes=[StatusCause(message=message)])
    return _ERRORS[failure.reason](refusal.message, details=details)


def _scope(asked: AdmissionAttributes, obj: Json | None, namespace: Json | None) -> Json:
    request = rules.request("", asked, asked.resource)
    return {"object": obj, "oldObject": asked.old, "request": request, "namespaceObject": namespace}


# Compiling


def _policy(obj: Json) -> _Policy:
    spec = obj.get("spec") or {}
    return _Policy(
        name=obj["metadata"]["name"],
        match=_match(spec.get("matchConstraints") or {}),
        conditions=tuple(_expression(each["expression"]) for each in spec.get("matchConditions") or ()),
        variables=tuple(
            (each["name"], _expression(each["expression"])) for each in spec.get("variables") or ()
        ),
        validations=tuple(_validation(each) for each in spec.get("validations") or ()),
        annotations=tuple(
            _expression(each["valueExpression"]) for each in spec.get("auditAnnotations") or ()
        ),
        fails_closed=spec.get("failurePolicy", "Fail") == "Fail",
        param_kind=spec.get("paramKind"),
    )


def _binding(obj: Json, policy: _Policy) -> _Binding:
    spec = obj["spec"]
    return _Binding(
        name=obj["metadata"]["name"],
        policy=policy,
        match=_match(spec.get("matchResources") or {}),
        actions=frozenset(spec.get("validationActions") or ()),
        param_ref=spec.get("paramRef"),
    )


def _expression(text: str) -> _Expression:
    return _Expression(text, cel.compile_expression(text, VARIABLES))


def _validation(raw: Json) -> _Validation:
    text, message = raw["expression"], raw.get("messageExpression")
    return _Validation(
        expression=_expression(text),
        message=(raw.get("message") or "").strip() or f"failed expression: {text.strip()}",
        message_program=cel.compile_expression(message, VARIABLES) if message else None,
        reason=raw.get("reason") or "Invalid",
    )


def _match(raw: Json) -> _Match:
    return _Match(
        chosen=tuple(_named_rule(rule) for rule in raw.get("resourceRules") or ()),
        excluded=tuple(_named_rule(rule) for rule in raw.get("excludeResourceRules") or ()),
        by_equivalent=raw.get("matchPolicy", "Equivalent") == "Equivalent",
        namespace_selects=rules.compile_selector(raw.get("namespaceSelector")),
        object_selects=rules.compile_selector(raw.get("objectSelector")),
    )


def _named_rule(raw: Json) -> tuple[rules.WebhookRule, frozenset[str]]:
    return rules.compile_rule(raw), frozenset(raw.get("resourceNames") or ())
