"""The objects that every cluster has from its first second."""

from typing import Any

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", "koordinator-system")

_CRITICAL = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if "
        "necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}

Seed = tuple[str, str, str, str, dict[str, Any]]
"""Group, version, plural, namespace and body of an object to create."""


def seeds() -> list[Seed]:
    """System objects in the order of their creation."""
    found: list[Seed] = [
        ("", "v1", "namespaces", "", {"metadata": {"name": name}}) for name in SYSTEM_NAMESPACES
    ]
    for name, (value, description) in _CRITICAL.items():
        body = {
            "metadata": {"name": name},
            "value": value,
            "description": description,
            "preemptionPolicy": "PreemptLowerPriority",
        }
        found.append(("scheduling.k8s.io", "v1", "priorityclasses", "", body))
    found += [
        ("", "v1", "serviceaccounts", namespace, {"metadata": {"name": "default"}})
        for namespace in SYSTEM_NAMESPACES
    ]
    found.append(("", "v1", "services", "default", _kubernetes_service()))
    return found


def _kubernetes_service() -> dict[str, Any]:
    return {
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.96.0.1",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    }
