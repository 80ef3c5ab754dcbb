"""The kubelet of this node: where the Node object says that it is, asked with the agent's own identity."""

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.cluster.config import ClusterConfigError
from koordinator.host.kubelet import KubeletAccess, KubeletClient, KubeletError
from koordinator.koordlet.config import KubeletClientConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.view import NodeView

log = logging.getLogger(__name__)

PORT_DEFAULT = 10250
ADDRESS_DEFAULT = "InternalIP"


class KubeletIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity with which we ask the kubelet: a header for each request, or a client certificate; and whom we
    trust."""

    authorization: Callable[[], Awaitable[str]] | None = None
    client_certificate: str = ""
    client_key: str = ""
    ca_file: str = ""


class NodeKubelet:
    """`parts.Kubelet` for the address that `view.node` has at the moment."""

    def __init__(
        self, config: KubeletClientConfig, view: NodeView, metrics: AgentMetrics, identity: KubeletIdentity
    ) -> None:
        self._config = config
        self._view = view
        self._metrics = metrics
        self._identity = identity
        self._access: KubeletAccess | None = None
        self._client: KubeletClient | None = None

    async def pods(self) -> list[Pod]:
        """Return all pods of the node. Raises: KubeletError."""
        return await (await self._reached()).pods()

    async def config(self) -> dict[str, Any]:
        """Return the kubelet's configuration in use. Raises: KubeletError."""
        return await (await self._reached()).config()

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.close()

    async def _reached(self) -> KubeletClient:
        node = self._view.node
        found = None if node is None else access(node, self._config, self._identity)
        if found is None:
            reason = "the Node is not known yet" if node is None else "the Node has no address yet"
            raise KubeletError("kubelet", reason)
        if found != self._access or self._client is None:
            await self.close()
            self._access = found
            self._client = KubeletClient(
                found,
                timeout_s=self._config.timeout_s,
                on_answer=functools.partial(_set_metrics, self._metrics),
                authorization=self._authorization if self._identity.authorization is not None else None,
            )
            log.info("kubelet address taken from the Node", extra={"url": found.url})
        return self._client

    async def _authorization(self) -> str:
        assert self._identity.authorization is not None
        try:
            return await self._identity.authorization()
        except ClusterConfigError as error:
            raise KubeletError("kubelet", f"no credentials: {error}") from error


def access(node: Node, config: KubeletClientConfig, identity: KubeletIdentity) -> KubeletAccess | None:
    """Return how the kubelet of a Node is reached; None while the Node has no address.

    An address type that the Node does not have means its internal address, else the first that it has.
    """
    by_type = {
        address.type: address.address for address in reversed(node.status.addresses) if address.address
    }
    if not by_type:
        return None
    found = by_type.get(config.address_type) or by_type.get(ADDRESS_DEFAULT)
    if found is None:
        found = next(address.address for address in node.status.addresses if address.address)
    if config.insecure:
        return KubeletAccess(address=found, port=config.read_only_port, is_plain=True)
    return KubeletAccess(
        address=found,
        port=node.status.daemon_endpoints.kubelet_endpoint.port or PORT_DEFAULT,
        client_certificate=identity.client_certificate,
        client_key=identity.client_key,
        ca_file=identity.ca_file,
    )


def _set_metrics(metrics: AgentMetrics, verb: str, path: str, code: str, seconds: float) -> None:
    metrics.kubelet_request.of(verb, path, code).observe(seconds)
