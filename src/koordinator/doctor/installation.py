"""Find how the components run: Deployments and DaemonSets, with their flags and images."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from koordinator.api.apps import DaemonSet, Deployment
from koordinator.api.core import Container, Pod, PodTemplateSpec
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGateError, FeatureGates
from koordinator.install import rbac
from koordinator.install.workloads import APP_LABEL
from koordinator.koordlet import gates
from koordinator.manager.webhooks import configuration

LOCAL_BUILD = "+koordinator"
"""Suffix of the version of the API server of `koordinator up`: there, components are tasks of its process."""


class ComponentName(enum.StrEnum):
    """Components, by the names of their workloads."""

    MANAGER = rbac.MANAGER
    SCHEDULER = rbac.SCHEDULER
    DESCHEDULER = rbac.DESCHEDULER
    YARN_OPERATOR = rbac.YARN_OPERATOR
    KOORDLET = rbac.KOORDLET


class ComponentWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A component's Deployment or DaemonSet. Counts are pods; `flags` are those of the first container."""

    component: ComponentName
    obj: Deployment | DaemonSet
    template: PodTemplateSpec
    wanted: int
    ready: int
    updated: int
    pods: tuple[Pod, ...] = ()
    flags: Mapping[str, str] = {}

    @property
    def images(self) -> tuple[str, ...]:
        """Images of the template's containers."""
        return tuple(container.image for container in self.template.spec.containers)

    @property
    def service_account(self) -> str:
        """Return the name of the account whose permissions the pods have."""
        return self.template.spec.service_account_name or "default"


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The workloads found in the components' namespace.

    `is_local` tells that the API server is that of `koordinator up`, `local_gates` are the feature gates of its
    manager as a flag gives them, None when they are not known. `elsewhere` are other namespaces with
    pods of the components.
    """

    is_local: bool = False
    local_gates: str | None = None
    workloads: Mapping[ComponentName, ComponentWorkload] = {}
    elsewhere: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        namespace: str,
        server_version: str,
        deployments: Sequence[Deployment],
        daemon_sets: Sequence[DaemonSet],
        pods: Sequence[Pod],
        local_gates: str | None = None,
    ) -> Self:
        """Return the installation that the objects describe."""
        members: dict[str, list[Pod]] = {}
        elsewhere = set()
        for pod in pods:
            app = pod.metadata.labels.get(APP_LABEL, "")
            if not app:
                continue
            if pod.metadata.namespace == namespace:
                members.setdefault(app, []).append(pod)
            elif app in list(ComponentName):
                elsewhere.add(pod.metadata.namespace)
        found: dict[ComponentName, ComponentWorkload] = {}
        objects: list[Deployment | DaemonSet] = [*deployments, *daemon_sets]
        for obj in objects:
            component = _component(obj)
            if component is not None:
                found[component] = _workload(component, obj, members.get(component, []))
        return cls(
            is_local=server_version.endswith(LOCAL_BUILD),
            local_gates=local_gates,
            workloads=found,
            elsewhere=tuple(sorted(elsewhere)),
        )

    def get(self, component: ComponentName) -> ComponentWorkload | None:
        """Return the workload of a component, None when there is none."""
        return self.workloads.get(component)

    def is_in_process(self, component: ComponentName) -> bool:
        """Return whether the component is a task of `koordinator up`: it works without a workload, and without a lease.
        Pods of a workload that is there nevertheless run nothing, as nodes are hollow."""
        return self.is_local and component not in (ComponentName.DESCHEDULER, ComponentName.YARN_OPERATOR)

    @property
    def manager_flags(self) -> Mapping[str, str]:
        """Flags of the manager, none when they are not known."""
        found = self.get(ComponentName.MANAGER)
        return found.flags if found is not None else {}

    @property
    def webhook_secret_name(self) -> str:
        """Return the Secret that holds the certificates of the webhooks, as the manager's environment says."""
        found = self.get(ComponentName.MANAGER)
        named = [
            variable.value
            for container in (found.template.spec.containers if found is not None else ())
            for variable in container.env
            if variable.name == "SECRET_NAME" and variable.value
        ]
        return named[0] if named else configuration.SECRET_NAME

    def manager_gate(self, name: str) -> bool | None:
        """Return whether a feature gate of the manager is on, None when its flags are not known."""
        found = self.get(ComponentName.MANAGER)
        if self.is_local or found is None:
            flag = self.local_gates  # of the manager that is at work, whatever workloads are there
        else:
            flag = found.flags.get("feature-gates", "")
        if flag is None:
            return None
        try:
            return FeatureGates.of(Component.MANAGER, flag).is_on(name)
        except FeatureGateError:
            return None  # the manager does not start with them, and its own log says why

    def agent_gates(self) -> FeatureGates | None:
        """Return the feature gates of the node agents, None when their flags are not known."""
        found = self.get(ComponentName.KOORDLET)
        if self.is_local or found is None:
            return None
        try:
            return gates.of(found.flags.get("feature-gates", ""))
        except FeatureGateError:
            return None  # the agent does not start with them, and its own log says why


def _component(obj: Deployment | DaemonSet) -> ComponentName | None:
    """By label, else by name."""
    for text in (obj.metadata.labels.get(APP_LABEL), obj.metadata.name):
        if text in list(ComponentName):
            return ComponentName(text)
    return None


def _workload(
    component: ComponentName, obj: Deployment | DaemonSet, pods: Sequence[Pod]
) -> ComponentWorkload:
    template = _template(obj.spec.template)
    if isinstance(obj, Deployment):
        counts = (obj.spec.replicas, obj.status.ready_replicas, obj.status.updated_replicas)
    else:
        status = obj.status
        counts = (status.desired_number_scheduled, status.number_ready, status.updated_number_scheduled)
    wanted, ready, updated = counts
    containers = template.spec.containers
    return ComponentWorkload(
        component=component,
        obj=obj,
        template=template,
        wanted=wanted,
        ready=ready,
        updated=updated,
        pods=tuple(pods),
        flags=flags_of(containers[0]) if containers else {},
    )


def _template(body: dict[str, Any]) -> PodTemplateSpec:
    try:
        return from_builtins(body, PodTemplateSpec)
    except msgspec.ValidationError:
        return PodTemplateSpec()  # the API server has checked it; whatever it means, we cannot read it


def flags_of(container: Container) -> dict[str, str]:
    """`--name=value` and `--name value` of the command line, without dashes; a lone flag is `true`."""
    words = [*container.command, *container.args]
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        if not has_value:
            follower = words[index + 1] if index + 1 < len(words) else "-"
            value = "true" if follower.startswith("-") else follower
        found[name] = value
    return found
