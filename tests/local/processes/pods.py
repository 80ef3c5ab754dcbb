"""Pods as the kubelet of the process node reads them."""

from typing import Any

from koordinator.api.meta import ObjectMeta
from koordinator.local.processes.pod_spec import KubeletPod, RawPod


def container(
    name: str = "main",
    *,
    requests: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "name": name,
        "image": "busybox",
        "resources": {"requests": requests or {}, "limits": limits or {}},
    } | more


def pod(
    *containers: dict[str, Any], name: str = "web", status: dict[str, Any] | None = None, **spec: Any
) -> KubeletPod:
    meta = ObjectMeta(
        name=name, namespace="default", uid=f"uid-{name}", labels={"app": "web"}, annotations={"note": "n"}
    )
    return KubeletPod(
        RawPod(metadata=meta, spec={"containers": list(containers)} | spec, status=status or {})
    )
