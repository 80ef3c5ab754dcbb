"""Directories of pods, containers and host applications in the cgroup tree.

Directories are relative to the cgroup root (v2) or to the root of a subsystem (v1), without a slash at either
end. Source: behaviour/koordlet-observe 3.2.
"""

import enum
import posixpath
from collections.abc import Collection, Mapping, Sequence

import msgspec

from koordinator.api import cpuset, qos
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo import HostApplicationSpec
from koordinator.host.errors import ContentError, LayoutError


class Driver(enum.StrEnum):
    """The kubelet's way to name cgroups."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


class Runtime(enum.StrEnum):
    """Container runtimes, as they stand before `://` in a container id."""

    DOCKER = "docker"
    CONTAINERD = "containerd"
    CRI_O = "cri-o"
    POUCH = "pouch"


class ContainerID(msgspec.Struct, frozen=True):
    """`<runtime>://<id>` in parts."""

    runtime: Runtime
    id: str

    def __str__(self) -> str:
        return f"{self.runtime}://{self.id}"


class _DriverNames(msgspec.Struct, frozen=True):
    """The directory names of one driver; pod prefixes and class directories by Kubernetes QoS."""

    class_dirs: dict[KubeQoS, str]
    pod_prefixes: dict[KubeQoS, str]
    pod_suffix: str
    scope_prefixes: dict[Runtime, str]
    scope_suffix: str


_NAMES = {
    Driver.SYSTEMD: _DriverNames(
        class_dirs={
            KubeQoS.GUARANTEED: "kubepods.slice",
            KubeQoS.BURSTABLE: "kubepods.slice/kubepods-burstable.slice",
            KubeQoS.BEST_EFFORT: "kubepods.slice/kubepods-besteffort.slice",
        },
        pod_prefixes={
            KubeQoS.GUARANTEED: "kubepods-pod",
            KubeQoS.BURSTABLE: "kubepods-burstable-pod",
            KubeQoS.BEST_EFFORT: "kubepods-besteffort-pod",
        },
        pod_suffix=".slice",
        scope_prefixes={
            Runtime.DOCKER: "docker-",
            Runtime.CONTAINERD: "cri-containerd-",
            Runtime.CRI_O: "crio-",
            Runtime.POUCH: "pouch-",
        },
        scope_suffix=".scope",
    ),
    Driver.CGROUPFS: _DriverNames(
        class_dirs={
            KubeQoS.GUARANTEED: "kubepods",
            KubeQoS.BURSTABLE: "kubepods/burstable",
            KubeQoS.BEST_EFFORT: "kubepods/besteffort",
        },
        pod_prefixes=dict.fromkeys(KubeQoS, "pod"),
        pod_suffix="",
        scope_prefixes=dict.fromkeys(Runtime, ""),
        scope_suffix="",
    ),
}
_PARSED_RUNTIMES = (Runtime.DOCKER, Runtime.CONTAINERD, Runtime.CRI_O)  # as in the reference: pouch is not
_CRI_O_PREFIX = "crio-"

_HOST_SERVICE_DIR = "host-latency-sensitive"
_HOST_BEST_EFFORT_DIR = "host-best-effort"
_HOST_CLASS_DIRS = {
    QoSClass.LSE: _HOST_SERVICE_DIR,
    QoSClass.LSR: _HOST_SERVICE_DIR,
    QoSClass.LS: _HOST_SERVICE_DIR,
    QoSClass.BE: _HOST_BEST_EFFORT_DIR,
}
_SLICE, _ROOT_SLICE = ".slice", "-.slice"
KUBEPODS_BEST_EFFORT = "KubepodsBesteffort"
_HOST_BASES = {
    "Kubepods": KubeQoS.GUARANTEED,
    "KubepodsBurstable": KubeQoS.BURSTABLE,
    KUBEPODS_BEST_EFFORT: KubeQoS.BEST_EFFORT,
}


def class_dir(driver: Driver, kube_qos: KubeQoS) -> str:
    """Directory of a Kubernetes QoS class; that of Guaranteed pods is the root of all pods."""
    return _NAMES[driver].class_dirs[kube_qos]


def pod_dir(driver: Driver, kube_qos: KubeQoS, uid: str) -> str:
    """Directory of a pod. Raises: LayoutError when the UID cannot be part of a directory's name."""
    names = _NAMES[driver]
    _check_name(uid)
    own = uid.replace("-", "_") if driver is Driver.SYSTEMD else uid
    return f"{names.class_dirs[kube_qos]}/{names.pod_prefixes[kube_qos]}{own}{names.pod_suffix}"


