"""Make a pod of the lender out of one of the borrower, or say why that cannot be. Pure. Source: behaviour/tidal 5.

Fields are taken over one by one: what nobody here knows is refused rather than handed on.
"""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.priority import PriorityClass
from koordinator.virtual_node import objects
from koordinator.virtual_node.objects import Json, Lending, PodDocument

CONFIG_MAP, SECRET = "ConfigMap", "Secret"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_KEPT = _words(
    "containers initContainers volumes restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds "
    "securityContext dnsPolicy dnsConfig hostAliases imagePullSecrets shareProcessNamespace os resources"
)
_LEFT = _words(
    # Where the borrower's scheduler may put the pod, who it is there, and what follows from that.
    "nodeName nodeSelector affinity tolerations topologySpreadConstraints schedulerName schedulingGates priority "
    "priorityClassName preemptionPolicy serviceAccount serviceAccountName automountServiceAccountToken "
    "enableServiceLinks readinessGates hostname subdomain setHostnameAsFQDN overhead hostUsers"
)
_HOST = ("hostNetwork", "hostPID", "hostIPC")
_TOKEN_VOLUME = "kube-api-access-"
_BASELINE_CAPABILITIES = _words(
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID "
    "SYS_CHROOT"
)
_VOLUMES = frozenset(("emptyDir", "configMap", "secret", "projected", "downwardAPI"))
_FOREIGN = ("koordinator.sh/", "kubernetes.io/", "k8s.io/", "x-k8s.io/")


class Reference(msgspec.Struct, frozen=True, order=True):
    """A ConfigMap or Secret of the pod's namespace that the pod needs."""

    kind: str
    name: str
    is_optional: bool = False


class Sharing(msgspec.Struct, frozen=True):
    """The objects of the borrower that may be copied: patterns of `namespace/name` with `*` and `?`."""

    config_maps: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def allows(self, namespace: str, reference: Reference) -> bool:
        patterns = self.secrets if reference.kind == SECRET else self.config_maps
        return any(fnmatchcase(f"{namespace}/{reference.name}", pattern) for pattern in patterns)


def references(pod: PodDocument) -> list[Reference]:
    """Return what the pod refers to, each once, by kind and name; a reference that is needed wins over an optional
    one."""
    needed: dict[tuple[str, str], bool] = {}
    for kind, source, key in _sources(_without_tokens(pod.spec)):
        where = kind, str(source[key])
        needed[where] = needed.get(where, True) and bool(source.get("optional"))
    return [Reference(kind, name, optional) for (kind, name), optional in sorted(needed.items())]


def problems(pod: PodDocument, sharing: Sharing) -> list[str]:
    """Return why the pod cannot run in the lender, in words for its user; empty when it can."""
    spec, found = pod.spec, []
    found += [f"spec.{name} is not allowed" for name in _HOST if spec.get(name)]
    unknown = sorted(name for name in spec if name not in _KEPT | _LEFT | set(_HOST) and spec[name])
    found += [f"spec.{name} is not supported" for name in unknown]
    for volume in _without_tokens(spec).get("volumes") or []:
        found += _volume_problems(volume)
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or []:
            found += [f"container {container['name']}: {why}" for why in _container_problems(container)]
    if spec.get("ephemeralContainers"):
        found.append("ephemeral containers are not supported")
    if (spec.get("securityContext") or {}).get("sysctls"):
        found.append("spec.securityContext.sysctls is not allowed")
    for one in references(pod):
        if not one.is_optional and not sharing.allows(pod.metadata.namespace, one):
            flag = "--allow-secrets" if one.kind == SECRET else "--allow-config-maps"
            found.append(f"{one.kind} {one.name} must not leave this cluster ({flag})")
    return found


def lent_pod(pod: PodDocument, lending: Lending, node: str) -> Json:
    """Return the pod to be created in the lender, for that node of it; `pod` has no problems."""
    meta, name = pod.metadata, objects.lent_name(pod)
    spec = {key: value for key, value in _without_tokens(pod.spec).items() if key in _KEPT}
    spec = _renamed(msgspec.json.decode(msgspec.json.encode(spec)), name)
    for container in (*(spec.get("initContainers") or []), *(spec.get("containers") or [])):
        for variable in container.get("env") or []:
            _resolve(variable, pod)
    own = pod.spec.get("priorityClassName")
    free = own == PriorityClass.FREE
    spec |= {
        "hostname": objects.hostname(meta.name),
        "priorityClassName": (PriorityClass.FREE if free else PriorityClass.BATCH).value,
        "schedulerName": lending.scheduler,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _only_on(node),
    }
    kept = {key: value for key, value in meta.labels.items() if not _is_foreign(key)}
    marks = {
        labels.QOS_CLASS: "BE",
        labels.VIRTUAL_NODE_SOURCE: lending.source,
        labels.VIRTUAL_NODE_BORROWER: lending.borrower,
    }
    return {
        "metadata": {
            "name": name,
            "labels": kept | marks,
            "annotations": {
                labels.BORROWED_POD: pod.key,
                labels.BORROWED_POD_UID: meta.uid,
                labels.LENT_ON: node,
            },
        },
        "spec": spec,
    }


