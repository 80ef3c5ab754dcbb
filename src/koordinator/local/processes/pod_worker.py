"""The life of one pod: sandbox, init containers, containers, end; and its status in the API.

`run` is one task per pod. It never gives up: what the API refuses for now is tried again, what cannot be done is said
in an event and tried again later.
"""

import asyncio
import contextlib
import logging
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from koordinator.api.core import ConfigMap, Pod, Secret
from koordinator.api.qos import kube
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.protocol import PatchType, get_if_there
from koordinator.cluster.supervise import Guard
from koordinator.host.errors import HostError
from koordinator.local.processes import container_state, environment, groups, launch
from koordinator.local.processes.container import ContainerLife
from koordinator.local.processes.container_state import ContainerRecord, PodFailure, PodStatusFacts
from koordinator.local.processes.environment import ContainerConfigError, EnvironmentSources, Services
from koordinator.local.processes.groups import GroupError
from koordinator.local.processes.launch import Process
from koordinator.local.processes.pod_spec import KubeletPod
from koordinator.local.processes.volumes import REFRESH_S, PodFiles, Volumes

log = logging.getLogger(__name__)

SET_UP_RETRY = BackoffPolicy(initial_s=0.5, max_s=122.0, factor=2.0, jitter_ratio=0.0)
"""Pauses with which the kubelet tries again to mount volumes."""
WRITE_RETRY = BackoffPolicy(initial_s=0.5, max_s=30.0, factor=2.0, jitter_ratio=0.2)


