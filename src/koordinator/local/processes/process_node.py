"""The process node: a kubelet that runs the pods bound to it as processes of this machine, in groups of their own.

A mark in `/run` claims kubepods: it tells left-overs of an earlier run of ours from groups of a real kubelet. A pod
that was bound here is refused when it does not fit. Source: the kubelet's `predicateAdmitHandler`.
"""

import asyncio
import contextlib
import logging
import os
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import aiohttp
import msgspec

from koordinator.api import pod_resources, resource_list, resources
from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.groups import Lease
from koordinator.api.qos import KubeQoS
from koordinator.api.quantity import ResourceList
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy, new_rng
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.cluster.supervise import Guard, supervise
from koordinator.host.cgroup_layout import Driver
from koordinator.host.errors import ContentError, HostError
from koordinator.host.host import Host
from koordinator.local.nodes import kubelet
from koordinator.local.processes import groups, node_object
from koordinator.local.processes.container_state import OVER, PodFailure
from koordinator.local.processes.environment import Services
from koordinator.local.processes.groups import CLASSES, GroupAmounts, GroupError, PodGroups
from koordinator.local.processes.node_object import MachineFacts
from koordinator.local.processes.pod_spec import KubeletPod, RawPod
from koordinator.local.processes.pod_worker import PodWorker

log = logging.getLogger(__name__)


class ForeignPods(HostError):
    """The group of all pods exists and is not ours."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(group, reason)
        self.group, self.reason = group, reason

    def __str__(self) -> str:
        return f"cgroup {self.group} exists and {self.reason}; nothing was touched"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The maker of the groups. `inode` is that of the group of all pods, 0 while it is being made."""

    boot: str
    pid: int
    start_ticks: int
    group: str
    inode: int = 0
    folder: str = ""
    """Directory of the logs and volumes of its pods."""
    parents: tuple[str, ...] = ()
    """Groups above that of all pods that were made for it."""


class Claims:
    """The mark of one tree of groups. `directory` is on a file system that a boot empties."""

    def __init__(self, host: Host, groups: PodGroups, directory: str) -> None:
        self._host = host
        self._groups = groups
        name = groups.root.replace("/", "-")
        self._path = Path(directory) / f"{name}.json"

    def left_over(self) -> Claim | None:
        """Return the claim of an earlier run that has ended; None when there is nothing.

        Raises: ForeignPods when the groups belong to somebody else, or to a run that goes on.
        """
        claim = self._read()
        group = self._groups.root
        if claim is not None and claim.boot != self._host.machine.boot_id():
            claim = None
        if claim is not None and self._host.processes.start_ticks(claim.pid) == claim.start_ticks:
            raise ForeignPods(group, f"belongs to a process node that runs (process {claim.pid})")
        if not self._groups.exists():
            return claim
        if claim is None:
            raise ForeignPods(
                group,
                "was made by somebody else: a kubelet runs here, or has left it behind; "
                "remove it, or choose a parent group with --process-node-parent",
            )
        if claim.inode not in (0, self._inode()):
            raise ForeignPods(group, "is not the one that was made here before")
        if claim.inode == 0 and self._groups.processes(group):
            raise ForeignPods(group, "has processes, while ours was not finished")
        return claim

    def announce(self, folder: str, parents: Sequence[str]) -> None:
        """Write down that we are about to make the groups. Raises: OSError."""
        self._write(self._claim(folder, parents, 0))

    def confirm(self, folder: str, parents: Sequence[str]) -> None:
        """Write down which groups are ours, now that they exist. Raises: OSError."""
        self._write(self._claim(folder, parents, self._inode()))

    def drop(self) -> None:
        """Forget it: nothing of ours is left."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _claim(self, folder: str, parents: Sequence[str], inode: int) -> Claim:
        return Claim(
            boot=self._host.machine.boot_id(),
            pid=os.getpid(),
            start_ticks=self._host.processes.start_ticks(os.getpid()) or 0,
            group=self._groups.root,
            inode=inode,
            folder=folder,
            parents=tuple(parents),
        )

    def _inode(self) -> int:
        identity = self._groups.cgroups.identity(self._groups.root)
        return 0 if identity is None else identity[1]

    def _read(self) -> Claim | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Claim)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _write(self, claim: Claim) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(claim))
        os.replace(beside, self._path)


HEARTBEAT = BackoffPolicy(initial_s=1.0, max_s=10.0, factor=2.0, jitter_ratio=0.1)
LEASE_S, LEASE_DURATION_S, STATUS_S = 10.0, 40, 60.0
WORKER_RETRY_S = 10.0
_FIRST_POD_ADDRESS, _POD_ADDRESSES = 2, 2**22 - 4


class ProcessNodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The name of the node, the resources that it keeps from pods, and its paths.

    `parent` is the group below which kubepods stands, the root group for ''. `folder` holds logs and volumes, `run` the
    mark that tells our groups from those of others; it must be on a file system that a boot empties.
    """

    name: str
    folder: Path
    run: str = "/run/koordinator/process-node"
    parent: str = ""
    driver: Driver = Driver.CGROUPFS
    reserved_milli: int = 0
    reserved_bytes: int = 0


