"""`CustomPriorityArgs`. Source: behaviour/descheduler 9."""

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import ViewPart
from koordinator.descheduler.config import checks
from koordinator.descheduler.pod_filter import Namespaces, PodSelector, check_namespaces

BEST_EFFORT = "BestEffort"
DRAIN_NODE = "DrainNode"


class PriorityLevel(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of nodes; the two thresholds are accepted and unused, as in the reference."""

    name: str = ""
    node_selector: LabelSelector | None = None
    keep_threshold: float | None = None
    reject_threshold: float | None = None


class CustomPriorityArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Node classes in the order in which they are emptied, and how."""

    paused: bool = False
    dry_run: bool = False
    evictable_namespaces: Namespaces | None = None
    pod_selectors: list[PodSelector] = []
    node_selector: LabelSelector | None = None
    node_fit: bool = True
    eviction_order: list[PriorityLevel] = []
    mode: str = BEST_EFFORT
    auto_cordon: bool = False


def complete(args: CustomPriorityArgs) -> CustomPriorityArgs:
    """Return the arguments as they are: every default is a plain one."""
    return args


def check(args: CustomPriorityArgs) -> None:
    """Raises: ProtocolError."""
    check_namespaces(args.evictable_namespaces, "evictableNamespaces")
    checks.pod_selectors(args.pod_selectors)
    checks.selector(args.node_selector, "nodeSelector")
    checks.require(len(args.eviction_order) >= 2, "evictionOrder", "needs at least two levels")
    seen: set[str] = set()
    for index, level in enumerate(args.eviction_order):
        field = f"evictionOrder[{index}]"
        checks.require(bool(level.name), f"{field}.name", "is empty")
        checks.require(level.name not in seen, f"{field}.name", f"{level.name!r} is there twice")
        checks.require(level.node_selector is not None, f"{field}.nodeSelector", "is missing")
        checks.selector(level.node_selector, f"{field}.nodeSelector")
        seen.add(level.name)
