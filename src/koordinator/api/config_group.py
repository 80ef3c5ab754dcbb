"""Typed view of the group `config.koordinator.sh`: ClusterColocationProfile. Source: behaviour/crds 6."""

from typing import Annotated, Any, ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.schema import ATOMIC, INT32, IntOrString, one_of


class ClusterColocationProfileSpec(ViewPart, frozen=True, kw_only=True):
    """The pods that are changed on creation, and the changes."""

    namespace_selector: Annotated[
        LabelSelector | None, ATOMIC, "Namespaces whose pods are changed; all when absent or empty."
    ] = None
    selector: Annotated[LabelSelector | None, ATOMIC, "Pods that are changed; all when absent or empty."] = (
        None
    )
    probability: Annotated[
        IntOrString | None, "Chance that a matching pod is changed, such as 50 or 50%; always when absent."
    ] = None
    qos_class: Annotated[str, one_of("LSE", "LSR", "LS", "BE", "SYSTEM"), "QoS class that the pod gets."] = ""
    priority_class_name: Annotated[str, "Priority class that the pod gets, with its number."] = ""
    koordinator_priority: Annotated[int | None, INT32, "Order among pods of the same priority class."] = None
    labels: Annotated[dict[str, str], "Labels that the pod gets."] = {}
    annotations: Annotated[dict[str, str], "Annotations that the pod gets."] = {}
    label_keys_mapping: Annotated[
        dict[str, str], "Labels whose value is copied to another key, from old key to new key."
    ] = {}
    annotation_keys_mapping: Annotated[
        dict[str, str], "Annotations whose value is copied to another key, from old key to new key."
    ] = {}
    label_suffixes: Annotated[dict[str, str], "Texts appended to the values of labels."] = {}
    scheduler_name: Annotated[str, "Scheduler that places the pod."] = ""
    patch: Annotated[Any, "Strategic merge patch on the pod, applied last."] = None


class ClusterColocationProfileStatus(ViewPart, frozen=True, kw_only=True):
    """Nothing is reported yet."""


class ClusterColocationProfile(Object, frozen=True, kw_only=True):
    """Turns matching pods into co-located ones when they are created."""

    resource: ClassVar[Resource] = Resource(
        group="config.koordinator.sh",
        version="v1alpha1",
        kind="ClusterColocationProfile",
        plural="clustercolocationprofiles",
        namespaced=False,
        subresources=("status",),
    )

    spec: ClusterColocationProfileSpec = ClusterColocationProfileSpec()
    status: ClusterColocationProfileStatus = ClusterColocationProfileStatus()