class ProcessNode:
    """`prepare`, then `run` until cancelled; then all its pods are killed and their groups removed."""

    def __init__(
        self, cluster: Cluster, host: Host, config: ProcessNodeConfig, *, rng: random.Random
    ) -> None:
        self.groups = PodGroups(host.cgroups, driver=config.driver, parent=config.parent)
        self.registered = asyncio.Event()
        self.workers: dict[str, PodWorker] = {}
        self._cluster = cluster
        self._host = host
        self._config = config
        self._rng = rng
        self._claims = Claims(host, self.groups, config.run)
        self._events = EventRecorder(cluster, "kubelet", host=config.name, rng=rng)
        self._guard = Guard("process node")
        self.facts = self._measured()
        self._offered: ResourceList = node_object.amounts(self.facts, is_allocatable=True)
        self._services: Services | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._status_written_s = 0.0
        self._has_claimed = False
        self._parents: list[str] = []
        """Groups above that of all pods that were made for it, by us or by a run before that was killed."""
        self._class_amounts: dict[KubeQoS, GroupAmounts] = {}
        self._known: dict[str, KubeletPod] = {}
        self._next_address = _FIRST_POD_ADDRESS

    @property
    def name(self) -> str:
        return self._config.name

    def listens_on(self, port: int) -> None:
        """Set where the kubelet's HTTP interface is; to be called before `run`."""
        self.facts = msgspec.structs.replace(self.facts, port=port)

    def now_s(self) -> float:
        """Return the wall clock that logs are stamped with."""
        return self._cluster.clock.now()

    async def prepare(self) -> None:
        """Take the groups: left-overs of an earlier run of ours are killed and removed.

        Raises: ForeignPods when they belong to somebody else; GroupError, OSError when they cannot be made.
        """
        left = self._claims.left_over()
        if left is not None:
            if self.groups.exists():
                log.warning("removing leftovers of process %d", left.pid)
                await self.groups.remove(self.groups.root)
            if left.folder:
                shutil.rmtree(left.folder, ignore_errors=True)
        self._has_claimed = True
        folder = str(self._config.folder)
        before = left.parents if left is not None else ()
        self._parents = list(dict.fromkeys((*before, *self.groups.missing_parents())))
        self._claims.announce(folder, self._parents)
        self._config.folder.mkdir(parents=True, exist_ok=True)
        self._config.folder.chmod(0o711)  # containers of other users find their way, and only theirs
        self.groups.make_tree()
        offered = groups.of_all_pods(self.facts.allocatable_milli, self.facts.allocatable_bytes)
        self.groups.set_amounts(self.groups.root, offered)
        self._claims.confirm(folder, self._parents)
        self._share_by_class()

    async def run(self) -> NoReturn:
        """Register, then carry out pods until cancelled. `prepare` comes first."""
        try:
            await self._run()
        finally:
            await self.close()
        raise AssertionError("the loops never end by themselves")

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            self._services = self._make_services(session)
            group.create_task(self._events.run(), name="events of the process node")
            beat = Backoff(HEARTBEAT, new_rng(self._rng))
            group.create_task(
                supervise(self._heartbeat, beat, self._guard), name="heartbeat of the process node"
            )
            await self.registered.wait()
            selector = f"spec.nodeName={self._config.name}"
            pods = Informer(self._cluster, RawPod, rng=new_rng(self._rng), field_selector=selector)
            pods.add_handler(self._on_pod, lambda old, new: self._on_pod(new), self._on_gone)
            group.create_task(pods.run(), name="pods of the process node")

    def _make_services(self, session: aiohttp.ClientSession) -> Services:
        return Services(
            cluster=self._cluster,
            clock=self._cluster.clock,
            groups=self.groups,
            processes=self._host.processes,
            events=self._events,
            node_name=self._config.name,
            host_ip=self.facts.host_ip,
            folder=self._config.folder,
            allocatable=node_object.amounts(self.facts, is_allocatable=True),
            memory_bytes=self.facts.memory_bytes,
            session=session,
        )

    async def close(self) -> None:
        """Kill all pods and remove their groups and folders; nothing where `prepare` found those of others."""
        for task in self._tasks.values():
            task.cancel()
        if not self._has_claimed:
            return
        try:
            await self.groups.kill(self.groups.root)
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self.groups.remove(self.groups.root)
        except GroupError as error:
            log.error("cgroups not removed: %s", error)
            return
        self.groups.remove_parents(self._parents)
        shutil.rmtree(self._config.folder, ignore_errors=True)
        self._claims.drop()
        self._has_claimed = False

    # Pods

    def _on_pod(self, raw: RawPod) -> None:
        worker = self.workers.get(raw.metadata.uid)
        try:
            pod = KubeletPod(raw)
        except msgspec.ValidationError as error:
            log.error("pod %s not supported by this node: %s", raw.key, error)
            return
        self._known[pod.uid] = pod
        if worker is not None:
            worker.update(pod)
            return
        self._begin(pod)

    def _on_gone(self, raw: RawPod) -> None:
        self._known.pop(raw.metadata.uid, None)
        worker = self.workers.get(raw.metadata.uid)
        if worker is not None:
            worker.gone()

    def _begin(self, pod: KubeletPod) -> None:
        assert self._services is not None
        rng = new_rng(self._rng)
        worker = PodWorker(self._services, pod, self._address(pod), rng)
        if pod.raw.status.get("phase") not in OVER:
            others = [each.pod.view for each in self.workers.values() if not each.is_over]
            refused = refusal(pod.view, others, self._offered)
            if refused is not None:
                worker.reject(refused)
        self.workers[pod.uid] = worker
        self._share_by_class()
        worker.update(pod)
        self._tasks[pod.uid] = asyncio.create_task(self._carry_out(worker), name=f"pod {pod.key}")

    async def _carry_out(self, worker: PodWorker) -> None:
        problem = await self._guard.call_async(worker.run)
        uid = worker.pod.uid
        del self.workers[uid], self._tasks[uid]
        self._guard.call(self._share_by_class)
        if problem is not None and self._services is not None and uid in self._known:
            self._services.warn(worker.pod, "FailedSync", f"error syncing pod: {problem!r}")
            asyncio.get_running_loop().call_later(WORKER_RETRY_S, self._begin_again, uid)

    def _begin_again(self, uid: str) -> None:
        pod = self._known.get(uid)
        if pod is not None and uid not in self.workers and self._has_claimed:
            self._begin(pod)

    def _share_by_class(self) -> None:
        """Write the CPU shares of the classes, from what their pods request; written when they change.

        The kernel refuses shares for a group that an agent has set idle: they are written with the next change then.
        """
        pods = [worker.pod.view for worker in self.workers.values() if not worker.is_over]
        for kube_qos in CLASSES:
            wanted = groups.of_class(kube_qos, pods)
            if self._class_amounts.get(kube_qos) == wanted:
                continue
            try:
                self.groups.set_amounts(self.groups.class_group(kube_qos), wanted)
            except GroupError as error:
                log.warning("CPU shares of a QoS group not written: %s", error)
            else:
                self._class_amounts[kube_qos] = wanted

    def _address(self, pod: KubeletPod) -> str:
        """127.64.0.0/10 holds an address of its own for every pod; all lead to this machine."""
        if pod.spec.host_network:
            return self.facts.host_ip
        number = self._next_address % _POD_ADDRESSES
        self._next_address = max(number + 1, _FIRST_POD_ADDRESS)
        return f"127.{64 + number // 65_536}.{number // 256 % 256}.{number % 256}"

    # The node

    def _measured(self) -> MachineFacts:
        machine = self._host.machine
        memory = machine.memory()
        try:
            cpus = len(machine.online_cpus())
        except ContentError:
            cpus = os.cpu_count() or 1
        place = next(each for each in (self._config.folder, *self._config.folder.parents) if each.exists())
        return MachineFacts(
            name=self._config.name,
            cpu_milli=cpus * 1000,
            memory_bytes=0 if memory is None else memory.total_bytes,
            storage_bytes=shutil.disk_usage(place).total,
            reserved_milli=self._config.reserved_milli,
            reserved_bytes=self._config.reserved_bytes,
            boot_id=machine.boot_id(),
            started_s=self._cluster.clock.now(),
        )

    async def _heartbeat(self) -> float:
        now_s = self._cluster.clock.now()
        if not self.registered.is_set():
            await self._register(now_s)
            self.registered.set()
            return LEASE_S
        renewal = {"spec": kubelet.lease_renewal(now_s)}
        try:
            await self._cluster.patch(Lease, self._config.name, renewal, kubelet.LEASE_NAMESPACE)
            if now_s - self._status_written_s >= STATUS_S:
                await self._write_status(now_s)
            node = await self._cluster.get(Node, self._config.name)
        except errors.NotFound:  # somebody deleted the node or its lease: it comes back, as that of a kubelet
            await self._register(now_s)
        else:
            self._offered = node.status.allocatable
        return LEASE_S

    async def _write_status(self, now_s: float) -> None:
        """Bring our fields of the status up to date; those of others stay."""
        patch = {"status": node_object.status(self.facts, now_s)}
        await self._cluster.patch(
            Node, self._config.name, patch, patch_type=PatchType.STRATEGIC, subresource="status"
        )
        self._status_written_s = now_s

    async def _register(self, now_s: float) -> None:
        name = self._config.name
        # Where a kubelet's identity may not do this, the servers have made it themselves.
        with contextlib.suppress(errors.AlreadyExists, errors.Forbidden):
            await self._cluster.create(Namespace, {"metadata": {"name": kubelet.LEASE_NAMESPACE}})
        try:
            node = await self._cluster.create(Node, node_object.node(self.facts, now_s))
            self._status_written_s = now_s
        except errors.AlreadyExists:
            labels = {"metadata": {"labels": node_object.labels_of(self.facts)}}
            await self._cluster.patch(Node, name, labels)
            await self._write_status(now_s)
            node = await self._cluster.get(Node, name)
        lease = kubelet.lease_object(self.facts.name, node.metadata.uid, LEASE_DURATION_S, now_s)
        try:
            await self._cluster.create(Lease, lease, kubelet.LEASE_NAMESPACE)
        except errors.AlreadyExists:
            renewal = {"spec": kubelet.lease_renewal(now_s)}
            await self._cluster.patch(Lease, name, renewal, kubelet.LEASE_NAMESPACE)


