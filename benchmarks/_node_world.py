"""A node for benchmarks of the agent: real groups of pods with real processes in them, and a kubelet that lists them.

All groups are below one of our own, which stands for the kubelet's root; nothing else on the machine is touched.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks._groups import make_group
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout, cgroups
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroup_layout import ContainerID, Driver, Runtime
from koordinator.host.cgroups import V1_SUBSYSTEMS, Cgroups
from koordinator.host.files import Files, HostRoots

NODE = "bench"
DRIVER = Driver.CGROUPFS
_REMOVAL_TRIES = 100
_CLASSES = (KubeQoS.GUARANTEED, KubeQoS.BURSTABLE, KubeQoS.BURSTABLE, KubeQoS.BEST_EFFORT)
_LABELS = {
    KubeQoS.GUARANTEED: "LSR",
    KubeQoS.BURSTABLE: "LS",
    KubeQoS.BEST_EFFORT: "BE",
}


class BenchContainer(msgspec.Struct, frozen=True):
    """One container."""

    id: str
    group: str


class BenchPod(msgspec.Struct, frozen=True):
    """One pod: its groups, and the object that the kubelet tells of it."""

    uid: str
    kube: KubeQoS
    group: str
    containers: tuple[BenchContainer, ...]
    manifest: dict[str, Any]


class NodeWorld:
    """Groups, processes and objects of pods that come and go. `busy` is the share of containers that are active."""

    def __init__(self, pods: int, containers: int, busy: float) -> None:
        self.name = f"koordinator-bench-{os.getpid()}"
        self.roots = msgspec.structs.replace(HostRoots.below(""), kubepods_below=self.name)
        self._files = Files(0)
        self._machine = Cgroups(self._files, cgroups.detect(self._files, HostRoots.below("")))
        self._per_pod = containers
        self._busy = busy
        self._rng = random.Random(1)
        self._made = 0
        self._forker: subprocess.Popen[str] | None = None
        self.pods: dict[str, BenchPod] = {}
        self.wanted = pods
        self.objectives = 0
        """So many services name their latency, at `metrics_port` of this machine."""
        self.metrics_port = 0

    @property
    def cgroups(self) -> Cgroups:
        """Groups named as the agent names them."""
        return Cgroups(self._files, cgroups.detect(self._files, self.roots))

    @contextlib.contextmanager
    def built(self) -> Iterator[None]:
        """All of it, removed at the end whatever happens."""
        try:
            make_group(self._machine, self.name)
            for kube in KubeQoS:
                make_group(self.cgroups, cgroup_layout.class_dir(DRIVER, kube))
            self._forker = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _FORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(self.wanted):
                self.add_pod()
            yield
        finally:
            if self._forker is not None:
                self._forker.communicate()
            self._remove(self.name)

    def add_pod(self) -> BenchPod:
        """A new pod with its processes."""
        number = self._made
        self._made += 1
        kube = _CLASSES[number % len(_CLASSES)]
        uid = f"{self._rng.getrandbits(128):032x}"
        group = cgroup_layout.pod_dir(DRIVER, kube, uid)
        found = self.cgroups
        make_group(found, group)
        containers = []
        for _ in range(self._per_pod):
            own = ContainerID(Runtime.CONTAINERD, f"{self._rng.getrandbits(256):064x}")
            below = cgroup_layout.container_dir(DRIVER, group, own)
            make_group(found, below)
            if kube is KubeQoS.BURSTABLE:
                found.write(Knob.CPU_QUOTA, below, "20000")
            containers.append(BenchContainer(str(own), below))
            self._start(found, below)
        manifest = _manifest(number, uid, kube, containers)
        if kube is not KubeQoS.BEST_EFFORT and self.objectives:
            self.objectives -= 1
            manifest["metadata"]["annotations"]["koordinator.sh/latency-objective"] = _objective(
                self.metrics_port
            )
        pod = BenchPod(uid, kube, group, tuple(containers), manifest)
        self.pods[uid] = pod
        return pod

    def end_pod(self, pod: BenchPod) -> None:
        """Its processes and groups go; the kubelet no longer lists it."""
        del self.pods[pod.uid]
        self._remove(f"{self.name}/{pod.group}")

    def _start(self, found: Cgroups, group: str) -> None:
        assert self._forker is not None and self._forker.stdin is not None
        subsystems = V1_SUBSYSTEMS if found.version == V1 else ("cpu",)
        files = {f"{found.directory(group, each)}/cgroup.procs": None for each in subsystems}
        kind = "busy" if self._rng.random() < self._busy else "idle"
        self._forker.stdin.write(" ".join((kind, *(file for file in files if os.path.exists(file)))) + "\n")
        self._forker.stdin.flush()

    def _remove(self, name: str) -> None:
        found = self._machine
        subsystems = V1_SUBSYSTEMS if found.version == V1 else ("cpu",)
        groups = {each: None for subsystem in subsystems for each in found.walk(name, 8, subsystem)}
        ordered = sorted(groups, key=lambda each: -each.count("/"))
        for _ in range(_REMOVAL_TRIES):
            for each in ordered:
                for pid in found.procs(each) or ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)
            if not [each for each in ordered if found.remove(each) is not None]:
                return
            time.sleep(0.02)
        print(f"left behind: {name}", file=sys.stderr)


def _objective(port: int) -> str:
    labels = '{"handler":"/api/v1/items"}'
    source = f'{{"port":{port},"metric":"http_request_duration_seconds","labels":{labels}}}'
    return f'{{"targetMilliseconds":200,"prometheus":{source}}}'


def _manifest(number: int, uid: str, kube: KubeQoS, containers: list[BenchContainer]) -> dict[str, Any]:
    """A pod as kubelets list it, with what real ones carry besides."""
    resources: dict[str, Any] = {}
    if kube is KubeQoS.GUARANTEED:
        resources = {each: {"cpu": "100m", "memory": "128Mi"} for each in ("requests", "limits")}
    elif kube is KubeQoS.BURSTABLE:
        resources = {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "200m", "memory": "256Mi"},
        }
    else:
        batch = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
        resources = {"requests": batch, "limits": batch}
    is_batch = kube is KubeQoS.BEST_EFFORT
    names = [f"c{index}" for index in range(len(containers))]
    started = "2024-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "default",
            "uid": uid,
            "creationTimestamp": started,
            "labels": {"app": f"app-{number % 10}", "koordinator.sh/qosClass": _LABELS[kube]},
            "annotations": {"kubernetes.io/config.source": "api", "checksum/config": "0" * 64},
        },
        "spec": {
            "nodeName": NODE,
            "priority": 5500 if is_batch else 9500,
            "priorityClassName": "koord-batch" if is_batch else "koord-prod",
            "containers": [
                {
                    "name": name,
                    "image": "registry.local/app:1.0",
                    "command": ["/bin/app", "--port=80"],
                    "env": [{"name": f"VARIABLE_{index}", "value": "value"} for index in range(8)],
                    "resources": resources,
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                }
                for name in names
            ],
            "volumes": [{"name": "token", "projected": {"sources": []}}],
            "restartPolicy": "Always",
        },
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "qosClass": kube.value,
            "startTime": started,
            "conditions": [
                {"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": name,
                    "containerID": container.id,
                    "ready": True,
                    "restartCount": 0,
                    "image": "registry.local/app:1.0",
                    "imageID": "registry.local/app@sha256:" + "0" * 64,
                    "state": {"running": {"startedAt": started}},
                }
                for name, container in zip(names, containers, strict=True)
            ],
        },
    }


_FORKER = """
import mmap, os, random, signal, sys, time
pids = set()
def live(kind, files):
    for file in files:
        with open(file, "w") as procs:
            procs.write(str(os.getpid()))
    time.sleep(random.random())
    while True:
        if kind == "busy":
            held = mmap.mmap(-1, 1 << 20)
            for page in range(0, (1 << 20) * random.randint(1, 4) // 4, 4096):
                held[page] = 1
            sum(range(5000))
        time.sleep(1)
for line in sys.stdin:
    kind, *files = line.split()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pid = os.fork()
    if not pid:
        live(kind, files)
    pids.add(pid)
for pid in pids:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
"""
"""Reads lines `kind file…` and forks a process into the groups whose `cgroup.procs` are named. Busy ones use CPU and
memory that changes each second; all end with us."""
