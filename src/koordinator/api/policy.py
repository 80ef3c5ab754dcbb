"""Typed view of PodDisruptionBudget."""

from typing import ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.conditions import Condition
from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.schema import IntOrString


class PodDisruptionBudgetSpec(ViewPart, frozen=True, kw_only=True):
    """One of `min_available` and `max_unavailable`, as a count or as a percentage."""

    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(ViewPart, frozen=True, kw_only=True):
    """`disrupted_pods` maps pods whose eviction was granted to when (they may not yet be gone)."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, str] = {}
    observed_generation: int = 0
    conditions: list[Condition] = []


class PodDisruptionBudget(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="policy",
        version="v1",
        kind="PodDisruptionBudget",
        plural="poddisruptionbudgets",
        short_names=("pdb",),
        subresources=("status",),
    )

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
