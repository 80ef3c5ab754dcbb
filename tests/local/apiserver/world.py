"""The API server on the real registry, as `koordinator up` puts them together."""

from koordinator.api.kinds import BUILT_IN
from koordinator.clock import Clock
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer
from koordinator.local.openapi import OpenApi
from koordinator.local.registry import ObjectRegistry
from koordinator.local.schema import Catalog


def real_server(clock: Clock) -> tuple[ApiServer, ObjectRegistry]:
    """A server that is not started yet, and its backend."""
    catalog = Catalog(BUILT_IN)
    backend = registry.in_memory(clock, catalog=catalog)
    registry.seed_roles(backend)
    documents = OpenApi(catalog, "v1.32.0")
    return ApiServer(backend, openapi=documents, authorizer=backend.authorizer), backend
