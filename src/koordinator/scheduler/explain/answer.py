"""The parts of an explanation: plain values, the same from a live scheduler and from a dump."""

import enum

import msgspec

NAMED_MAX = 3
"""Names in a sentence, of several."""
BEST_NODES = 5
"""Nodes in the score table, where nobody asks for more or fewer."""


class AnswerPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One piece of an answer."""


class PodVerdict(enum.StrEnum):
    """The fate of a pod."""

    BOUND = "Bound"
    """It has a node already."""
    SCHEDULABLE = "Schedulable"
    """The next cycle would place it."""
    PREEMPTION = "SchedulableAfterPreemption"
    """No node takes it as it is, but evicting less important pods makes room."""
    WAITING = "WaitingForGang"
    """It holds a place, and is bound once enough members of its gang do."""
    UNSCHEDULABLE = "Unschedulable"
    UNDECIDED = "Undecided"
    """To find out would hold up the scheduler for too long."""
    GATED = "Gated"
    """It may not even enter the queue."""
    ERROR = "Error"
    """A plugin or an object is broken; neither yes nor no."""
    FINISHED = "Finished"
    """It ran to its end, or is being deleted: nobody looks for a node."""
    FOREIGN = "NotOurs"
    """It asks for a scheduler that this one is not."""


class ReasonCount(AnswerPart, frozen=True, kw_only=True):
    """One refusal and the nodes that it concerns. Nodes with several refusals count for each of them.

    `alone_count` counts nodes where no other plugin objects; `facts` are the figures behind the refusal on the first of
    `examples`.
    """

    reason: str
    plugin: str
    node_count: int
    alone_count: int
    examples: list[str]
    preemption_might_help: bool
    facts: list[str] = []


class PluginAnswer(AnswerPart, frozen=True, kw_only=True):
    """The answer of one plugin, about the pod as a whole or about one node."""

    plugin: str
    verdict: str
    """`fits`, `refuses` or `takes no part`."""
    reasons: list[str] = []
    preemption_might_help: bool = False
    details: list[str] = []


class ResourceLine(AnswerPart, frozen=True, kw_only=True):
    """Amounts of one resource on a node as quantity texts; `short_by` is empty when there is enough."""

    resource: str
    wanted: str
    allocatable: str
    requested: str
    free: str
    short_by: str = ""


class NodeAnswer(AnswerPart, frozen=True, kw_only=True):
    """One node: every plugin's answer, not only the first refusal."""

    node: str
    fits: bool
    plugins: list[PluginAnswer]
    resources: list[ResourceLine]
    pod_count: int
    pods_max: int


class PluginScore(AnswerPart, frozen=True, kw_only=True):
    """A plugin's share of a node's score: weight × normalised."""

    plugin: str
    raw: int
    normalised: int
    weight: int


class ScoredNode(AnswerPart, frozen=True, kw_only=True):
    """A node that fits, and how much it is preferred."""

    node: str
    total: int
    shares: list[PluginScore]


class NodeVictims(AnswerPart, frozen=True, kw_only=True):
    """Pods (`namespace/name`) whose eviction makes room on a node."""

    node: str
    pods: list[str]
    budget_violations: int


class PreemptionAnswer(AnswerPart, frozen=True, kw_only=True):
    """The evictions that PostFilter plugins would make; `nodes` come best first."""

    message: str
    nominated_node: str
    nodes: list[NodeVictims]


class Remedy(AnswerPart, frozen=True, kw_only=True):
    """A change and how many nodes then take the pod."""

    kind: str
    change: str
    node_count: int = 0
    examples: list[str] = []


class EventLine(AnswerPart, frozen=True, kw_only=True):
    """An event about the pod; `time` is when it was seen last."""

    time: str
    type: str
    reason: str
    message: str
    count: int = 1


class ConditionLine(AnswerPart, frozen=True, kw_only=True):
    """A condition of the pod, as its status says."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class QueueLine(AnswerPart, frozen=True, kw_only=True):
    """The place where a pending pod waits in the scheduler: `active`, `backoff`, `unschedulable`, `gated`, `in a
    cycle`, `waiting for permission` or `being bound`."""

    area: str
    attempts: int = 0
    wakes_on: list[str] = []
    """Plugins whose events bring it back."""


class QuotaLevel(AnswerPart, frozen=True, kw_only=True):
    """One resource of a quota on the way from the top to the pod's; amounts are quantity texts."""

    quota: str
    resource: str
    used: str
    runtime: str
    """Amount that it may use now; empty where that is not limited."""
    request: str
    min: str
    max: str
    """Empty where there is none."""
    held_by: str = ""
    """Cause that keeps the runtime below what is asked for: `max`, `siblings` that share with it, `parent` where there
    are none, or `nodes` at the top; else empty."""


class QuotaLoan(AnswerPart, frozen=True, kw_only=True):
    """The part of another quota's minimum that the pod's quota uses."""

    lender: str
    """Path of that quota, such as `root/search`."""
    amounts: dict[str, str]


class QuotaExcess(AnswerPart, frozen=True, kw_only=True):
    """The use of a quota above its runtime: others want back what it has borrowed."""

    quota: str
    """Path of that quota."""
    amounts: dict[str, str]


