"""`ScaleDownBinPackArgs`. Source: behaviour/descheduler 11."""

import msgspec

from koordinator.api import resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import ViewPart
from koordinator.descheduler.config import checks
from koordinator.descheduler.pod_filter import Namespaces, PodSelector, check_namespaces

CALCULATE_ONLY = "CalculateOnly"
EVICT_DIRECTLY = "EvictDirectly"
STRATEGIES = (CALCULATE_ONLY, EVICT_DIRECTLY)


class ScaleDownBinPackArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that rank pods for scale-down, and say whether they are evicted in that order."""

    paused: bool = False
    strategy: str = ""
    max_pods_to_evict: int | None = None
    node_selector: LabelSelector | None = None
    pod_selectors: list[PodSelector] = []
    evictable_namespaces: Namespaces | None = None
    resources: list[str] = []
    resource_weights: dict[str, float] = {}


def complete(args: ScaleDownBinPackArgs) -> ScaleDownBinPackArgs:
    """Return the arguments with resources, and a weight for each."""
    names = args.resources or [resources.CPU, resources.MEMORY]
    return msgspec.structs.replace(
        args,
        strategy=args.strategy or CALCULATE_ONLY,
        resources=names,
        resource_weights={**dict.fromkeys(names, 1.0), **args.resource_weights},
    )


def check(args: ScaleDownBinPackArgs) -> None:
    """Raises: ProtocolError."""
    check_namespaces(args.evictable_namespaces, "evictableNamespaces")
    checks.pod_selectors(args.pod_selectors)
    checks.selector(args.node_selector, "nodeSelector")
    checks.require(args.strategy in STRATEGIES, "strategy", f"expected one of {', '.join(STRATEGIES)}")
    most = args.max_pods_to_evict
    if args.strategy == EVICT_DIRECTLY:
        checks.require(most is not None and most > 0, "maxPodsToEvict", "must be above 0 for EvictDirectly")
    for name, weight in args.resource_weights.items():
        checks.require(weight > 0, f"resourceWeights.{name}", f"{weight} is not above 0")