class PodWorker:
    """Carries out one pod."""

    def __init__(self, services: Services, pod: KubeletPod, pod_ip: str, rng: random.Random) -> None:
        self.pod = pod
        self.pod_ip = pod_ip
        self.files = PodFiles(services.folder, pod)
        self.group = services.groups.pod_group(kube(pod.view), pod.uid)
        self.status: dict[str, Any] = dict(pod.raw.status)
        """The status as it should be; what the API has may be a little older."""
        self.is_over = False
        """Nothing runs any more, and nothing will."""
        self._services = services
        self._steps = [ContainerRecord(each, is_init=True) for each in pod.spec.init_containers]
        self._records = [ContainerRecord(each, is_init=False) for each in pod.spec.containers]
        self._restore()
        self.lives = {
            record.spec.name: ContainerLife(services, self, record)
            for record in (*self._steps, *self._records)
        }
        self._started_s = services.clock.now()
        self._failure: PodFailure | None = None
        self._sandbox: Process | None = None
        self._is_gone = False
        self._stop_asked = asyncio.Event()
        self._grace_s = float(pod.grace_s)
        self._deletion = asyncio.Event()
        self._dirty = asyncio.Event()
        self._backoff = Backoff(WRITE_RETRY, rng)
        self._set_up_pauses = Backoff(SET_UP_RETRY, rng)
        self._volumes = Volumes(services)
        self._guard = Guard(f"pod {pod.key}")
        self._written: dict[str, Any] | None = None

    def _restore(self) -> None:
        """Containers that the API knows ran before this node was started."""
        status, now_s = self.pod.view.status, self._services.clock.now()
        known = {each.name: each for each in (*status.init_container_statuses, *status.container_statuses)}
        for record in (*self._steps, *self._records):
            if record.spec.name in known:
                record.restore(known[record.spec.name], now_s)

    # What happens to it

    def update(self, pod: KubeletPod) -> None:
        """Note that a newer version of the pod in the API."""
        self.pod = pod
        if pod.raw.metadata.deletion_timestamp is not None:
            self._deletion.set()
            self._ask_to_stop(float(pod.grace_s))
        self._dirty.set()

    def gone(self) -> None:
        """Note that the pod is no longer in the API."""
        self._is_gone = True
        self._deletion.set()
        self._ask_to_stop(min(self._grace_s, float(self.pod.grace_s)))
        self._dirty.set()

    def fail(self, failure: PodFailure, *, grace_s: float) -> None:
        """End the pod for a reason of ours."""
        if self._failure is None and not self.is_over:
            self._failure = failure
            self._ask_to_stop(grace_s)

    def changed(self) -> None:
        """Something is other than before."""
        self._status()
        self._dirty.set()

    def _ask_to_stop(self, grace_s: float) -> None:
        if not self._stop_asked.is_set():
            self._grace_s = grace_s
            self._stop_asked.set()
        elif grace_s < self._grace_s:
            self._grace_s = grace_s
            for life in self.lives.values():
                asyncio.get_running_loop().create_task(life.stop(grace_s))

    # Running

    async def run(self) -> None:
        """Run the pod's whole life, until it is gone from the API and nothing of it is left."""
        try:
            if self._failure is None and self.pod.raw.status.get("phase") not in container_state.OVER:
                async with self._status_kept_current():
                    await self._live()
                await self._write()
            elif self._failure is not None:
                await self._write()
            self.is_over = True
            await self._deletion.wait()
            await self._let_go()
        finally:
            await self._clean_up()
            self.files.remove()

    def reject(self, failure: PodFailure) -> None:
        """Note that the pod is not to be run; to be called before `run`."""
        self._failure = failure
        self._services.warn(self.pod, failure.reason, failure.message)

    async def _live(self) -> None:
        living = asyncio.create_task(self._set_up_and_run(), name=f"containers of {self.pod.key}")
        stop = asyncio.create_task(self._stop_asked.wait())
        deadline_s = self.pod.spec.active_deadline_seconds
        timer = None
        if deadline_s is not None:
            timer = asyncio.get_running_loop().call_later(deadline_s, self._too_late)
        try:
            await asyncio.wait((living, stop), return_when=asyncio.FIRST_COMPLETED)
            if not living.done():
                await self._stop_containers()
            await living
        finally:
            if timer is not None:
                timer.cancel()
            for task in (living, stop):
                task.cancel()
            await asyncio.gather(living, stop, return_exceptions=True)
        await self._clean_up()
        self.is_over = True
        self.changed()

    def _too_late(self) -> None:
        text = "Pod was active on the node longer than the specified deadline"
        self._services.record_event(self.pod, "DeadlineExceeded", text)
        self.fail(PodFailure("DeadlineExceeded", text), grace_s=float(self.pod.grace_s))

    async def _set_up_and_run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                await self._set_up()
                break
            except (HostError, OSError, errors.ApiError) as error:
                reason = "FailedMount" if not isinstance(error, GroupError) else "FailedCreatePodContainer"
                self._services.warn(self.pod, reason, str(error))
                await self._pause(self._set_up_pauses.next_s(error))
        if self._stop_asked.is_set():
            return
        self.changed()
        refreshing = asyncio.create_task(self._refresh_volumes(), name=f"volumes of {self.pod.key}")
        try:
            await self._run_containers()
        finally:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)

    async def _run_containers(self) -> None:
        async with asyncio.TaskGroup() as sidecars:
            if await self._run_steps(sidecars):
                async with asyncio.TaskGroup() as group:
                    for record in self._records:
                        group.create_task(self._life(record).run(), name=f"container {record.spec.name}")
            await self._stop_sidecars()

    async def _refresh_volumes(self) -> None:
        """Bring volumes up to date with the API; what cannot be read now stays as it is."""
        while any(volume.projection is not None for volume in self.pod.spec.volumes):
            await asyncio.sleep(REFRESH_S)
            await self._guard.call_async(self._refresh_once)

    async def _refresh_once(self) -> None:
        try:
            self.files.refresh(self.pod, await self._volumes.payloads(self.pod, self._around()))
        except (HostError, OSError, errors.ApiError) as error:
            self._services.warn(self.pod, "FailedMount", str(error))

    async def _set_up(self) -> None:
        self.files.make([*self.pod.spec.init_containers, *self.pod.spec.containers])
        self.files.mount(self.pod, await self._volumes.payloads(self.pod, self._around()))
        kept = self._services.groups
        kept.make(self.group, can_hold_groups=True)
        kept.set_amounts(self.group, groups.of_pod(self.pod.view))
        own_id = self._services.new_id(self.pod, "", 0)
        group = kept.container_group(self.group, own_id)
        kept.make(group, can_hold_groups=False)
        kept.set_amounts(group, groups.GroupAmounts(shares=groups.SANDBOX_SHARES))

        def enter(pid: int) -> None:
            kept.enter(pid, group)
            self._services.processes.set_oom_score_adj(pid, groups.SANDBOX_OOM_SCORE)

        self._sandbox = launch.start_pause(enter)

    async def _run_steps(self, sidecars: asyncio.TaskGroup) -> bool:
        """Run init containers in their order; whether all went well."""
        for record in self._steps:
            life = self._life(record)
            if record.is_step:
                await life.run()
                if not record.has_succeeded:
                    return False
                continue
            task = sidecars.create_task(life.run(), name=f"sidecar {record.spec.name}")
            begun = asyncio.create_task(life.started.wait())
            await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if task.done():
                return False
        return not self._stop_asked.is_set()

    # Ending

    async def _stop_containers(self) -> None:
        """Containers all at once, then sidecars, the last first."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._grace_s
        main = [self._life(record) for record in (*self._records, *(r for r in self._steps if r.is_step))]
        await asyncio.gather(*(life.stop(self._grace_s) for life in main))
        await asyncio.gather(*(life.process.wait() for life in main if life.process is not None))
        await self._stop_sidecars(max(deadline_s - loop.time(), 0.0))

    def _life(self, record: ContainerRecord) -> ContainerLife:
        return self.lives[record.spec.name]

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the pod is to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_asked.wait(), seconds)

    async def _stop_sidecars(self, grace_s: float | None = None) -> None:
        for record in reversed(self._steps):
            if not record.is_step:
                life = self._life(record)
                await life.stop(self._grace_s if grace_s is None else grace_s)
                if life.process is not None:
                    await life.process.wait()

    async def _clean_up(self) -> None:
        """Kill what is left and remove the groups."""
        if self._sandbox is not None:
            self._sandbox.send(signal.SIGKILL)
        with contextlib.suppress(GroupError):
            await self._services.groups.remove(self.group)
        self._sandbox = None

    async def _let_go(self) -> None:
        """Tell the API that nothing of a pod runs that is being deleted."""
        meta = self.pod.raw.metadata
        while not self._is_gone:
            try:
                await self._services.cluster.delete(
                    Pod, meta.name, meta.namespace, uid=meta.uid, grace_period_s=0
                )
                return
            except (errors.NotFound, errors.Conflict):
                return
            except errors.ApiError as error:
                await asyncio.sleep(self._backoff.next_s(error))

    # Status

    @contextlib.asynccontextmanager
    async def _status_kept_current(self) -> AsyncIterator[None]:
        """Write the status whenever it changes, one write at a time."""
        writer = asyncio.create_task(self._write_on(), name=f"status of {self.pod.key}")
        try:
            yield
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write_on(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._write()

    async def _write(self) -> None:
        """Bring the API's status up to date, however long that takes."""
        meta = self.pod.raw.metadata
        while not self._is_gone:
            wanted = self._status()
            if wanted == self._written:
                return
            patch = {"metadata": {"uid": meta.uid}, "status": wanted}
            try:
                await self._services.cluster.patch(
                    Pod,
                    meta.name,
                    patch,
                    meta.namespace,
                    patch_type=PatchType.STRATEGIC,
                    subresource="status",
                )
            except (errors.NotFound, errors.Conflict):
                return  # gone, or another pod of the same name: the watch tells
            except errors.ApiError as error:
                self._guard.failed(error)
                await asyncio.sleep(self._backoff.next_s(error))
            else:
                self._written = wanted
                self._backoff.reset()

    def _status(self) -> dict[str, Any]:
        """Return the fields of the status that are ours, as they are now."""
        facts = PodStatusFacts(
            restart_policy=self.pod.spec.restart_policy or "Always",
            host_ip=self._services.host_ip,
            pod_ip=self.pod_ip,
            started_s=self._started_s,
            has_sandbox=self._sandbox is not None,
            is_stopped=self.is_over,
            failure=self._failure,
            readiness_gates=tuple(gate.condition_type for gate in self.pod.spec.readiness_gates),
        )
        gates = [
            c for c in self.pod.raw.status.get("conditions") or [] if c["type"] not in container_state.OURS
        ]
        ours = [c for c in self.status.get("conditions") or [] if c["type"] in container_state.OURS]
        before = {**self.status, "conditions": [*ours, *gates]}
        status = container_state.status(facts, self._steps, self._records, before, self._services.clock.now())
        self.status = {**self.status, **status, "conditions": [*status["conditions"], *gates]}
        return status

    # What containers ask for

    async def surroundings(self, record: ContainerRecord) -> EnvironmentSources:
        """Return what the container's environment may refer to. Raises: ContainerConfigError when the API has no
        answer."""
        config_maps, secrets = environment.references(record.spec)
        try:
            return msgspec.structs.replace(
                self._around(),
                config_maps={name: await self._config_map(name) for name in sorted(config_maps)},
                secrets={name: await self._secret(name) for name in sorted(secrets)},
            )
        except errors.ApiError as error:
            raise ContainerConfigError(f"the API server does not answer: {error}") from error

    def _around(self) -> EnvironmentSources:
        return EnvironmentSources(
            node_name=self._services.node_name,
            host_ip=self._services.host_ip,
            pod_ip=self.pod_ip,
            allocatable=self._services.allocatable,
        )

    async def _config_map(self, name: str) -> dict[str, str] | None:
        namespace = self.pod.raw.metadata.namespace
        found = await get_if_there(self._services.cluster, ConfigMap, name, namespace)
        return None if found is None else found.data

    async def _secret(self, name: str) -> dict[str, str] | None:
        found = await get_if_there(self._services.cluster, Secret, name, self.pod.raw.metadata.namespace)
        return None if found is None else environment.decoded(found.data)
