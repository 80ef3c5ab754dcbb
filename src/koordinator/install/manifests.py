"""Plain manifests: one folder per part, with kustomizations."""

from typing import Any

from koordinator.api import crd
from koordinator.install import chart, objects
from koordinator.install.dashboards import dashboards
from koordinator.install.objects import ObjectGroup, parts
from koordinator.install.text import documents, text
from koordinator.install.values import EVERYTHING, Values

Json = dict[str, Any]
Files = dict[str, str]
"""Path, relative to the folder → content."""

HEADER = "# Made by `make manifests` from src/koordinator/install; change it there.\n"
OPTIONAL = ("descheduler", "yarn-operator", "device-daemon", "yarn-copilot", "monitoring")
"""Parts that are off by default; in the repository each is a kustomization to be applied by itself."""

_FILES = {
    "Namespace": "namespace",
    "PriorityClass": "priorityclasses",
    "ConfigMap": "configmap",
    "ServiceAccount": "rbac",
    "ClusterRole": "rbac",
    "ClusterRoleBinding": "rbac",
    "Role": "rbac",
    "RoleBinding": "rbac",
    "MutatingWebhookConfiguration": "webhooks",
    "ValidatingWebhookConfiguration": "webhooks",
    "Service": "service",
    "Deployment": "deployment",
    "DaemonSet": "daemonset",
    "PodDisruptionBudget": "poddisruptionbudget",
    "ServiceMonitor": "servicemonitors",
}


def folder(values: Values) -> Files:
    """Return a folder for `kubectl apply -k`, or for a repository from which a cluster is kept."""
    found = parts(values)
    files = _of_parts(found)
    bases = [part.name for part in found if part.name != "crds"]
    crds = sorted(path for path in files if path.startswith("crds/"))
    files["kustomization.yaml"] = _kustomization([*crds, *bases])
    return files


def repository() -> Files:
    """Return what `deploy/` holds besides hand-written files: the defaults, optional parts, dashboards, and files of
    the chart."""
    files = folder(Values())
    files |= _of_parts([part for part in parts(EVERYTHING) if part.name in OPTIONAL])
    files |= {f"chart/{chart.NAME}/{name}": text for name, text in chart.files().items()}
    files |= {f"dashboards/{name}.json": objects.text(body) for name, body in dashboards().items()}
    return files


def _of_parts(found: list[ObjectGroup]) -> Files:
    files: Files = {}
    for part in found:
        if part.name == "crds":
            files |= {f"crds/{crd.file_name(body)}": text(body) for body in part.objects}
            continue
        by_file: dict[str, list[Json]] = {}
        for body in part.objects:
            by_file.setdefault(f"{_FILES[body['kind']]}.yaml", []).append(body)
        files |= {f"{part.name}/{name}": HEADER + documents(bodies) for name, bodies in by_file.items()}
        files[f"{part.name}/kustomization.yaml"] = _kustomization(list(by_file))
    return files


def _kustomization(resources: list[str]) -> str:
    body = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }
    return HEADER + text(body)
