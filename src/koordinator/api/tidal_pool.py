"""Typed view of TidalPool: nodes that services lend to batch work as a whole, by the time of day or by load.

Source: behaviour/tidal 3. The defaults are filled in by the API server, and by the
manager where that did not.
"""

from typing import Annotated, ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Object, Resource, StandardCondition, ViewPart
from koordinator.api.schema import (
    ATOMIC,
    ATOMIC_LIST,
    DATE_TIME,
    INT32,
    REQUIRED,
    IntOrString,
    Rules,
    always,
    at_least,
    between,
    default,
    limits,
    one_of,
)

SCALE_IN_BELOW_PERCENT, SCALE_OUT_ABOVE_PERCENT, LOAD_WINDOW = 45, 65, "15m"
GRACE_PERIOD, MAX_UNAVAILABLE, DRAIN_TIMEOUT = "5m", 1, "30m"
LEAD_TIME, COOLDOWN, MAX_NODES_PER_STEP, TIME_ZONE = "30m", "10m", 1, "UTC"

CHECKPOINT, KILL = "Checkpoint", "Kill"
BY_BUDGET, SURGE = "PDB", "Surge"
ONLINE_SIDE, BATCH_SIDE = "Online", "Batch"

_SHARE = Rules(members={"pattern": r"^[0-9]{1,9}%$", "minimum": 0})
"""A number of nodes, or a percentage of the members."""
_DURATION = limits(min_length=1, max_length=32, pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$")


class TidalWindow(ViewPart, frozen=True, kw_only=True):
    """A time in which nodes are lent."""

    start: Annotated[
        str, REQUIRED, limits(min_length=1), "When it opens: five fields of cron, in spec.timeZone."
    ] = always("")
    duration: Annotated[str, REQUIRED, _DURATION, "How long it is open, such as 6h."] = always("")
    batch_nodes: Annotated[
        IntOrString,
        REQUIRED,
        _SHARE,
        "Nodes in batch phase meanwhile: a number, or a percentage of the members.",
    ] = always(0)


class TidalLoad(ViewPart, frozen=True, kw_only=True):
    """Lends and returns nodes by what online pods request of the nodes in online phase."""

    scale_in_below_percent: Annotated[
        int | None,
        INT32,
        between(0, 100),
        default(SCALE_IN_BELOW_PERCENT),
        "One node more is lent while the load without it stays below.",
    ] = None
    scale_out_above_percent: Annotated[
        int | None,
        INT32,
        between(1, 100),
        default(SCALE_OUT_ABOVE_PERCENT),
        "One node returns while the load is above.",
    ] = None
    window: Annotated[str, _DURATION, default(LOAD_WINDOW), "How long the load must have stayed low."] = ""


class TidalDrain(ViewPart, frozen=True, kw_only=True):
    """The rules for emptying nodes."""

    grace_period: Annotated[
        str, _DURATION, default(GRACE_PERIOD), "Time that batch pods have to end when their node returns."
    ] = ""
    batch_policy: Annotated[
        str,
        one_of(CHECKPOINT, KILL),
        default(CHECKPOINT),
        "Checkpoint: batch pods have the grace period; Kill: only their own termination grace period.",
    ] = ""
    online_budget: Annotated[
        str,
        one_of(BY_BUDGET, SURGE),
        default(BY_BUDGET),
        "PDB: online pods are evicted within disruption budgets; Surge: the successor is ready before the pod goes.",
    ] = ""
    max_unavailable: Annotated[
        int,
        INT32,
        at_least(1),
        default(MAX_UNAVAILABLE),
        "Pods of one workload that move away at the same time.",
    ] = 0
    timeout: Annotated[
        str, _DURATION, default(DRAIN_TIMEOUT), "A node whose online pods have not left by then stays online."
    ] = ""


class TidalPoolSpec(ViewPart, frozen=True, kw_only=True):
    """The nodes of the pool, and when they are lent."""

    node_selector: Annotated[LabelSelector, REQUIRED, ATOMIC, "Members of the pool."] = always(
        LabelSelector()
    )
    online_reserve: Annotated[
        IntOrString,
        _SHARE,
        default(0),
        "Nodes that always stay online: a number, or a percentage, rounded up.",
    ] = 0
    batch_reserve: Annotated[
        IntOrString,
        _SHARE,
        default(0),
        "Nodes that are always lent: a number, or a percentage, rounded down.",
    ] = 0
    schedule: Annotated[
        list[TidalWindow], ATOMIC_LIST, "When nodes are lent; without, the load alone decides."
    ] = []
    time_zone: Annotated[str, default(TIME_ZONE), "IANA time zone of the schedule."] = ""
    load: Annotated[
        TidalLoad | None, "Follow the load of the online pods; with a schedule, below what that lends."
    ] = None
    lead_time: Annotated[
        str, _DURATION, default(LEAD_TIME), "How long before the end of a window nodes begin to return."
    ] = ""
    drain: Annotated[TidalDrain, default({}), "How nodes are emptied."] = TidalDrain()
    max_nodes_per_step: Annotated[
        IntOrString,
        _SHARE,
        default(MAX_NODES_PER_STEP),
        "Nodes that may change sides at the same time; at least one.",
    ] = 0
    cooldown: Annotated[
        str, _DURATION, default(COOLDOWN), "Time that a node stays in a phase, except in an emergency."
    ] = ""
    online_pod_selector: Annotated[
        LabelSelector | None,
        ATOMIC,
        "Pods that count as online; by default those of class koord-prod, koord-mid or none.",
    ] = None
    suspend: Annotated[bool, default(False), "Whether no node more is lent; nodes still return."] = False
    drain_all: Annotated[
        str,
        one_of("", ONLINE_SIDE, BATCH_SIDE),
        "Bring all nodes but the reserves to one side, whatever the time.",
    ] = ""
    katalyst_labels: Annotated[
        bool,
        default(False),
        "Take nodes over as Katalyst's labels say, and keep these in step; pods of pod-type online count as online.",
    ] = False


class TidalPhaseCounts(ViewPart, frozen=True, kw_only=True):
    """Nodes by phase; reserved ones are counted in their phase, too."""

    online: Annotated[int, "Nodes that serve online pods."] = always(0)
    to_batch: Annotated[int, "Nodes that online pods are leaving."] = always(0)
    batch: Annotated[int, "Nodes that are lent."] = always(0)
    to_online: Annotated[int, "Nodes that batch pods are leaving."] = always(0)
    reserved_online: Annotated[int, "Nodes that always stay online."] = always(0)
    reserved_batch: Annotated[int, "Nodes that are always lent."] = always(0)


class TidalNodeStatus(ViewPart, frozen=True, kw_only=True):
    """A node that is not simply online."""

    name: Annotated[str, REQUIRED, "Name of the node."] = always("")
    phase: Annotated[str, REQUIRED, "online, to-batch, batch or to-online."] = always("")
    since: Annotated[str | None, DATE_TIME, "When it entered the phase."] = None
    reason: Annotated[str, "Why it is in that phase, or what keeps it there."] = ""


class TidalPoolStatus(ViewPart, frozen=True, kw_only=True):
    """The state of the pool, and what the controller wants of it."""

    observed_generation: Annotated[int, "Generation of the spec that this is about."] = 0
    members: Annotated[int, "Nodes that match, are ready and not cordoned."] = always(0)
    phases: Annotated[TidalPhaseCounts, "Nodes by phase."] = always(TidalPhaseCounts())
    target: Annotated[int, "Nodes that should be lent, besides the batch reserve."] = always(0)
    target_reason: Annotated[str, "The rule that set the target."] = ""
    next_transition: Annotated[str | None, DATE_TIME, "When the schedule changes the target next."] = None
    hold_until: Annotated[
        str | None, DATE_TIME, "No node is lent before, because nodes returned in an emergency."
    ] = None
    nodes: Annotated[list[TidalNodeStatus], ATOMIC_LIST, "All nodes but those that are simply online."] = []
    conditions: Annotated[list[StandardCondition], "Ready, Conflict, EmergencyReturn and DrainBlocked."] = []


class TidalPool(Object, frozen=True, kw_only=True):
    """Nodes that services lend to batch work as a whole, by the time of day or by load."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.koordinator.sh",
        version="v1alpha1",
        kind="TidalPool",
        plural="tidalpools",
        namespaced=False,
        short_names=("tp",),
        subresources=("status",),
    )

    spec: TidalPoolSpec = TidalPoolSpec()
    status: TidalPoolStatus = TidalPoolStatus()
