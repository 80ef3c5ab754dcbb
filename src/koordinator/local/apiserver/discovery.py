"""Discovery documents: which groups, versions and resources are served; the old and the aggregated form."""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.local.schema.catalog import SUBRESOURCE_KINDS

OBJECT_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_SUBRESOURCE_VERBS = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "ephemeralcontainers": ("get", "patch", "update"),
    "resize": ("get", "patch", "update"),
    "approval": ("get", "patch", "update"),
    "finalize": ("update",),
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
    "log": ("get",),
}
# Groups in the order in which kubectl resolves short names that several groups have; custom groups follow.
_GROUP_ORDER = (
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
)
# Last of all: its kind NodeMetrics must not take `kubectl get nodemetrics` from Koordinator's NodeMetric.
METRICS_GROUP = "metrics.k8s.io"


class Served(msgspec.Struct, frozen=True):
    """A resource with the verbs that it answers to."""

    resource: Resource
    verbs: tuple[str, ...] = OBJECT_VERBS


class Documents:
    """All discovery documents of one set of resources, encoded when first asked for."""

    def __init__(self, served: Iterable[Served]) -> None:
        self._groups: dict[str, dict[str, list[Served]]] = {}
        for item in served:
            versions = self._groups.setdefault(item.resource.group, {})
            versions.setdefault(item.resource.version, []).append(item)

    def core_versions(self, address: str) -> dict[str, Any]:
        """`/api`."""
        return {
            "kind": "APIVersions",
            "versions": _ordered_versions(self._groups.get("", {})),
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }

    def groups(self) -> dict[str, Any]:
        """`/apis`."""
        listed = [self._group(name) for name in _ordered_groups(self._groups) if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}

    def group(self, name: str) -> dict[str, Any] | None:
        """`/apis/GROUP`; None for a group that is not served."""
        if name not in self._groups:
            return None
        return {"kind": "APIGroup", "apiVersion": "v1", **self._group(name)}

    def resources(self, group: str, version: str) -> dict[str, Any] | None:
        """`/api/v1` and `/apis/GROUP/VERSION`; None when it is not served."""
        served = self._groups.get(group, {}).get(version)
        if served is None:
            return None
        entries = [entry for item in sorted(served, key=_plural) for entry in _entries(item)]
        name = f"{group}/{version}" if group else version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": entries}

    def aggregated(self, *, core: bool, version: str) -> dict[str, Any]:
        """Return the whole of `/api` or `/apis` in one document."""
        names = [name for name in _ordered_groups(self._groups) if (not name) == core]
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": [self._aggregated_group(name) for name in names],
        }

    def _group(self, name: str) -> dict[str, Any]:
        versions = [
            {"groupVersion": f"{name}/{version}", "version": version}
            for version in _ordered_versions(self._groups[name])
        ]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    def _aggregated_group(self, name: str) -> dict[str, Any]:
        versions = [
            {
                "version": version,
                "resources": [_aggregated(item) for item in sorted(self._groups[name][version], key=_plural)],
                "freshness": "Current",
            }
            for version in _ordered_versions(self._groups[name])
        ]
        return {"metadata": {"name": name, "creationTimestamp": None}, "versions": versions}


def etag(body: bytes) -> str:
    """Return a strong tag of a document."""
    return '"' + hashlib.sha256(body).hexdigest().upper() + '"'


def _plural(item: Served) -> str:
    return item.resource.plural


def _entries(item: Served) -> list[dict[str, Any]]:
    resource = item.resource
    main: dict[str, Any] = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": item.verbs,
    }
    if resource.short_names:
        main["shortNames"] = resource.short_names
    if resource.categories:
        main["categories"] = resource.categories
    return [main, *(_subresource_entry(resource, name) for name in sorted(resource.subresources))]


def _subresource_entry(resource: Resource, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _SUBRESOURCE_VERBS.get(name, ("get",)),
    }
    foreign = SUBRESOURCE_KINDS.get(name)
    if foreign is not None:
        entry["group"], entry["version"], entry["kind"] = foreign
    return entry


def _aggregated(item: Served) -> dict[str, Any]:
    resource = item.resource
    entry: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": item.verbs,
    }
    if resource.short_names:
        entry["shortNames"] = resource.short_names
    if resource.categories:
        entry["categories"] = resource.categories
    if resource.subresources:
        entry["subresources"] = [
            _aggregated_subresource(resource, name) for name in sorted(resource.subresources)
        ]
    return entry


def _aggregated_subresource(resource: Resource, name: str) -> dict[str, Any]:
    group, version, kind = SUBRESOURCE_KINDS.get(name, (resource.group, resource.version, resource.kind))
    return {
        "subresource": name,
        "responseKind": {"group": group, "version": version, "kind": kind},
        "verbs": _SUBRESOURCE_VERBS.get(name, ("get",)),
    }


def _ordered_groups(names: Iterable[str]) -> list[str]:
    rank = {name: position for position, name in enumerate(_GROUP_ORDER)}
    return sorted(names, key=lambda name: (name == METRICS_GROUP, rank.get(name, len(rank)), name))


def _ordered_versions(versions: Iterable[str]) -> list[str]:
    """Stable before beta before alpha, higher first (Kubernetes version priority)."""
    return sorted(versions, key=_version_rank)


def _version_rank(version: str) -> tuple[int, int, int, str]:
    for stage, word in enumerate(("", "beta", "alpha")):
        major, _, minor = version[1:].partition(word) if word else (version[1:], "", "0")
        if version.startswith("v") and major.isdigit() and (minor or "0").isdigit():
            return stage, -int(major), -int(minor or 0), version
    return 3, 0, 0, version