class QuotaAnswer(AnswerPart, frozen=True, kw_only=True):
    """The answer of its quota to a pod."""

    quota: str
    path: str
    """`root/ads`."""
    fits: bool
    sentence: str
    """`queue at root/ads: runtime 120 cores, used 118, you ask 4; borrowed 18 from root/search`."""
    exceeded: list[str] = []
    """Resources of which there is too little."""
    levels: list[QuotaLevel] = []
    loans: list[QuotaLoan] = []
    above: list[QuotaExcess] = []
    """Quotas above that use more than they may of what the pod asks for, most first, where its own has room."""


class GangLine(AnswerPart, frozen=True, kw_only=True):
    """One gang of a group: what it is told to be, and where its members stand."""

    gang: str
    """`namespace/name`."""
    described_by: str
    """`PodGroup`, `pods`, or empty as long as nobody has described it."""
    minimum: int = 0
    mode: str = ""
    match_policy: str = ""
    wait_s: float = 0.0
    """Time that members that have a place wait for the others."""
    existing: int = 0
    pending: int = 0
    waiting: int = 0
    """Have a place, and wait for the others."""
    bound: int = 0
    missing: int = 0
    """Number of members that must still come to exist before any is tried."""
    phase: str = ""
    """Phase of the PodGroup, where it was asked for."""


class GangFit(AnswerPart, frozen=True, kw_only=True):
    """Members placed one beside the other, as one round of the scheduler would."""

    members: int
    """All of the group, those that have a place included."""
    fitting: int
    """Members that have a place or find one."""
    untried: int = 0
    """Members that were not tried, so as not to hold up the scheduler."""
    is_enough: bool
    """Whether every gang reaches its minimum before a member is refused."""
    where: str = ""
    """The part of the cluster that was tried, empty for all of it."""
    nodes: dict[str, int] = {}
    """Node → how many members without a place it would take; those with most members, at most 10."""
    node_count: int = 0
    stuck: str = ""
    """The first member (`namespace/name`) that finds no node."""
    stuck_number: int = 0
    """Counted from 1 in the order of trying."""
    lacks: str = ""
    """The shortage of that pod, in words."""
    message: str = ""
    """The scheduler's message about that one."""
    reasons: list[ReasonCount] = []
    """Reasons for which nodes refuse that one, next to the members before it."""


class DomainFit(AnswerPart, frozen=True, kw_only=True):
    """A part of the network that could hold the gang: how many members without a place fit."""

    layer: str
    name: str
    fitting: int


class GangAnswer(AnswerPart, frozen=True, kw_only=True):
    """A gang, or a group of gangs that start together: how far it is, and what keeps it."""

    gang: str
    group: str
    """The gangs that are placed together, with commas."""
    verdict: PodVerdict
    sentence: str
    state: str = ""
    """`waiting for members`, `queued`, `being tried`, `holding places` or `started`."""
    gangs: list[GangLine] = []
    representative: str = ""
    """The member that stands for the group in the scheduling queue."""
    last_failure: str = ""
    """Reason for which the round under way has failed already."""
    fit: GangFit | None = None
    domains: list[DomainFit] = []
    preemption: PreemptionAnswer | None = None
    remedies: list[Remedy] = []
    events: list[EventLine] = []
    notes: list[str] = []


class ReservedAmount(AnswerPart, frozen=True, kw_only=True):
    """One resource of a reservation; amounts are quantity texts."""

    resource: str
    held: str
    used: str
    left: str


class ReservationPod(AnswerPart, frozen=True, kw_only=True):
    """A pod that may use a reservation, or was asked about: what keeps it from that."""

    pod: str
    """`namespace/name`."""
    node: str = ""
    says: str
    """Relation of the reservation to the pod."""


class ReservationAnswer(AnswerPart, frozen=True, kw_only=True):
    """A Reservation: where it is or why it is nowhere, who may use it, and who does."""

    reservation: str
    uid: str
    verdict: PodVerdict
    sentence: str
    phase: str
    node: str = ""
    ends: str = ""
    """Time of its expiry, or the other event that ends it."""
    owners: list[str] = []
    """Owners that may use it, in words."""
    amounts: list[ReservedAmount] = []
    users: list[str] = []
    """Pods (`namespace/name`) that use it."""
    pods: list[ReservationPod] = []
    """Other pods that it is for, those that wait first."""
    pod_count: int = 0
    """All of these, also those left out."""
    placing: "PodAnswer | None" = None
    """Reasons for which it has no node, or the one that the next cycle would choose."""
    events: list[EventLine] = []
    notes: list[str] = []


class PodAnswer(AnswerPart, frozen=True, kw_only=True):
    """The whole explanation. `message` is what the scheduler writes into events and conditions."""

    pod: str
    uid: str = ""
    verdict: PodVerdict
    sentence: str
    message: str = ""
    scheduler_name: str = ""
    node: str = ""
    """Node on which the pod is, or would be put."""
    nominated_node: str = ""
    priority: int = 0
    node_count: int = 0
    feasible_count: int = 0
    requests: dict[str, str] = {}
    rejected_by: list[str] = []
    pre_filter: list[PluginAnswer] = []
    reasons: list[ReasonCount] = []
    nodes: list[NodeAnswer] = []
    scores: list[ScoredNode] = []
    preemption: PreemptionAnswer | None = None
    remedies: list[Remedy] = []
    queue: QueueLine | None = None
    quota: QuotaAnswer | None = None
    """The quota of the pod, where one has a say."""
    gang: GangAnswer | None = None
    """The gang of the pod, as long as it has not started."""
    conditions: list[ConditionLine] = []
    events: list[EventLine] = []
    notes: list[str] = []
    """Further lines, of plugins and of the queue."""
