"""Create the contents of every namespace (the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`), empty
one that is being deleted, then let it go.

Sources: the serviceaccount controller and the root CA publisher of kube-controller-manager; its namespace controller:
every namespaced resource is cleared, what needs time (grace, finalizers) is waited for, and the finalizer `kubernetes`
in `spec.finalizers` is removed last.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from koordinator import clock
from koordinator.api.core import ConfigMap, Namespace, ServiceAccount
from koordinator.api.meta import Object, Resource, metadata_view
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster, patch_if_there
from koordinator.local.controllers import pod_control

log = logging.getLogger(__name__)

WORKERS = 4
RETRY_S = 1.0  # while objects with finalizers remain; their removal wakes nobody else
FINALIZER = "kubernetes"
_view_of = functools.cache(metadata_view)


class NamespaceController(ControllerLoop):
    """`resources` names everything served now."""

    def __init__(
        self, cluster: Cluster, factory: InformerFactory, resources: Callable[[], Iterable[Resource]]
    ) -> None:
        self._cluster = cluster
        self._resources = resources
        self._namespaces = factory.informer(Namespace)
        self._controller: Controller[str] = Controller("namespace", self._reconcile, workers=WORKERS)
        self._controller.watch(self._namespaces, lambda ns: [ns.metadata.name])
        self._informers = [self._namespaces]

    async def _reconcile(self, name: str) -> float | None:
        namespace = self._namespaces.get(name)
        if namespace is None or namespace.metadata.deletion_timestamp is None:
            return None
        remaining, finalizers = await self._clear(name)
        if remaining:
            await self._report(namespace, remaining, finalizers)
            return RETRY_S
        if FINALIZER in namespace.spec.finalizers:
            await self._finalize(name)
        return None

    async def _clear(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Delete everything inside; what remains, per resource and per finalizer.

        Pods go first: as long as they run, their owners would only replace what is deleted after them.
        """
        remaining: dict[str, int] = {}
        finalizers: dict[str, int] = {}
        for resource in self._namespaced():
            view = _view_of(resource)
            try:
                items = (await self._cluster.list(view, name)).items
            except errors.NotFound:
                continue  # its CRD has just gone
            left = 0
            for obj in items:
                if not await self._delete(view, obj):
                    left += 1
                    for finalizer in obj.metadata.finalizers:
                        finalizers[finalizer] = finalizers.get(finalizer, 0) + 1
            if left:
                remaining[resource.qualified] = left
        return remaining, finalizers

    def _namespaced(self) -> list[Resource]:
        """Return one version of each namespaced resource, in a steady order with pods first."""
        chosen: dict[tuple[str, str], Resource] = {}
        for resource in self._resources():
            if resource.namespaced:
                chosen.setdefault((resource.group, resource.plural), resource)
        return sorted(chosen.values(), key=lambda r: (r.qualified != "pods", r.qualified))

    async def _delete(self, view: type[Object], obj: Object) -> bool:
        """Delete one object; return whether it is gone now."""
        meta = obj.metadata
        if meta.deletion_timestamp is not None:
            return False
        try:
            await self._cluster.delete(view, meta.name, meta.namespace, propagation="Background")
            await self._cluster.get(view, meta.name, meta.namespace)
        except errors.NotFound:
            return True
        return False

    async def _report(
        self, namespace: Namespace, remaining: Mapping[str, int], finalizers: Mapping[str, int]
    ) -> None:
        """Write the conditions that `kubectl describe namespace` shows while a deletion hangs."""
        now = clock.rfc3339(self._cluster.clock.now())
        content = ", ".join(f"{name} has {count} resource instances" for name, count in remaining.items())
        waiting = ", ".join(f"{name} in {count} resource instances" for name, count in finalizers.items())
        conditions = [
            _condition(
                "NamespaceDeletionContentFailure",
                False,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
                now,
            ),
            _condition(
                "NamespaceContentRemaining",
                True,
                "SomeResourcesRemain",
                f"Some resources are remaining: {content}",
                now,
            ),
            _condition(
                "NamespaceFinalizersRemaining",
                bool(finalizers),
                "SomeFinalizersRemain" if finalizers else "ContentHasNoFinalizers",
                f"Some content in the namespace has finalizers remaining: {waiting}"
                if finalizers
                else "All content-preserving finalizers finished",
                now,
            ),
        ]
        have = {c.type: (c.status, c.message) for c in namespace.status.conditions}
        if have == {str(c["type"]): (c["status"], c["message"]) for c in conditions}:
            return
        status = {"status": {"conditions": conditions}}
        await patch_if_there(self._cluster, namespace, status, subresource="status", any_version=True)

    async def _finalize(self, name: str) -> None:
        path = Namespace.resource.path(name=name)
        try:
            body = await self._cluster.request("GET", path)
            spec = dict(body.get("spec") or {})
            spec["finalizers"] = [f for f in spec.get("finalizers") or [] if f != FINALIZER]
            await self._cluster.request("PUT", f"{path}/finalize", {**body, "spec": spec})
        except errors.NotFound:
            return
        log.info("namespace emptied", extra={"namespace": name})


def _condition(kind: str, holds: bool, reason: str, message: str, now: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }


CONTENT_WORKERS = 2
ACCOUNT = "default"
ROOT_CA, ROOT_CA_KEY = "kube-root-ca.crt", "ca.crt"
_ABOUT = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of "
    "Kubernetes clusters."
)


class NamespaceContentsController(ControllerLoop):
    """The loop; its keys are namespaces. `ca_certificate` is PEM text, empty where the API is served without TLS."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, ca_certificate: str) -> None:
        self._cluster = cluster
        self._ca_certificate = ca_certificate
        self._namespaces = factory.informer(Namespace)
        self._accounts = factory.informer(ServiceAccount)
        # One of the two suffices, and neither needs the ConfigMaps of everybody else.
        self._bundles = factory.informer(ConfigMap, field_selector=f"metadata.name={ROOT_CA}")
        self._controller: Controller[str] = Controller(
            "namespace contents", self._reconcile, workers=CONTENT_WORKERS
        )
        self._controller.watch(self._namespaces, lambda obj: [obj.metadata.name])
        self._controller.watch(self._bundles, lambda obj: [obj.metadata.namespace])
        self._accounts.add_handler(on_delete=lambda obj: self._controller.queue.add(obj.metadata.namespace))
        self._informers = [self._namespaces, self._accounts, self._bundles]

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
