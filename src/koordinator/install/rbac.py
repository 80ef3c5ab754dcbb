"""Turn the rules of `rbac.yaml`, which say what each component may do, into roles.

`tests/install/test_rbac.py` runs the components and holds these rules against every request they make.
"""

import functools
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import msgspec

from koordinator.api import yaml_text

Json = dict[str, Any]

API = "rbac.authorization.k8s.io"
MANAGER, SCHEDULER, KOORDLET = "koord-manager", "koord-scheduler", "koordlet"
DESCHEDULER = "koord-descheduler"
YARN_COPILOT, YARN_OPERATOR = "koord-yarn-copilot", "koord-yarn-operator"


class PermissionRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verbs on resources of one group, and what the component needs them for, as `rbac.yaml` says it."""

    group: str = ""
    resources: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()
    in_namespace: bool = False


@functools.cache
def rules() -> Mapping[str, tuple[PermissionRule, ...]]:
    """Return the rules of each component that has some."""
    text = (resources.files(__package__) / "rbac.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml_text.load(text), dict[str, tuple[PermissionRule, ...]])


def cluster_rules(component: str) -> list[Json]:
    """`rules` of the component's ClusterRole."""
    return [_wire(rule) for rule in rules()[component] if not rule.in_namespace]


def namespace_rules(component: str) -> list[Json]:
    """`rules` of the component's Role in the namespace of the installation; may be empty."""
    return [_wire(rule) for rule in rules()[component] if rule.in_namespace]


def _wire(rule: PermissionRule) -> Json:
    if rule.urls:
        return {"nonResourceURLs": list(rule.urls), "verbs": list(rule.verbs)}
    body: Json = {"apiGroups": [rule.group], "resources": list(rule.resources)}
    if rule.names:
        body["resourceNames"] = list(rule.names)
    return body | {"verbs": list(rule.verbs)}


def objects(component: str, namespace: str) -> Iterator[Json]:
    """Yield the service account with its roles."""
    own = {"name": component, "namespace": namespace}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": dict(own)}
    for kind, metadata, rules in (
        ("ClusterRole", {"name": component}, cluster_rules(component)),
        ("Role", own, namespace_rules(component)),
    ):
        if not rules:
            continue
        yield {"apiVersion": f"{API}/v1", "kind": kind, "metadata": dict(metadata), "rules": rules}
        yield {
            "apiVersion": f"{API}/v1",
            "kind": f"{kind}Binding",
            "metadata": dict(metadata),
            "roleRef": {"apiGroup": API, "kind": kind, "name": component},
            "subjects": [{"kind": "ServiceAccount", **own}],
        }
