"""`CustomPriorityArgs`, `FragmentationAwareArgs` and `ScaleDownBinPackArgs`. Source: behaviour/descheduler 9 to 11."""

import msgspec

from koordinator.api import resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import ViewPart
from koordinator.descheduler.config import checks

BEST_EFFORT = "BestEffort"
DRAIN_NODE = "DrainNode"


class PriorityLevel(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of nodes; the two thresholds are accepted and unused, as in the reference."""

    name: str = ""
    node_selector: LabelSelector | None = None
    keep_threshold: float | None = None
    reject_threshold: float | None = None


class CustomPriorityArgs(checks.MovingArgs, frozen=True, kw_only=True):
    """Node classes in the order in which they are emptied, and how."""

    eviction_order: list[PriorityLevel] = []
    mode: str = BEST_EFFORT
    auto_cordon: bool = False


def complete_custom_priority(args: CustomPriorityArgs) -> CustomPriorityArgs:
    """Return the arguments with the default for an empty mode."""
    return args if args.mode else msgspec.structs.replace(args, mode=BEST_EFFORT)


def check_custom_priority(args: CustomPriorityArgs) -> None:
    """Raises: ProtocolError."""
    checks.check_selected(args)
    checks.require(len(args.eviction_order) >= 2, "evictionOrder", "needs at least two levels")
    seen: set[str] = set()
    for index, level in enumerate(args.eviction_order):
        field = f"evictionOrder[{index}]"
        checks.require(bool(level.name), f"{field}.name", "is empty")
        checks.require(level.name not in seen, f"{field}.name", f"{level.name!r} is there twice")
        checks.require(level.node_selector is not None, f"{field}.nodeSelector", "is missing")
        checks.selector(level.node_selector, f"{field}.nodeSelector")
        seen.add(level.name)


class FragmentationAwareArgs(checks.MovingArgs, frozen=True, kw_only=True):
    """The options that say when a node counts as unbalanced, and how much an eviction must gain."""

    resources: list[str] = []
    imbalance_threshold: float = 0.15
    min_improvement_threshold: float = 0.02


def complete_fragmentation_aware(args: FragmentationAwareArgs) -> FragmentationAwareArgs:
    """Return the arguments with the resources to balance."""
    return msgspec.structs.replace(args, resources=args.resources or [resources.CPU, resources.MEMORY])


def check_fragmentation_aware(args: FragmentationAwareArgs) -> None:
    """Raises: ProtocolError."""
    checks.check_selected(args)
    checks.require(len(set(args.resources)) == len(args.resources), "resources", "one is there twice")
    checks.require(all(args.resources), "resources", "one has no name")
    checks.require(args.imbalance_threshold >= 0, "imbalanceThreshold", "is below 0")
    checks.require(args.min_improvement_threshold >= 0, "minImprovementThreshold", "is below 0")


CALCULATE_ONLY = "CalculateOnly"
EVICT_DIRECTLY = "EvictDirectly"
STRATEGIES = (CALCULATE_ONLY, EVICT_DIRECTLY)


class ScaleDownBinPackArgs(checks.NodePluginArgs, frozen=True, kw_only=True):
    """The options that rank pods for scale-down, and say whether they are evicted in that order."""

    strategy: str = ""
    max_pods_to_evict: int | None = None
    resources: list[str] = []
    resource_weights: dict[str, float] = {}


def complete_scale_down_bin_pack(args: ScaleDownBinPackArgs) -> ScaleDownBinPackArgs:
    """Return the arguments with resources, and a weight for each."""
    names = args.resources or [resources.CPU, resources.MEMORY]
    return msgspec.structs.replace(
        args,
        strategy=args.strategy or CALCULATE_ONLY,
        resources=names,
        resource_weights={**dict.fromkeys(names, 1.0), **args.resource_weights},
    )


def check_scale_down_bin_pack(args: ScaleDownBinPackArgs) -> None:
    """Raises: ProtocolError."""
    checks.check_selected(args)
    checks.require(args.strategy in STRATEGIES, "strategy", f"expected one of {', '.join(STRATEGIES)}")
    most = args.max_pods_to_evict
    if args.strategy == EVICT_DIRECTLY:
        checks.require(most is not None and most > 0, "maxPodsToEvict", "must be above 0 for EvictDirectly")
    for name, weight in args.resource_weights.items():
        checks.require(weight > 0, f"resourceWeights.{name}", f"{weight} is not above 0")
