"""Roles allow what components do, and no more."""

import pytest

from koordinator.install import rbac
from tests.install.roles import Roles, calls

PACKAGES = {rbac.MANAGER: ("manager",), rbac.SCHEDULER: ("scheduler",), rbac.KOORDLET: ("koordlet",)}
SHARED = ("cluster/events.py", "cluster/leader.py")


@pytest.mark.parametrize("component", list(PACKAGES))
def test_every_call_in_the_code_is_allowed(component: str) -> None:
    found = list(calls(*PACKAGES[component]))
    assert len(found) > 5
    missing = []
    for place, verb, view, sub in found:
        plural = f"{view.resource.plural}/{sub}" if sub else view.resource.plural
        # Which namespaces and names are asked for is seen only when the code runs.
        if not any(
            view.resource.group == rule.group and plural in rule.resources and verb in rule.verbs
            for rule in rbac.RULES[component]
        ):
            missing.append(f"{place}: {verb} {view.resource.qualified} {sub}")

    assert missing == []


@pytest.mark.parametrize("component", list(rbac.RULES))
def test_no_role_has_wildcards_or_reads_secrets_of_others(component: str) -> None:
    for rule in rbac.RULES[component]:
        assert "*" not in (rule.group, *rule.resources, *rule.verbs)
        assert rule.why
        if "secrets" in rule.resources:
            assert rule.in_namespace and (rule.names or rule.verbs == ("create",))
        assert not {"escalate", "bind", "impersonate"} & set(rule.verbs)
        assert not {"pods/exec", "serviceaccounts/token"} & set(rule.resources)


def test_the_roles_of_a_test_refuse_as_an_api_server_does() -> None:
    roles = Roles(rbac.MANAGER)

    roles.check("get", "", "secrets", "koordinator-system", "koordinator-webhook-certs")
    for refused in (
        ("get", "", "secrets", "koordinator-system", "other"),
        ("get", "", "secrets", "default", "koordinator-webhook-certs"),
        ("list", "", "secrets", "koordinator-system", ""),
        ("delete", "", "pods", "default", "p"),
    ):
        with pytest.raises(Exception, match="no rule allows"):
            roles.check(*refused)
    assert len(roles.refused) == 4 and len(roles.used) == 1
