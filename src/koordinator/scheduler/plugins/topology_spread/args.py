"""Arguments of PodTopologySpread."""

from typing import Annotated, Any, Final, Literal

import msgspec

SOFT: Final = "ScheduleAnyway"
HARD: Final = "DoNotSchedule"


class DefaultConstraint(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A constraint for pods that have none; which pods count follows from who owns the pod."""

    max_skew: Annotated[int, msgspec.Meta(gt=0)]
    topology_key: Annotated[str, msgspec.Meta(min_length=1)]
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"]
    label_selector: Any = None
    min_domains: None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None

    def __post_init__(self) -> None:
        if self.label_selector is not None:
            raise ValueError("labelSelector must not be set: pods assigned to the same owner count")


SYSTEM_DEFAULTS = (
    DefaultConstraint(3, "kubernetes.io/hostname", SOFT),
    DefaultConstraint(5, "topology.kubernetes.io/zone", SOFT),
)


class SpreadArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`defaulting_type` List uses `default_constraints`, System the built-in ones."""

    default_constraints: list[DefaultConstraint] = []
    defaulting_type: Literal["System", "List"] = "System"

    def __post_init__(self) -> None:
        if self.defaulting_type == "System" and self.default_constraints:
            raise ValueError('defaultConstraints needs defaultingType "List"')
        pairs = [(each.topology_key, each.when_unsatisfiable) for each in self.default_constraints]
        if len(set(pairs)) != len(pairs):
            raise ValueError("defaultConstraints: a topologyKey appears twice with one whenUnsatisfiable")

    @property
    def defaults(self) -> tuple[DefaultConstraint, ...]:
        return SYSTEM_DEFAULTS if self.defaulting_type == "System" else tuple(self.default_constraints)
