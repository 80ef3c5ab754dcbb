"""The objects in a folder of deploy/."""

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


class Deployed:
    """What `kubectl apply -k deploy/NAME` creates."""

    def __init__(self, name: str) -> None:
        folder = DEPLOY / name
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        self.objects: list[dict[str, Any]] = [
            body
            for each in kustomization["resources"]
            for body in yaml.safe_load_all((folder / each).read_text())
        ]

    def of_kind(self, kind: str) -> dict[str, Any]:
        """The first object of a kind."""
        return next(body for body in self.objects if body["kind"] == kind)

    def container(self) -> dict[str, Any]:
        """The only container of the workload."""
        workload = next(body for body in self.objects if body["kind"] in ("Deployment", "DaemonSet"))
        [found] = workload["spec"]["template"]["spec"]["containers"]
        return dict(found)

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Whether the ClusterRole allows this."""
        return any(
            group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            for rule in self.of_kind("ClusterRole")["rules"]
        )
