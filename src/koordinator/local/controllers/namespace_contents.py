"""Create the contents of every namespace: the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`.

Source: the serviceaccount controller and the root CA publisher of kube-controller-manager.
"""

from typing import Any

from koordinator.api.core import ConfigMap, Namespace, ServiceAccount
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers import pod_control

WORKERS = 2
ACCOUNT = "default"
ROOT_CA, ROOT_CA_KEY = "kube-root-ca.crt", "ca.crt"
_ABOUT = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of "
    "Kubernetes clusters."
)


class NamespaceContentsController:
    """The loop; its keys are namespaces. `ca_certificate` is PEM text, empty where the API is served without TLS."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, ca_certificate: str) -> None:
        self._cluster = cluster
        self._ca_certificate = ca_certificate
        self._namespaces = factory.informer(Namespace)
        self._accounts = factory.informer(ServiceAccount)
        # One of the two suffices, and neither needs the ConfigMaps of everybody else.
        self._bundles = factory.informer(ConfigMap, field_selector=f"metadata.name={ROOT_CA}")
        self._controller: Controller[str] = Controller("namespace contents", self._reconcile, workers=WORKERS)
        self._controller.watch(self._namespaces, lambda obj: [obj.metadata.name])
        self._controller.watch(self._bundles, lambda obj: [obj.metadata.namespace])
        self._accounts.add_handler(on_delete=lambda obj: self._controller.queue.add(obj.metadata.namespace))

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run([self._namespaces, self._accounts, self._bundles])

    async def _reconcile(self, name: str) -> None:
        namespace = self._namespaces.get(name)
        if namespace is None or namespace.metadata.deletion_timestamp is not None:
            return
        if self._accounts.get(ACCOUNT, name) is None:
            await self._create(ServiceAccount, {"metadata": {"name": ACCOUNT}}, name)
        data = {ROOT_CA_KEY: self._ca_certificate}
        bundle = self._bundles.get(ROOT_CA, name)
        if bundle is None:
            about = {"kubernetes.io/description": _ABOUT}
            await self._create(
                ConfigMap, {"metadata": {"name": ROOT_CA, "annotations": about}, "data": data}, name
            )
        elif bundle.data != data:
            strangers = dict.fromkeys(set(bundle.data) - set(data))
            await self._cluster.patch(ConfigMap, ROOT_CA, {"data": {**strangers, **data}}, name)

    async def _create(self, view: type[Object], body: dict[str, Any], namespace: str) -> None:
        try:
            await self._cluster.create(view, body, namespace)
        except (errors.AlreadyExists, errors.NotFound):
            return  # the cache is behind
        except errors.ApiError as error:
            if not pod_control.is_namespace_ending(error):
                raise