def _only_on(node: str) -> Json:
    """Return the affinity to one node, as the pods of a DaemonSet have it: the lender's scheduler has the last word."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _is_foreign(key: str) -> bool:
    """Return whether a label means something to programs of the lender."""
    prefix, slash, _ = key.partition("/")
    return bool(slash) and any(f".{prefix}/".endswith(f".{domain}") for domain in _FOREIGN)


def _without_tokens(spec: Mapping[str, Any]) -> Json:
    """Return a spec without the volumes of service account tokens that the borrower's API server added."""
    volumes = spec.get("volumes") or []
    tokens = {one["name"] for one in volumes if str(one["name"]).startswith(_TOKEN_VOLUME)}
    if not tokens:
        return dict(spec)

    def without(container: Mapping[str, Any]) -> Json:
        mounts = [one for one in container.get("volumeMounts") or [] if one["name"] not in tokens]
        return {**container, "volumeMounts": mounts}

    lists = {
        key: [without(one) for one in spec[key]] for key in ("containers", "initContainers") if spec.get(key)
    }
    return {**spec, **lists, "volumes": [one for one in volumes if one["name"] not in tokens]}


def _volume_problems(volume: Mapping[str, Any]) -> Iterator[str]:
    kinds = [key for key in volume if key != "name" and volume[key] is not None]
    for kind in kinds:
        if kind not in _VOLUMES:
            yield f"volume {volume['name']}: {kind} is not allowed"
    for source in (volume.get("projected") or {}).get("sources") or []:
        for kind in source:
            if kind not in ("configMap", "secret", "downwardAPI"):
                yield f"volume {volume['name']}: projected {kind} is not allowed"


def _container_problems(container: Mapping[str, Any]) -> Iterator[str]:
    security = container.get("securityContext") or {}
    if security.get("privileged"):
        yield "privileged is not allowed"
    if security.get("procMount") not in (None, "", "Default"):
        yield "procMount is not allowed"
    added = {one.removeprefix("CAP_") for one in (security.get("capabilities") or {}).get("add") or []}
    if more := sorted(added - _BASELINE_CAPABILITIES):
        yield f"capabilities {', '.join(more)} are not allowed"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield "hostPort is not allowed"
    if container.get("volumeDevices"):
        yield "volumeDevices are not allowed"
    if (container.get("resources") or {}).get("claims"):
        yield "resource claims are not supported"


_Source = tuple[str, dict[str, Any], str]
"""Kind, the JSON object that refers to one, and its member with the name."""


def _sources(spec: Mapping[str, Any]) -> Iterator[_Source]:
    """Yield everything in a spec that refers to a ConfigMap or Secret; the JSON objects themselves."""
    for one in spec.get("imagePullSecrets") or []:
        yield SECRET, one, "name"
    for volume in spec.get("volumes") or []:
        yield from _in_volume(volume, "secretName")
        for source in (volume.get("projected") or {}).get("sources") or []:
            yield from _in_volume(source, "name")
    for container in (*(spec.get("initContainers") or []), *(spec.get("containers") or [])):
        for one in container.get("envFrom") or []:
            yield from _pair(one.get("configMapRef"), one.get("secretRef"), "name")
        for variable in container.get("env") or []:
            value = variable.get("valueFrom") or {}
            yield from _pair(value.get("configMapKeyRef"), value.get("secretKeyRef"), "name")


def _in_volume(volume: Mapping[str, Any], secret_member: str) -> Iterator[_Source]:
    yield from _pair(volume.get("configMap"), volume.get("secret"), secret_member)


def _pair(config_map: Json | None, secret: Json | None, secret_member: str) -> Iterator[_Source]:
    if config_map is not None:
        yield CONFIG_MAP, config_map, "name"
    if secret is not None:
        yield SECRET, secret, secret_member


def _renamed(spec: Json, lent: str) -> Json:
    """Let a spec of ours refer to the copies; an optional object that is not there is still not there."""
    for kind, source, member in _sources(spec):
        source[member] = objects.copy_name(lent, kind, str(source[member]))
    return spec


def _resolve(variable: Json, pod: PodDocument) -> None:
    """Give a variable the value that it would have in the borrower: names there are others than in the lender."""
    field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
    value = _known_fields(pod).get(field)
    if value is None and (read := _SUBSCRIPTS.get(field.partition("[")[0])) is not None:
        value = read(pod).get(field.partition("['")[2].removesuffix("']"), "")
    if value is not None:
        del variable["valueFrom"]
        variable["value"] = value


_SUBSCRIPTS: dict[str, Callable[[PodDocument], Mapping[str, str]]] = {
    "metadata.labels": lambda pod: pod.metadata.labels,
    "metadata.annotations": lambda pod: pod.metadata.annotations,
}


def _known_fields(pod: PodDocument) -> dict[str, str]:
    meta = pod.metadata
    return {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": str(pod.spec.get("nodeName") or ""),
        "spec.serviceAccountName": str(pod.spec.get("serviceAccountName") or "default"),
    }
