"""Says in the Service `default/kubernetes` where the API server itself is.

Source: the endpoint reconcilers of kube-apiserver, which write these objects without a selector.
"""

import ipaddress
import socket
from typing import Any

from koordinator.api.core import Service
from koordinator.api.groups import SERVICE_NAME, SKIP_MIRROR, Endpoints, EndpointSlice
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster

NAME, NAMESPACE, PORT = "kubernetes", "default", "https"
# Nothing is sent there: routing to it tells under which address others see this machine.
_ELSEWHERE = ("192.0.2.1", 9)


async def publish(cluster: Cluster, host: str, port: int) -> None:
    """Make the Service's port, its Endpoints and its slice say `host` and `port`. Raises: ApiError."""
    address = advertised(host)
    target = {"name": PORT, "port": port, "protocol": "TCP"}
    await _put(
        cluster,
        Endpoints,
        {
            "metadata": {"name": NAME, "labels": {SKIP_MIRROR: "true"}},
            "subsets": [{"addresses": [{"ip": address}], "ports": [target]}],
        },
    )
    await _put(
        cluster,
        EndpointSlice,
        {
            "metadata": {"name": NAME, "labels": {SERVICE_NAME: NAME}},
            "addressType": "IPv6" if ":" in address else "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [target],
        },
    )
    service = {"ports": [{"name": PORT, "port": 443, "protocol": "TCP", "targetPort": port}]}
    await cluster.patch(Service, NAME, {"spec": service}, NAMESPACE)


def advertised(host: str) -> str:
    """Return the address for clients of a server that listens on `host`: of all addresses, that of the way out."""
    try:
        listening = ipaddress.ip_address(host)
    except ValueError:
        return socket.gethostbyname(host)
    if not listening.is_unspecified:
        return str(listening)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return "127.0.0.1"  # no way out
        return str(probe.getsockname()[0])


async def _put(cluster: Cluster, view: type[Object], body: dict[str, Any]) -> None:
    try:
        await cluster.create(view, body, NAMESPACE)
    except errors.AlreadyExists:
        await cluster.patch(view, NAME, body, NAMESPACE)
