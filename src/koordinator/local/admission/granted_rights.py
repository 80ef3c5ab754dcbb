"""Nobody gives away rights that they do not have: what is checked when roles and bindings are written.

Source: Kubernetes, "Privilege escalation prevention and bootstrapping".
"""

from collections.abc import Iterable, Sequence
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import not_found
from koordinator.local.admission.webhooks import AdmissionPlugin
from koordinator.local.authorization import rules
from koordinator.local.authorization.rbac import EVERYTHING, GROUP, MASTERS, Rbac
from koordinator.local.authorization.rules import AccessRequest, PolicyRule
from koordinator.local.interfaces import AdmissionAttributes

Json = dict[str, Any]

_ROLES = frozenset({"roles", "clusterroles"})
_WITH_RIGHTS = _ROLES | {"rolebindings", "clusterrolebindings"}
_GRANTING = frozenset({"rules", "aggregationRule", "roleRef", "subjects"})


class GrantedRights(AdmissionPlugin):
    """The plugin (`admission.chain.Plugin`)."""

    def __init__(self, authorizer: Rbac) -> None:
        self._authorizer = authorizer

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """See `Plugin`."""
        return resource.group == GROUP and operation != "DELETE" and resource.plural in _WITH_RIGHTS

    def validate(self, asked: AdmissionAttributes, obj: Json | None) -> None:
        """Raises: Forbidden; NotFound when the role to be bound is not there."""
        if obj is None or MASTERS in asked.options.groups or _is_unchanged(obj, asked.old):
            return
        if asked.resource.plural in _ROLES:
            self._check_role(asked, obj)
        else:
            self._check_binding(asked, obj)

    def _check_role(self, asked: AdmissionAttributes, obj: Json) -> None:
        may = AccessRequest(
            verb="escalate",
            group=GROUP,
            resource=asked.resource.plural,
            namespace=asked.namespace,
            name=asked.name if asked.operation == "UPDATE" else "",
        )
        if self._allows(asked.options, may):
            return
        self._check_held(asked, obj, [rules.read(rule) for rule in obj.get("rules") or ()])
        if any(_aggregates(one) for one in (obj, asked.old or {})):
            held, _ = self._held(asked)
            if rules.missing(held, EVERYTHING):
                raise asked.forbidden("must have cluster-admin privileges to use the aggregationRule", obj)

    def _check_binding(self, asked: AdmissionAttributes, obj: Json) -> None:
        ref = obj.get("roleRef") or {}
        kind, role = ref.get("kind", ""), ref.get("name", "")
        may = AccessRequest(
            verb="bind", group=GROUP, resource=f"{kind.lower()}s", namespace=asked.namespace, name=role
        )
        if self._allows(asked.options, may):
            return
        given = self._authorizer.rules_of_role(kind, role, asked.namespace)
        if given is None:
            resource = asked.resource
            raise not_found(resource.qualified, role, group=resource.group, kind=resource.plural)
        self._check_held(asked, obj, given)

    def _allows(self, options: WriteOptions, request: AccessRequest) -> bool:
        return self._authorizer.decide(options.user, options.groups, request).allowed

    def _held(self, asked: AdmissionAttributes) -> tuple[Sequence[PolicyRule], Sequence[str]]:
        return self._authorizer.rules_of(asked.options.user, asked.options.groups, asked.namespace)

    def _check_held(self, asked: AdmissionAttributes, obj: Json, given: Iterable[PolicyRule]) -> None:
        held, problems = self._held(asked)
        lacking = rules.missing(held, given)
        if not lacking:
            return
        options = asked.options
        why = (
            f"user {rules.quoted([options.user])[1:-1]} (groups={rules.quoted(options.groups)}) is attempting to "
            "grant RBAC permissions not currently held:\n" + "\n".join(lacking)
        )
        if problems:
            why += f"; resolution errors: [{', '.join(problems)}]"
        raise asked.forbidden(why, obj)


def _is_unchanged(obj: Json, old: Json | None) -> bool:
    """Return whether an update leaves alone what gives rights (the last finalizer goes, a label comes)."""
    return old is not None and all(obj.get(field) == old.get(field) for field in _GRANTING)


def _aggregates(role: Json) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))