def parse_container_id(text: str) -> ContainerID:
    """Return the runtime and id that a container status names.

    Raises: LayoutError when there is no runtime, or one that we do not know.
    """
    runtime, separator, own = text.partition("://")
    if not separator or runtime not in _RUNTIME_NAMES:
        raise LayoutError(text, f"expected <runtime>://<id>, with runtime {', '.join(Runtime)}")
    return ContainerID(Runtime(runtime), own)


_RUNTIME_NAMES = frozenset(runtime.value for runtime in Runtime)


def container_dirname(driver: Driver, container: ContainerID) -> str:
    """Name of a container's directory within that of its pod.

    Raises: LayoutError when the id cannot be part of a directory's name.
    """
    names = _NAMES[driver]
    _check_name(container.id)
    return f"{names.scope_prefixes[container.runtime]}{container.id}{names.scope_suffix}"


def container_dir(driver: Driver, of_pod: str, container: ContainerID) -> str:
    """Directory of a container below its pod's. Raises: LayoutError as `container_dirname`."""
    return join(of_pod, container_dirname(driver, container))


def pod_uid_of_dirname(driver: Driver, dirname: str) -> str:
    """Return the UID within a pod directory's name; below systemd it has underscores in place of dashes.

    Raises: LayoutError when it is not the directory of a pod.
    """
    names = _NAMES[driver]
    for prefix in names.pod_prefixes.values():
        if dirname.startswith(prefix) and dirname.endswith(names.pod_suffix):
            return dirname[len(prefix) :].removesuffix(names.pod_suffix)
    raise LayoutError(dirname, f"not the directory of a pod below driver {driver}")


def is_pod_dir(driver: Driver, directory: str) -> bool:
    """Return whether a directory has the name of a pod's."""
    try:
        pod_uid_of_dirname(driver, posixpath.basename(directory))
    except LayoutError:
        return False
    return True


def container_id_of_dirname(driver: Driver, dirname: str) -> str:
    """Return the id within a container directory's name, without the runtime.

    Raises: LayoutError when it is not the directory of a container.
    """
    if driver is Driver.CGROUPFS:
        return dirname
    names = _NAMES[driver]
    for runtime in _PARSED_RUNTIMES:
        prefix = names.scope_prefixes[runtime]
        if dirname.startswith(prefix) and dirname.endswith(names.scope_suffix):
            return dirname[len(prefix) :].removesuffix(names.scope_suffix)
    if dirname.startswith(_CRI_O_PREFIX):  # CRI-O names the sandbox without a suffix
        return dirname.removeprefix(_CRI_O_PREFIX)
    raise LayoutError(dirname, "not the directory of a container")


def kube_qos_of_dir(directory: str) -> KubeQoS:
    """Return the Kubernetes QoS class that a directory belongs to."""
    if "besteffort" in directory:
        return KubeQoS.BEST_EFFORT
    return KubeQoS.BURSTABLE if "burstable" in directory else KubeQoS.GUARANTEED


def sandbox_id(driver: Driver, subdirs: Collection[str], containers: Sequence[ContainerID]) -> str:
    """Id of the pause container: the one directory of a pod that none of its known containers has.

    `containers` are those of the pod's status, normal ones before init containers. Empty when none has
    started yet. Raises: LayoutError when not exactly one directory is left.
    """
    if not containers:
        return ""
    known = {container_dirname(driver, container) for container in containers}
    left = [name for name in subdirs if name not in known and not _is_cri_o_scope(name)]
    if len(left) != 1:
        raise LayoutError(" ".join(sorted(left)), f"{len(left)} directories may be the sandbox, expected one")
    return str(ContainerID(containers[0].runtime, container_id_of_dirname(driver, left[0])))


