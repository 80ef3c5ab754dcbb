"""Deployments and DaemonSets of the components, with their Services and disruption budgets.

Source: behaviour/api 14.1.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from koordinator.api import copilot
from koordinator.api.labels import RUNTIME_PROXY_SKIP_HOOK_SERVER
from koordinator.install.rbac import DESCHEDULER, KOORDLET, MANAGER, SCHEDULER, YARN_COPILOT, YARN_OPERATOR
from koordinator.install.values import (
    DeschedulerValues,
    ManagerValues,
    Placement,
    ResourcesValues,
    SchedulerValues,
    Values,
    YarnOperatorValues,
)

Json = dict[str, Any]

APP_LABEL = "koord-app"
WEBHOOK_SERVICE = "koordinator-webhook-service"
DEVICE_DAEMON = "koord-device-daemon"
USER_ID = 65532
"""User of nobody in particular; the images' own."""
_KERBEROS = "/etc/kerberos"
DEVICE_INFOS = "/var/run/koordlet/xpu-device-infos"


def manager(values: Values) -> Iterator[Json]:
    """Services, Deployment and budget of koord-manager."""
    own, namespace = values.manager, values.installation.namespace
    https = {"name": "https", "port": 443, "targetPort": own.webhook.port, "protocol": "TCP"}
    yield _service(WEBHOOK_SERVICE, namespace, MANAGER, [https])
    yield _metrics_service(MANAGER, namespace, own.metrics.port)
    args = [
        "--enable-leader-election",
        f"--leader-election-namespace={namespace}",
        f"--config-namespace={namespace}",
        f"--pod-enhanced-validator-config-namespace={namespace}",
        f"--metrics-addr=:{own.metrics.port}",
        f"--health-probe-addr=:{own.health_probe.port}",
        "--enable-pprof=false",
        # Services forget an instance that goes a little later than it is told to; well within the grace period.
        "--shutdown-delay-duration=3s",
        f"--v={own.log.level}",
        *([f"--feature-gates={values.feature_gates}"] if values.feature_gates else []),
        *own.extra_args,
    ]
    container = {
        "name": "manager",
        **_image_of(values, own),
        "command": ["koord-manager"],
        "args": args,
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": _field("metadata.namespace")}},
            {"name": "WEBHOOK_PORT", "value": str(own.webhook.port)},
            {"name": "SERVICE_NAME", "value": WEBHOOK_SERVICE},
        ],
        "ports": [
            {"name": "webhook", "containerPort": own.webhook.port, "protocol": "TCP"},
            {"name": "metrics", "containerPort": own.metrics.port, "protocol": "TCP"},
            {"name": "health", "containerPort": own.health_probe.port, "protocol": "TCP"},
        ],
        "readinessProbe": _probe("/readyz", "health", periodSeconds=5),
        "livenessProbe": _probe("/healthz", "health", initialDelaySeconds=15, failureThreshold=6),
        "resources": _resources_of(own.resources),
        "securityContext": _unprivileged(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    # The certificates of the webhooks, which OpenSSL reads from files only.
    volumes = [_memory("tmp", "16Mi")]
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if own.host_network else {}
    yield _deployment(values, MANAGER, own, {"containers": [container], "volumes": volumes, **network})
    if own.pod_disruption_budget.enabled:
        yield _budget(MANAGER, namespace, own.pod_disruption_budget.max_unavailable)


def scheduler(values: Values) -> Iterator[Json]:
    """Service, Deployment and budget of koord-scheduler; the ConfigMap is in `configs`."""
    own, namespace = values.scheduler, values.installation.namespace
    yield _metrics_service(SCHEDULER, namespace, own.port)
    yield _configured(values, SCHEDULER, own, [f"--port={own.port}"], _probe("/readyz", "metrics"))
    if own.pod_disruption_budget.enabled:
        yield _budget(SCHEDULER, namespace, own.pod_disruption_budget.max_unavailable)


def descheduler(values: Values) -> Iterator[Json]:
    """Service and Deployment of koord-descheduler; the ConfigMap is in `configs`."""
    own, namespace = values.descheduler, values.installation.namespace
    yield _metrics_service(DESCHEDULER, namespace, own.port)
    yield _configured(values, DESCHEDULER, own, [], _probe("/readyz", "metrics", periodSeconds=10))


def _configured(
    values: Values,
    name: str,
    own: SchedulerValues | DeschedulerValues,
    first_args: list[str],
    readiness: Json,
) -> Json:
    """Return the Deployment of a component that reads the file NAME.config, of the ConfigMap NAME-config."""
    container = {
        "name": name.removeprefix("koord-"),
        **_image_of(values, own),
        "command": [name],
        "args": [
            *first_args,
            f"--secure-port={own.secure_port}",
            "--authentication-skip-lookup=true",
            f"--v={own.log.level}",
            f"--config=/config/{name}.config",
            *([f"--feature-gates={own.feature_gates}"] if own.feature_gates else []),
            *own.extra_args,
        ],
        "ports": [
            {"name": "metrics", "containerPort": own.port, "protocol": "TCP"},
            {"name": "https", "containerPort": own.secure_port, "protocol": "TCP"},
        ],
        "readinessProbe": readiness,
        "livenessProbe": _probe("/livez", "metrics", initialDelaySeconds=15, failureThreshold=8),
        "resources": _resources_of(own.resources),
        "securityContext": _unprivileged(),
        "volumeMounts": [
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    items = [{"key": f"{name}-config", "path": f"{name}.config"}]
    config = {"name": "config", "configMap": {"name": f"{name}-config", "items": items}}
    pod = {"containers": [container], "volumes": [config, _memory("tmp", "1Mi")]}
    return _deployment(values, name, own, pod)


def yarn_operator(values: Values) -> Iterator[Json]:
    """Service and Deployment of koord-yarn-operator; the ConfigMap with the Hadoop files is the user's."""
    own, namespace = values.yarn_operator, values.installation.namespace
    yield _metrics_service(YARN_OPERATOR, namespace, own.metrics.port)
    secret = own.kerberos_secret
    args = [
        f"--leader-election-namespace={namespace}",
        f"--metrics-addr=:{own.metrics.port}",
        f"--health-probe-addr=:{own.health_probe.port}",
        "--enable-pprof=false",
        f"--yarn-share={own.yarn_share}",
        *(["--lend-once"] if own.lend_once else []),
        *([f"--kerberos-principal={own.kerberos_principal}"] if secret else []),
        *([f"--kerberos-keytab={_KERBEROS}/keytab"] if secret else []),
        f"--v={own.log.level}",
        *own.extra_args,
    ]
    mounts = [{"name": "hadoop-conf", "mountPath": "/etc/hadoop-conf", "readOnly": True}]
    volumes: list[Json] = [{"name": "hadoop-conf", "configMap": {"name": own.config_map}}]
    if secret:
        mounts.append({"name": "kerberos", "mountPath": _KERBEROS, "readOnly": True})
        volumes.append({"name": "kerberos", "secret": {"secretName": secret}})
    container = {
        "name": "yarn-operator",
        **_image_of(values, own),
        "command": [YARN_OPERATOR],
        "args": args,
        "env": [
            {"name": "HADOOP_CONF_DIR", "value": "/etc/hadoop-conf"},
            {"name": "HADOOP_USER_NAME", "value": own.user},
            *([{"name": "KRB5_CONFIG", "value": f"{_KERBEROS}/krb5.conf"}] if secret else []),
        ],
        "ports": [
            {"name": "metrics", "containerPort": own.metrics.port, "protocol": "TCP"},
            {"name": "health", "containerPort": own.health_probe.port, "protocol": "TCP"},
        ],
        "readinessProbe": _probe("/readyz", "health", periodSeconds=10),
        "livenessProbe": _probe("/healthz", "health", initialDelaySeconds=15, failureThreshold=6),
        "resources": _resources_of(own.resources),
        "securityContext": _unprivileged(),
        "volumeMounts": mounts,
    }
    yield _deployment(values, YARN_OPERATOR, own, {"containers": [container], "volumes": volumes})


def koordlet(values: Values) -> Iterator[Json]:
    """Service and DaemonSet of the node agent."""
    own, namespace = values.koordlet, values.installation.namespace
    yield _metrics_service(KOORDLET, namespace, own.port, headless=True)
    args = [
        f"-addr=:{own.port}",
        "-cgroup-root-dir=/host-cgroup/",
        f"-feature-gates={own.feature_gates}",
        "-runtime-hooks-network=unix",
        "-runtime-hooks-addr=/host-var-run-koordlet/koordlet.sock",
        "-prediction-checkpoint-filepath=/prediction-checkpoints",
        "-logtostderr=true",
        f"-v={own.log.level}",
        *own.extra_args,
    ]
    mounts, volumes = _host_paths(_KOORDLET_PATHS + ((_TERWAY,) if own.terway else ()))
    mounts += [
        {"name": "host-var-run-koordlet", "mountPath": "/var/run/koordlet/"},
        {"name": "prediction-checkpoints", "mountPath": "/prediction-checkpoints/"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    volumes += [{"name": "prediction-checkpoints", "emptyDir": {"sizeLimit": "64Mi"}}, _memory("tmp", "1Mi")]
    container = {
        "name": KOORDLET,
        **_image_of(values, own),
        "command": ["koordlet"],
        "args": args,
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": _field("spec.nodeName")}}],
        "ports": [{"name": "metrics", "containerPort": own.port, "protocol": "TCP"}],
        "readinessProbe": _probe("/readyz", "metrics", periodSeconds=10),
        "livenessProbe": _probe(
            "/healthz",
            "metrics",
            initialDelaySeconds=15,
            periodSeconds=20,
            timeoutSeconds=5,
            failureThreshold=6,
        ),
        "resources": _resources_of(own.resources),
        # Groups, resctrl, kernel settings and performance counters of the host.
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    is_linux = [
        {"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]},
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": is_linux}]}
    pod = _agent(KOORDLET) | {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "containers": [container],
        "volumes": volumes,
    }
    body = _daemon_set(values, KOORDLET, own, own.max_unavailable, pod)
    body["spec"]["minReadySeconds"] = 10
    yield body


def device_daemon(values: Values) -> Iterator[Json]:
    """DaemonSet that asks vendors' tools of the host about their accelerators."""
    own = values.device_daemon
    mounts, volumes = _host_paths(_DEVICE_DAEMON_PATHS)
    container = {
        "name": DEVICE_DAEMON,
        **_image_of(values, own),
        "command": ["koord-device-daemon"],
        "args": [
            "-host-root=/hostfs",
            "-sleep-interval=900s",
            f"-prints-output-file={DEVICE_INFOS}/ic-device",
            *own.extra_args,
        ],
        "resources": _resources_of(own.resources),
        # The tools talk to device files of the host.
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    pod: Json = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": volumes,
    }
    yield _daemon_set(values, DEVICE_DAEMON, own, "20%", pod)


def yarn_copilot(values: Values) -> Iterator[Json]:
    """Service and DaemonSet of YARN's agent."""
    own, namespace = values.yarn_copilot, values.installation.namespace
    yield _metrics_service(YARN_COPILOT, namespace, own.port, headless=True)
    mounts, volumes = _host_paths(_YARN_COPILOT_PATHS)
    container = {
        "name": YARN_COPILOT,
        **_image_of(values, own),
        "command": ["koord-yarn-copilot"],
        "args": [
            "--cgroup-root-dir=/host-cgroup/",
            f"--metrics-addr=:{own.port}",
            f"--v={own.log.level}",
            *own.extra_args,
        ],
        "ports": [{"name": "metrics", "containerPort": own.port, "protocol": "TCP"}],
        "livenessProbe": _probe("/healthz", "metrics", initialDelaySeconds=15, periodSeconds=20),
        "resources": _resources_of(own.resources),
        # Signals to processes outside of the container: the default AppArmor profile forbids them.
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    pod = _agent(YARN_COPILOT) | {"containers": [container], "volumes": volumes}
    yield _daemon_set(values, YARN_COPILOT, own, "20%", pod)


def _agent(account: str) -> Json:
    """Return the settings of pods that look at the processes of their node."""
    return {
        "serviceAccountName": account,
        "priorityClassName": "system-node-critical",
        "terminationGracePeriodSeconds": 10,
        "hostNetwork": True,
        "hostPID": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
    }


class _HostPath(msgspec.Struct, frozen=True):
    """A directory of the host in the container. docs/run-the-node-agent.md tells what each is for."""

    name: str
    host: str
    mount: str
    propagation: str = ""
    read_only: bool = False
    made: bool = False


_TO_CONTAINER = "HostToContainer"
_KOORDLET_PATHS = (
    _HostPath("host-cgroup-root", "/sys/fs/cgroup/", "/host-cgroup/", _TO_CONTAINER),
    # Both ways: resctrl and blkio groups that the agent mounts there are for the host, too.
    _HostPath("host-sys-fs", "/sys/fs/", "/host-sys-fs/", "Bidirectional"),
    # Writable: memory-management settings, cold page scanning and features of the scheduler are below it.
    _HostPath("host-sys", "/sys/", "/host-sys/", _TO_CONTAINER),
    _HostPath("host-var-run", "/var/run/", "/host-var-run/", _TO_CONTAINER, read_only=True),
    _HostPath("host-run", "/run/", "/host-run/", _TO_CONTAINER),
    _HostPath("host-var-run-koordlet", "/var/run/koordlet/", "/host-var-run-koordlet/", made=True),
    _HostPath(
        "host-kubelet-rootdir", "/var/lib/kubelet/", "/var/lib/kubelet/", _TO_CONTAINER, read_only=True
    ),
    _HostPath("host-etc-hookserver", "/etc/runtime/hookserver.d/", "/host-etc-hookserver/", made=True),
    _HostPath("audit-log", "/var/log/koordlet/", "/var/log/koordlet/", made=True),
)
_TERWAY = _HostPath("host-terway-qos", "/var/lib/terway/qos/", "/host-var-lib/terway/qos/", made=True)
_YARN_COPILOT_PATHS = (
    _HostPath("host-cgroup-root", "/sys/fs/cgroup/", "/host-cgroup/", _TO_CONTAINER),
    _HostPath("yarn-copilot", copilot.SOCKETS, copilot.SOCKETS, made=True),
)
_DEVICE_DAEMON_PATHS = (
    _HostPath("host-root", "/", "/hostfs", _TO_CONTAINER),
    _HostPath("device-infos", DEVICE_INFOS, DEVICE_INFOS, made=True),
)


def _host_paths(paths: tuple[_HostPath, ...]) -> tuple[list[Json], list[Json]]:
    """(mounts, volumes)."""
    mounts: list[Json] = []
    for path in paths:
        mount: Json = {"name": path.name, "mountPath": path.mount}
        if path.propagation:
            mount["mountPropagation"] = path.propagation
        if path.read_only:
            mount["readOnly"] = True
        mounts.append(mount)
    volumes = [
        {
            "name": path.name,
            "hostPath": {"path": path.host, "type": "DirectoryOrCreate" if path.made else "Directory"},
        }
        for path in paths
    ]
    return mounts, volumes


def _deployment(
    values: Values,
    name: str,
    own: ManagerValues | SchedulerValues | DeschedulerValues | YarnOperatorValues,
    pod: Json,
) -> Json:
    """Return a Deployment whose new pods are ready before old ones go."""
    labels = {APP_LABEL: name}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    spread = [{"weight": 100, "podAffinityTerm": term}]
    spec: Json = {
        "serviceAccountName": name,
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": 10,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": spread}},
        **pod,
    }
    if own.tolerations:
        spec["tolerations"] = own.tolerations
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": values.installation.namespace, "labels": dict(labels)},
        "spec": {
            "replicas": own.replicas,
            "selector": {"matchLabels": labels},
            # The old instances stay until the new ones are ready.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}},
            "template": {"metadata": {"labels": dict(labels)}, "spec": _common(values, own, spec)},
        },
    }


def _daemon_set(values: Values, name: str, own: Placement, max_unavailable: object, pod: Json) -> Json:
    labels = {APP_LABEL: name}
    spec = {**pod, "tolerations": [{"operator": "Exists"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": values.installation.namespace, "labels": dict(labels)},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": max_unavailable}},
            # With policy Fail the runtime proxy would wait for koordlet before it lets koordlet start.
            "template": {
                "metadata": {"labels": {**labels, RUNTIME_PROXY_SKIP_HOOK_SERVER: "true"}},
                "spec": _common(values, own, spec),
            },
        },
    }


def _common(values: Values, own: Placement, spec: Json) -> Json:
    if own.node_selector:
        spec["nodeSelector"] = own.node_selector
    if values.image.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in values.image.pull_secrets]
    return spec


def _image_of(values: Values, own: Placement) -> Json:
    """Return the image of a container, and when it is pulled."""
    registry = f"{values.image.registry}/" if values.image.registry else ""
    return {
        "image": f"{registry}{own.image.repository}:{own.image.tag or values.image.tag}",
        "imagePullPolicy": values.image.pull_policy,
    }


def _resources_of(resources: ResourcesValues) -> Json:
    """Return the resources of a container."""
    found: Mapping[str, Mapping[str, Any]] = {"requests": resources.requests, "limits": resources.limits}
    return {name: dict(amounts) for name, amounts in found.items() if amounts}


def _unprivileged() -> Json:
    """Return the security context of a container that needs no rights."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _probe(path: str, port: str, **settings: int) -> Json:
    """Return a probe by HTTP."""
    return {"httpGet": {"path": path, "port": port}, **settings}


def _field(path: str) -> Json:
    """Return a `fieldRef`. Server-side apply owns it as a whole, so it has to name what the API server would fill in:
    an installation that came by other means has it, and would be in conflict with one that lacks it."""
    return {"apiVersion": "v1", "fieldPath": path}


def _memory(name: str, limit: str) -> Json:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}


def _service(name: str, namespace: str, app: str, ports: list[Json], *, headless: bool = False) -> Json:
    spec: Json = {"selector": {APP_LABEL: app}, "ports": ports}
    if headless:
        spec["clusterIP"] = "None"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {APP_LABEL: app}},
        "spec": spec,
    }


def _metrics_service(app: str, namespace: str, port: int, *, headless: bool = False) -> Json:
    """Return the Service by which metrics of a component are collected."""
    ports = [{"name": "metrics", "port": port, "targetPort": "metrics", "protocol": "TCP"}]
    return _service(f"{app}-metrics", namespace, app, ports, headless=headless)


def _budget(name: str, namespace: str, max_unavailable: int) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"maxUnavailable": max_unavailable, "selector": {"matchLabels": {APP_LABEL: name}}},
    }
