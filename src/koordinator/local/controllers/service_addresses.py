"""Give Services addresses: `default/kubernetes` that of the API server itself, those of type LoadBalancer one of their
own, as the controller of a cloud does; no traffic flows there.

The addresses of load balancers are of 198.18.0.0/15, which is kept for tests and routed nowhere.

Source: the endpoint reconcilers of kube-apiserver, which write these objects without a selector.
"""

import ipaddress
import socket
from typing import Any

from koordinator.api.core import Service
from koordinator.api.groups import SERVICE_NAME, SKIP_MIRROR, Endpoints, EndpointSlice
from koordinator.api.meta import Object
from koordinator.api.scalars import is_ip
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, patch_if_there
from koordinator.local.controllers.ownership import is_deleting

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


NETWORK = ipaddress.ip_network("198.18.0.0/15")


def wants_address(service: Service) -> bool:
    """Return whether the Service is ours to serve: one with a class of its own waits for whoever serves that."""
    return (
        service.spec.type == "LoadBalancer"
        and service.spec.load_balancer_class is None
        and not is_deleting(service)
    )


class LoadBalancerController(ControllerLoop):
    """The loop; its keys are Services."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._services = factory.informer(Service)
        self._holders: dict[str, Key] = {}
        self._next = 1
        self._controller: Controller[Key] = Controller("load balancers", self._reconcile)
        self._services.add_handler(self._changed, lambda _, new: self._changed(new), self._gone)
        self._informers = [self._services]

    def _changed(self, service: Service) -> None:
        for ingress in service.status.load_balancer.ingress:
            if ingress.ip:
                self._holders.setdefault(ingress.ip, key_of(service))
        if service.spec.type == "LoadBalancer" or service.status.load_balancer.ingress:
            self._controller.queue.add(key_of(service))

    def _gone(self, service: Service) -> None:
        for ingress in service.status.load_balancer.ingress:
            self._release(ingress.ip, key_of(service))

    async def _reconcile(self, key: Key) -> None:
        service = self._services.get(key[1], key[0])
        if service is None or service.spec.load_balancer_class is not None:
            return
        have = service.status.load_balancer.ingress
        if not wants_address(service):
            if have and service.spec.type != "LoadBalancer" and await self._write(service, {}):
                for ingress in have:
                    self._release(ingress.ip, key)
            return
        if have:
            return
        address = self._take(service.spec.load_balancer_ip, key)
        if not address:
            asked = service.spec.load_balancer_ip
            why = (
                f"address {asked} is taken or not of {NETWORK}" if asked else f"{NETWORK} has no address left"
            )
            self._events.warning(service, "SyncLoadBalancerFailed", f"Error syncing load balancer: {why}")
            return
        self._events.normal(service, "EnsuringLoadBalancer", "Ensuring load balancer")
        if await self._write(service, {"ingress": [{"ip": address, "ipMode": "VIP"}]}):
            self._events.normal(service, "EnsuredLoadBalancer", "Ensured load balancer")
        else:
            self._release(address, key)

    async def _write(self, service: Service, status: dict[str, Any]) -> bool:
        """Write the status; return whether the Service was still there. Lists are replaced; an empty status takes the
        addresses away."""
        patch = {"status": {"loadBalancer": status or {"ingress": None}}}
        written = await patch_if_there(self._cluster, service, patch, subresource="status", any_version=True)
        return written is not None

    def _take(self, asked: str, key: Key) -> str:
        """Return the address that was asked for, or the next free one; empty when there is none."""
        if asked:
            is_ours = is_ip(asked) and ipaddress.ip_address(asked) in NETWORK
            free = is_ours and self._holders.setdefault(asked, key) == key
            return asked if free else ""
        hosts = NETWORK.num_addresses - 2
        if len(self._holders) >= hosts:
            return ""
        while True:
            address = str(NETWORK[self._next])
            self._next = self._next % hosts + 1
            if self._holders.setdefault(address, key) == key:
                return address

    def _release(self, address: str, key: Key) -> None:
        if self._holders.get(address) == key:
            del self._holders[address]