def host_application_dir(driver: Driver, application: HostApplicationSpec) -> str:
    """Directory of an application that runs outside of pods.

    Raises: LayoutError when its base is unknown, or the directory is none of its own below that: what is meant for one
    application would be done to all pods of a class then.
    """
    path = application.cgroup_path
    if path is None:
        parent = _HOST_CLASS_DIRS.get(qos.of_name(application.qos), "")
        return _below(parent, application.name)
    base = ""
    if path.base in _HOST_BASES:
        base = class_dir(driver, _HOST_BASES[path.base])
    elif path.base not in ("", "CgroupRoot"):
        raise LayoutError(path.base, f"base of host application {application.name} is unknown")
    return _below(base, path.parent_dir, path.relative_path)


def smallest_cpuset(root_text: str | None, texts_by_dir: Mapping[str, str | None]) -> CPUSet:
    """Return what best-effort containers may use: the smallest set among their directories and the class's own.

    `texts_by_dir` holds the directories two levels below the class; among equals the first by path counts,
    the root last. Raises: ContentError when one is unreadable (None) or malformed, as the smallest may be it.
    """
    walk = sorted(texts_by_dir, key=lambda directory: directory.split("/"))
    return min((_cpus(text) for text in (*(texts_by_dir[each] for each in walk), root_text)), key=len)


def join(*parts: str) -> str:
    """Path of directories, cleaned of empty parts and slashes at the ends; dots cannot lead out of it.

    Raises: LayoutError.
    """
    path = "/".join([part for part in parts if part])
    if not path.startswith(("/", ".")) and "/." not in path and "//" not in path and path[-1:] != "/":
        return path  # nothing to clean, as nearly always
    path = posixpath.normpath("/".join(part.strip("/") for part in parts if part.strip("/")) or ".")
    if path.startswith(".."):
        raise LayoutError("/".join(parts), "leads out of the cgroup root")
    return "" if path == "." else path


def expanded_slice(name: str) -> str:
    """Return the path of a systemd slice from its name: `a-b.slice` lies in `a.slice` (systemd.slice(5)).

    `-.slice` is the root, the empty path; other text is answered as it is.
    """
    if name == _ROOT_SLICE:
        return ""
    if not name.endswith(_SLICE):
        return name
    parts = name.removesuffix(_SLICE).split("-")
    return "/".join(f"{'-'.join(parts[:depth])}{_SLICE}" for depth in range(1, len(parts) + 1))


def of_cgroup_parent(text: str) -> str:
    """Return the directory that a runtime is told as the cgroup parent of a pod: a path, or the name of a slice.

    Raises: LayoutError when it leads out of the cgroup root.
    """
    path = text.strip("/")
    return join(expanded_slice(path) if "/" not in path else path)


def _below(base: str, *parts: str) -> str:
    found = join(base, *parts)
    if found == base or not found.startswith(f"{base}/" if base else ""):
        raise LayoutError("/".join((base, *parts)), "is no directory below its base")
    return found


def _check_name(name: str) -> None:
    """Refuse a name that is empty or has slashes or dots of its own: it would name another group."""
    if not name or "/" in name or name in (".", ".."):
        raise LayoutError(name, "expected a name without slashes")


def _cpus(text: str | None) -> CPUSet:
    if text is None:
        raise ContentError("cpuset.cpus", "unreadable")
    try:
        return cpuset.parse(text.strip())
    except CPUSetError as error:
        raise ContentError("cpuset.cpus", str(error)) from error


def _is_cri_o_scope(name: str) -> bool:
    """CRI-O keeps its monitor next to the sandbox, in a scope; the sandbox has no suffix."""
    return name.startswith(_CRI_O_PREFIX) and name.endswith(".scope")
