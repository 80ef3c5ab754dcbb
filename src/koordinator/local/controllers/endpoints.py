"""Keeps what is behind Services: an Endpoints object and EndpointSlices for each that selects pods.

Source: the endpoints and endpointslice controllers of kube-controller-manager; here one loop does both.
"""

import functools
from typing import Any

from koordinator.api.core import Node, Pod, Service
from koordinator.api.groups import MANAGED_BY, SERVICE_NAME, Endpoints, EndpointSlice
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, delete_if_same, patch_same
from koordinator.local.controllers import endpoint_slices, pod_control, selected_pods
from koordinator.local.controllers.endpoint_slices import TriggerTimes
from koordinator.local.controllers.ownership import Expectations, is_deleting, owner_reference
from koordinator.local.controllers.selected_pods import SelectedPods

WORKERS = 5
# Pods that change together are published together; the more a Service has, the longer a look at them takes.
BATCH_S, BATCH_S_PER_POD, BATCH_S_MAX = 0.1, 0.001, 10.0
NODE_RETRY_S = 5.0  # a pod's node is not known yet, or was deleted before it
BY_SERVICE = "service"
TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
ZONE = "topology.kubernetes.io/zone"


class EndpointsController:
    """The loop; its keys are Services."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._services = factory.informer(Service)
        self._pods = factory.informer(Pod)
        self._nodes = factory.informer(Node)
        self._endpoints = factory.informer(Endpoints)
        self._slices = factory.informer(EndpointSlice)
        self._slices.add_index(BY_SERVICE, _service_of)
        self._expected = Expectations(self._slices)
        self._times, self._slice_times = TriggerTimes(), TriggerTimes()
        self._written: dict[str, str] = {}
        self._controller: Controller[Key] = Controller("endpoints", self._reconcile, workers=WORKERS)
        self._selected = SelectedPods(self._pods, self._pod_changed)
        self._services.add_handler(
            self._service_changed, lambda _, new: self._service_changed(new), self._gone
        )
        self._endpoints.add_handler(on_delete=lambda obj: self._controller.queue.add(key_of(obj)))
        self._slices.add_handler(
            on_update=lambda _, new: self._slice_changed(new), on_delete=self._slice_gone
        )

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in (self._services, self._endpoints):
            await informer.synced.wait()
        for key, endpoints in self._endpoints.objects.items():
            if (
                endpoint_slices.ENDPOINTS_MANAGED_BY in endpoints.metadata.labels
                and key not in self._services.objects
            ):
                self._controller.queue.add(key)  # the Service went while nobody looked
        await self._controller.run([self._services, self._pods, self._nodes, self._endpoints, self._slices])

    # What wakes a Service

    def _service_changed(self, service: Service) -> None:
        labels = service.spec.selector if endpoint_slices.has_endpoints(service) else None
        self._selected.select(key_of(service), selected_pods.by_labels(labels) if labels else None)
        self._controller.queue.add(key_of(service))

    def _gone(self, service: Service) -> None:
        self._selected.select(key_of(service), None)
        self._expected.forget(service.metadata.uid)
        for times in (self._times, self._slice_times):
            times.forget(service)
        self._controller.queue.add(key_of(service))

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if endpoint_slices.matters(old, new):
            wait_s = min(BATCH_S + BATCH_S_PER_POD * self._selected.count(key), BATCH_S_MAX)
            self._controller.queue.add_after(key, wait_s)

    def _slice_changed(self, one: EndpointSlice) -> None:
        if self._written.get(one.metadata.uid) != one.metadata.resource_version:
            self._wake_service(one)

    def _slice_gone(self, one: EndpointSlice) -> None:
        self._written.pop(one.metadata.uid, None)
        self._expected.saw_deletion(one)
        self._wake_service(one)

    def _wake_service(self, one: EndpointSlice) -> None:
        if _service_of(one):
            self._controller.queue.add((one.metadata.namespace, one.metadata.labels[SERVICE_NAME]))

    # Making it so

    async def _reconcile(self, key: Key) -> float | None:
        service = self._services.get(key[1], key[0])
        if service is None:
            orphan = self._endpoints.get(key[1], key[0])
            if orphan is not None:
                await delete_if_same(self._cluster, orphan)
            return None
        if not endpoint_slices.has_endpoints(service):
            return None
        pods = self._selected.of(key)
        await self._write_endpoints(service, pods)
        return await self._write_slices(service, pods)

    async def _write_endpoints(self, service: Service, pods: list[Pod]) -> None:
        when = self._times.of(service, pods)
        subsets, is_cut = endpoint_slices.subsets_of(service, pods)
        labels = endpoint_slices.endpoints_labels(service)
        meta = service.metadata
        old = self._endpoints.get(meta.name, meta.namespace)
        has_mark = old is not None and endpoint_slices.OVER_CAPACITY in old.metadata.annotations
        if old is not None and (old.subsets, old.metadata.labels, has_mark) == (subsets, labels, is_cut):
            return
        annotations: dict[str, str | None] = {
            TRIGGER_TIME: when or None,
            endpoint_slices.OVER_CAPACITY: endpoint_slices.TRUNCATED if is_cut else None,
        }
        try:
            if old is not None:
                await self._replace(old, labels, annotations, {"subsets": subsets})
                return
            present = {name: text for name, text in annotations.items() if text}
            body = {
                "metadata": {"name": meta.name, "labels": labels, "annotations": present},
                "subsets": subsets,
            }
            await self._cluster.create(Endpoints, body, meta.namespace)
        except errors.ApiError as error:
            if pod_control.is_namespace_ending(error) or isinstance(error, errors.NotFound):
                return
            if not isinstance(
                error, errors.AlreadyExists | errors.Conflict
            ):  # the cache is behind: tried again
                verb, done = ("create", "Create") if old is None else ("update", "Update")
                what = f"Failed to {verb} endpoint {meta.namespace}/{meta.name}: {error}"
                self._events.warning(service, f"FailedTo{done}Endpoint", what)
            raise

    async def _write_slices(self, service: Service, pods: list[Pod]) -> float | None:
        """Return seconds after which to look again, None when all is said."""
        meta = service.metadata
        waits_s = self._expected.left_s(meta.uid, self._cluster.clock.now())
        if waits_s is not None:
            return min(waits_s, 1.0)  # slices that we wrote are not in the cache yet
        existing = self._slices.by_index(BY_SERVICE, f"{meta.namespace}/{meta.name}")
        when = self._slice_times.of(service, pods)
        plan = endpoint_slices.plan(service, pods, existing, self._zone_of)
        annotations: dict[str, str | None] = {TRIGGER_TIME: when or None}
        labels = endpoint_slices.labels_of(service)
        for update in plan.updates:
            fields = {"ports": update.ports, "endpoints": update.endpoints}
            await self._replace(update.old, labels, annotations, fields)
        for one in plan.deletes:
            await delete_if_same(self._cluster, one)
            self._expected.deleted(meta.uid, one, self._cluster.clock.now())
        creates = [] if is_deleting(service) else plan.creates
        work = [functools.partial(self._create_slice, service, when, *one) for one in creates]
        error = await pod_control.slow_start(work)
        if error is not None:
            if pod_control.is_namespace_ending(error):
                return None
            self._events.warning(
                service, "FailedToUpdateEndpointSlices", f"Error updating Endpoint Slices: {error}"
            )
            raise error
        return NODE_RETRY_S if plan.lost else None

    async def _create_slice(
        self, service: Service, when: str, ports: list[Any], endpoints: list[Any], family: str
    ) -> None:
        meta = service.metadata
        body: dict[str, Any] = {
            "metadata": {
                "generateName": pod_control.generate_name(meta.name),
                "labels": endpoint_slices.labels_of(service),
                "annotations": {TRIGGER_TIME: when} if when else {},
                "ownerReferences": [owner_reference(service)],
            },
            "addressType": family,
            "ports": ports,
            "endpoints": endpoints,
        }
        made = await self._cluster.create(EndpointSlice, body, meta.namespace)
        self._written[made.metadata.uid] = made.metadata.resource_version
        self._expected.created(meta.uid, made, self._cluster.clock.now())

    async def _replace(
        self, old: Object, labels: dict[str, str], annotations: dict[str, str | None], fields: dict[str, Any]
    ) -> None:
        """Bring an object of ours to its new content; only the version that was looked at (Conflict)."""
        gone = dict.fromkeys(set(old.metadata.labels) - set(labels))
        about = {"labels": {**gone, **labels}, "annotations": annotations}
        new = await patch_same(self._cluster, old, {"metadata": about, **fields})
        if isinstance(new, EndpointSlice):
            self._written[new.metadata.uid] = new.metadata.resource_version

    def _zone_of(self, node: str) -> str | None:
        found = self._nodes.get(node)
        return None if found is None else found.metadata.labels.get(ZONE, "")


def _service_of(one: EndpointSlice) -> list[str]:
    """Return the Service of a slice that we manage."""
    labels = one.metadata.labels
    name = labels.get(SERVICE_NAME, "")
    if not name or labels.get(MANAGED_BY) != endpoint_slices.CONTROLLER:
        return []
    return [f"{one.metadata.namespace}/{name}"]
