"""Compare states of pods, as far as load-aware placement looks at them. Pure."""

from koordinator.scheduler.table.pod_info import PodInfo


def is_daemon(pod: PodInfo) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.pod.metadata.owner_references)


def is_estimated_alike(old: PodInfo, new: PodInfo) -> bool:
    """Return whether two states of a pod agree in containers and class (being bound changes neither)."""
    a, b = old.pod, new.pod
    return (
        old.request_amounts is new.request_amounts  # so are containers: `PodInfo.updated`
        and old.priority == new.priority
        and a.status.qos_class == b.status.qos_class
        and a.metadata.labels == b.metadata.labels
        and a.metadata.annotations == b.metadata.annotations
    )


def is_same_to_us(old: PodInfo, new: PodInfo) -> bool:
    """Return whether nothing changed that estimates, deadlines or the class depend on."""
    a, b = old.pod, new.pod
    return (
        old.request_amounts is new.request_amounts
        and a.spec == b.spec
        and a.status.conditions == b.status.conditions
        and a.metadata.labels == b.metadata.labels
        and a.metadata.annotations == b.metadata.annotations
    )
