"""The life of API objects in the in-process cluster: create, read, change, watch, delete.

`in_memory` and `on_disk` build a registry, with the objects that every cluster has from its first second;
`ObjectRegistry` is the `cluster.backend.Backend` that `MemoryCluster` and the API server stand on.
"""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from koordinator.api.kinds import BUILT_IN
from koordinator.clock import Clock
from koordinator.local.admission import AdmissionChain, WebhookAdmission
from koordinator.local.admission.device_access import DeviceAccess
from koordinator.local.admission.granted_rights import GrantedRights
from koordinator.local.admission.limit_ranges import LimitRanges
from koordinator.local.admission.policies import ValidatingPolicies
from koordinator.local.authorization import default_roles
from koordinator.local.authorization.rbac import GROUP
from koordinator.local.interfaces import Admission
from koordinator.local.persistence import SqliteJournal
from koordinator.local.registry.plain import PlainCatalog
from koordinator.local.registry.registry import ObjectRegistry
from koordinator.local.schema import Catalog
from koordinator.local.service_account_tokens import Account, Reference
from koordinator.local.store import HISTORY_MAX, ObjectStore


def in_memory(
    clock: Clock,
    *,
    seed: int = 0,
    catalog: Catalog | None = None,
    checks: bool = True,
    history_max: int = HISTORY_MAX,
) -> ObjectRegistry:
    """Return a registry with the system objects in it.

    checks: False skips decoding, defaulting, validation and field owners (simulation at full speed: objects
    must be complete and right) and has no admission webhooks (`ObjectRegistry.admission` can be set), never the life
    cycle. Server-side apply, and strategic merge of custom resources, need checks.
    `catalog` is one to share, which gets to know the CRDs. `history_max` bounds the changes kept per kind: memory
    against how far a watcher may fall behind.
    """
    store = ObjectStore(history_max=history_max, packs=checks)
    return _build(store, clock, str(seed), catalog, checks=checks)


def on_disk(
    clock: Clock,
    data_dir: Path,
    *,
    seed: int = 0,
    catalog: Catalog | None = None,
) -> ObjectRegistry:
    """Return a registry that keeps its objects in a directory; end it with `ObjectRegistry.close`.

    Raises: persistence.StorageError when the directory cannot be used or its file is damaged.
    """
    journal = SqliteJournal(data_dir)
    store = ObjectStore(journal.version, journal)
    # The version differs at every start, so that no generated name or uid comes twice.
    registry_seed = f"{seed}/{journal.version}"
    try:
        return _build(
            store,
            clock,
            registry_seed,
            catalog,
            load=journal.load_into,
            token_key=data_dir / "service-accounts.key",
        )
    except BaseException:
        journal.abandon()
        raise


def _build(
    store: ObjectStore,
    clock: Clock,
    seed: str,
    catalog: Catalog | None,
    *,
    checks: bool = True,
    load: Callable[[ObjectStore], int] | None = None,
    token_key: Path | None = None,
) -> ObjectRegistry:
    catalog = catalog or (Catalog(BUILT_IN) if checks else PlainCatalog(BUILT_IN))
    registry = ObjectRegistry(store, clock, random.Random(seed), catalog, checks=checks, token_key=token_key)
    if checks:
        webhooks = WebhookAdmission.on(registry, random.Random(f"{seed}/admission"))
        plugins = (
            LimitRanges(store),
            GrantedRights(registry.authorizer),
            DeviceAccess(store),
            ValidatingPolicies(store, registry.other_versions_of, registry.resources),
        )
        registry.admission = AdmissionChain(webhooks, plugins, catalog)
        registry.on_close.append(webhooks.close)
    if load is not None:
        load(store)
        registry.definitions.restore()
    _create_missing(registry, seeds())
    return registry


def _create_missing(registry: ObjectRegistry, wanted: "Iterable[Seed]") -> None:
    for group, plural, namespace, body in wanted:
        resource = registry.resolve(group, "v1", plural)
        if registry.store.table(resource.qualified).get(namespace, body["metadata"]["name"]) is None:
            registry.seed(resource, namespace, body)


def seed_roles(registry: ObjectRegistry) -> None:
    """Create the default roles and bindings (`local.authorization.default_roles`) that are not there yet."""
    _create_missing(registry, ((GROUP, *each) for each in default_roles.seeds()))


def kubelet_client_token(registry: ObjectRegistry) -> str:
    """Return a token for an hour of the account that asks kubelets for logs and commands, which is made with its
    permission when it is needed first."""
    name, namespace = "kube-apiserver-kubelet-client", "kube-system"
    accounts = registry.resolve("", "v1", "serviceaccounts")
    found = registry.store.table(accounts.qualified).get(namespace, name)
    if found is None:
        found = registry.seed(accounts, namespace, {"metadata": {"name": name}})
        body = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        _create_missing(registry, [(GROUP, "clusterrolebindings", "", body)])
    owner = Account(namespace, Reference(name, found.obj["metadata"]["uid"]))
    return registry.tokens.issue(owner, [], KUBELET_TOKEN_S)[0]


__all__ = ["Admission", "ObjectRegistry", "in_memory", "kubelet_client_token", "on_disk", "seed_roles"]


KUBELET_TOKEN_S = 3600
SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", "koordinator-system")

_CRITICAL = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if "
        "necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}

Seed = tuple[str, str, str, dict[str, Any]]
"""Group, plural, namespace and body of an object of version v1 to create."""


def seeds() -> list[Seed]:
    """System objects in the order of their creation."""
    found: list[Seed] = [("", "namespaces", "", {"metadata": {"name": name}}) for name in SYSTEM_NAMESPACES]
    for name, (value, description) in _CRITICAL.items():
        body = {
            "metadata": {"name": name},
            "value": value,
            "description": description,
            "preemptionPolicy": "PreemptLowerPriority",
        }
        found.append(("scheduling.k8s.io", "priorityclasses", "", body))
    found += [
        ("", "serviceaccounts", namespace, {"metadata": {"name": "default"}})
        for namespace in SYSTEM_NAMESPACES
    ]
    found.append(("", "services", "default", _kubernetes_service()))
    return found


def _kubernetes_service() -> dict[str, Any]:
    return {
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.96.0.1",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    }
