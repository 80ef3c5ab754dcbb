"""Workloads of `apps.kruise.io`, whose replicas the descheduler looks up; a cluster may not have them."""

from typing import ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Object, Resource, ViewPart


class ReplicatedSpec(ViewPart, frozen=True, kw_only=True):
    """The fields that CloneSet and StatefulSet share."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()


class CloneSet(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="apps.kruise.io",
        version="v1alpha1",
        kind="CloneSet",
        plural="clonesets",
        short_names=("clone",),
        subresources=("status", "scale"),
    )

    spec: ReplicatedSpec = ReplicatedSpec()


class StatefulSet(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="apps.kruise.io",
        version="v1beta1",
        kind="StatefulSet",
        plural="statefulsets",
        short_names=("sts", "asts"),
        subresources=("status", "scale"),
    )

    spec: ReplicatedSpec = ReplicatedSpec()
