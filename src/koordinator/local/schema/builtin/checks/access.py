"""Checks of roles and of who is bound to them.

Source: pkg/apis/rbac/validation of kubernetes/kubernetes.
"""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import check_kept, check_label_selector

Json = dict[str, Any]

_GROUP = "rbac.authorization.k8s.io"


def check_role(role: Json) -> list[StatusCause]:
    """A Role."""
    return _check_rules(role, is_namespaced=True)


def check_cluster_role(role: Json) -> list[StatusCause]:
    """A ClusterRole."""
    causes = _check_rules(role, is_namespaced=False)
    aggregation = role.get("aggregationRule")
    if aggregation is None:
        return causes
    field = "aggregationRule.clusterRoleSelectors"
    selectors = aggregation.get("clusterRoleSelectors") or []
    if not selectors:
        why = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        causes.append(errors.required(field, why))
    for index, selector in enumerate(selectors):
        causes += check_label_selector(selector, f"{field}[{index}]")
    return causes


def _check_rules(role: Json, *, is_namespaced: bool) -> list[StatusCause]:
    rules = enumerate(role.get("rules") or ())
    return [cause for index, rule in rules for cause in _check_rule(rule, f"rules[{index}]", is_namespaced)]


def _check_rule(rule: Json, field: str, is_namespaced: bool) -> list[StatusCause]:
    causes: list[StatusCause] = []
    if not rule.get("verbs"):
        causes.append(errors.required(f"{field}.verbs", "verbs must contain at least one value"))
    urls = rule.get("nonResourceURLs") or []
    if urls:
        where = f"{field}.nonResourceURLs"
        if is_namespaced:
            causes.append(errors.invalid(where, urls, "namespaced rules cannot apply to non-resource URLs"))
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            causes.append(errors.invalid(where, urls, why))
        return causes
    for part, what in (("apiGroups", "api group"), ("resources", "resource")):
        if not rule.get(part):
            why = f"resource rules must supply at least one {what}"
            causes.append(errors.required(f"{field}.{part}", why))
    return causes


def check_role_binding(binding: Json) -> list[StatusCause]:
    """A RoleBinding."""
    return _check_binding(binding, ("Role", "ClusterRole"), is_namespaced=True)


def check_cluster_role_binding(binding: Json) -> list[StatusCause]:
    """A ClusterRoleBinding."""
    return _check_binding(binding, ("ClusterRole",), is_namespaced=False)


def _check_binding(binding: Json, kinds: tuple[str, ...], *, is_namespaced: bool) -> list[StatusCause]:
    role = binding.get("roleRef") or {}
    causes: list[StatusCause] = []
    if role.get("apiGroup", "") != _GROUP:
        causes.append(errors.not_supported("roleRef.apiGroup", role.get("apiGroup", ""), (_GROUP,)))
    if role.get("kind", "") not in kinds:
        causes.append(errors.not_supported("roleRef.kind", role.get("kind", ""), kinds, is_sorted=True))
    name = role.get("name", "")
    reason = names.path_segment(name) if name else ""
    if not name:
        causes.append(errors.required("roleRef.name"))
    elif reason:
        causes.append(errors.invalid("roleRef.name", name, reason))
    for index, subject in enumerate(binding.get("subjects") or ()):
        causes += _check_subject(subject, f"subjects[{index}]", is_namespaced)
    return causes


def _check_subject(subject: Json, field: str, is_namespaced: bool) -> list[StatusCause]:
    kind, name, group = (subject.get(part) or "" for part in ("kind", "name", "apiGroup"))
    causes: list[StatusCause] = [] if name else [errors.required(f"{field}.name")]
    if kind == "ServiceAccount":
        reason = names.subdomain_1123(name) if name else ""
        if reason:
            causes.append(errors.invalid(f"{field}.name", name, reason))
        if group:
            causes.append(errors.not_supported(f"{field}.apiGroup", group, ("",)))
        # A RoleBinding may do without by the rules; its API's defaults fill nothing in.
        if not is_namespaced and not subject.get("namespace"):
            causes.append(errors.required(f"{field}.namespace"))
    elif kind in ("User", "Group"):
        if group != _GROUP:
            causes.append(errors.not_supported(f"{field}.apiGroup", group, (_GROUP,)))
    else:
        kinds = ("ServiceAccount", "User", "Group")
        causes.append(errors.not_supported(f"{field}.kind", kind, kinds, is_sorted=True))
    return causes


def check_binding_update(binding: Json, old: Json) -> list[StatusCause]:
    """A binding keeps its role."""
    new, before = binding.get("roleRef"), old.get("roleRef")
    return check_kept(new, before, "roleRef", "cannot change roleRef")
