"""`FragmentationAwareArgs`. Source: behaviour/descheduler 10."""

import msgspec

from koordinator.api import resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import ViewPart
from koordinator.descheduler.config import checks
from koordinator.descheduler.pod_filter import Namespaces, PodSelector, check_namespaces


class FragmentationAwareArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that say when a node counts as unbalanced, and how much an eviction must gain."""

    paused: bool = False
    dry_run: bool = False
    node_selector: LabelSelector | None = None
    pod_selectors: list[PodSelector] = []
    evictable_namespaces: Namespaces | None = None
    node_fit: bool = True
    resources: list[str] = []
    imbalance_threshold: float = 0.15
    min_improvement_threshold: float = 0.02


def complete(args: FragmentationAwareArgs) -> FragmentationAwareArgs:
    """Return the arguments with the resources to balance."""
    return msgspec.structs.replace(args, resources=args.resources or [resources.CPU, resources.MEMORY])


def check(args: FragmentationAwareArgs) -> None:
    """Raises: ProtocolError."""
    check_namespaces(args.evictable_namespaces, "evictableNamespaces")
    checks.pod_selectors(args.pod_selectors)
    checks.selector(args.node_selector, "nodeSelector")
    checks.require(len(set(args.resources)) == len(args.resources), "resources", "one is there twice")
    checks.require(all(args.resources), "resources", "one has no name")
    checks.require(args.imbalance_threshold >= 0, "imbalanceThreshold", "is below 0")
    checks.require(args.min_improvement_threshold >= 0, "minImprovementThreshold", "is below 0")