_NATIVE = (resources.CPU, resources.MEMORY, resources.EPHEMERAL_STORAGE)


def refusal(pod: Pod, others: Iterable[Pod], allocatable: ResourceList) -> PodFailure | None:
    """Return why the pod is not run, None when it fits beside the others.

    `allocatable` is what the node offers now, extended resources of its Node object included; resources that it does
    not know are not asked about, as in the kubelet.
    """
    running = list(others)
    offered = resource_list.of(allocatable)
    limit = offered.get(resources.PODS)
    if limit is not None and len(running) + 1 > limit.value:
        return _refused("pods", 1, len(running), limit.value)
    used = resource_list.sum_of(pod_resources.requests(each) for each in running)
    for name, amount in sorted(pod_resources.requests(pod).items()):
        if name not in offered or amount.nanos <= 0:
            continue
        taken = used.get(name)
        in_milli = name == resources.CPU
        wanted = amount.milli if in_milli else amount.value
        present = 0 if taken is None else (taken.milli if in_milli else taken.value)
        capacity = offered[name].milli if in_milli else offered[name].value
        if wanted + present > capacity:
            return _refused(name, wanted, present, capacity)
    return None


def _refused(name: str, requested: int, used: int, capacity: int) -> PodFailure:
    text = f"Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
    return PodFailure(f"OutOf{name}", f"Pod was rejected: {text}")
