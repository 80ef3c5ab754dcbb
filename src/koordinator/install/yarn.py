"""The Service and Deployment of koord-yarn-operator."""

from collections.abc import Iterator
from typing import Any

from koordinator.install.rbac import YARN_OPERATOR
from koordinator.install.values import Values
from koordinator.install.workloads import (
    deployment,
    image_of,
    metrics_service,
    probe,
    resources_of,
    unprivileged,
)

Json = dict[str, Any]
_KERBEROS = "/etc/kerberos"


def operator(values: Values) -> Iterator[Json]:
    """Service and Deployment of koord-yarn-operator; the ConfigMap with the Hadoop files is the user's."""
    own, namespace = values.yarn_operator, values.installation.namespace
    yield metrics_service(YARN_OPERATOR, namespace, own.metrics.port)
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
        **image_of(values, own),
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
        "readinessProbe": probe("/readyz", "health", periodSeconds=10),
        "livenessProbe": probe("/healthz", "health", initialDelaySeconds=15, failureThreshold=6),
        "resources": resources_of(own.resources),
        "securityContext": unprivileged(),
        "volumeMounts": mounts,
    }
    yield deployment(
        values,
        YARN_OPERATOR,
        own.replicas,
        own,
        own.tolerations,
        pod={
            "containers": [container],
            "volumes": volumes,
        },
    )
