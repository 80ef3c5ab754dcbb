"""Find where a webhook's Service can be reached from this process.

A cluster of pods on hollow nodes has no network, so a `clientConfig.service` is looked up in two places: what
was registered for it (`ServiceResolver.register`: a webhook server running in or beside this process), else the
first ready address of its EndpointSlices. Document your webhook's address in one of the two.
"""

from typing import Protocol

from koordinator.cluster.backend import Backend, ListOptions
from koordinator.cluster.errors import NotFound

_SERVICE_LABEL = "kubernetes.io/service-name"


class UnresolvedService(Exception):
    """Nothing is known to serve a Service; the text is that of the API server."""


class Resolver(Protocol):
    """Finds the address of a Service."""

    def resolve(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """Host and port. Raises: UnresolvedService."""
        ...


class ServiceResolver:
    """Registered addresses first, then what another resolver knows."""

    def __init__(self, otherwise: Resolver) -> None:
        self._otherwise = otherwise
        self._registered: dict[tuple[str, str], tuple[str, int]] = {}

    def register(self, namespace: str, name: str, host: str, port: int) -> None:
        """Serve a Service from `host:port`, whatever its own port is."""
        self._registered[namespace, name] = (host, port)

    def resolve(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """See `Resolver`."""
        found = self._registered.get((namespace, name))
        return self._otherwise.resolve(namespace, name, port) if found is None else found


class EndpointResolver:
    """The first ready address of a Service's EndpointSlices."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def resolve(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """See `Resolver`."""
        backend = self._backend
        try:
            backend.get(backend.resolve("", "v1", "services"), namespace, name)
        except NotFound:
            raise UnresolvedService(f'service "{name}" not found') from None
        slices = backend.list(
            backend.resolve("discovery.k8s.io", "v1", "endpointslices"),
            namespace,
            ListOptions(label_selector=f"{_SERVICE_LABEL}={name}"),
        )
        for record in slices.records:
            ports = [item["port"] for item in record.obj.get("ports") or () if item.get("port")]
            for endpoint in record.obj.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("ready", True) and endpoint.get("addresses"):
                    return endpoint["addresses"][0], ports[0] if ports else port
        raise UnresolvedService(f'no endpoints available for service "{name}"')


__all__ = ["EndpointResolver", "Resolver", "ServiceResolver", "UnresolvedService"]
