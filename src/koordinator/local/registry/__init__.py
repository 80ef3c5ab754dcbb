"""The life of API objects in the in-process cluster: create, read, change, watch, delete.

`in_memory` builds a registry on a store; `Registry` is the `cluster.backend.Backend` that `MemoryCluster` and
the API server stand on.
"""

import random

from koordinator.clock import Clock
from koordinator.local.interfaces import Admission, Patcher, SchemaCatalog
from koordinator.local.registry import bootstrap
from koordinator.local.registry.plain import PlainCatalog
from koordinator.local.registry.plain_patcher import PlainPatcher
from koordinator.local.registry.registry import Registry
from koordinator.local.store import Store


def in_memory(
    clock: Clock,
    *,
    seed: int = 0,
    store: Store | None = None,
    schemas: SchemaCatalog | None = None,
    patcher: Patcher | None = None,
    checks: bool = True,
) -> Registry:
    """A registry with the system objects in it.

    checks: False skips decoding, defaulting, validation and field owners (simulation at full speed: objects
    must be complete and right), never the life cycle. Strategic merge and server-side apply need checks.
    `schemas` and `patcher` default to the real ones.
    """
    catalog, chosen = _collaborators(schemas, patcher, checks)
    registry = Registry(store or Store(), clock, random.Random(seed), catalog, chosen, checks=checks)
    for group, version, plural, namespace, body in bootstrap.seeds():
        resource = registry.resolve(group, version, plural)
        if registry.store.table(resource.qualified).get(namespace, body["metadata"]["name"]) is None:
            registry.seed(resource, namespace, body)
    return registry


def _collaborators(
    schemas: SchemaCatalog | None, patcher: Patcher | None, checks: bool
) -> tuple[SchemaCatalog, Patcher]:
    if not checks:
        return schemas or PlainCatalog(), patcher or PlainPatcher()
    assert schemas is not None and patcher is not None
    return schemas, patcher


__all__ = ["Admission", "Registry", "in_memory"]
