"""The decisions about members of gangs, and their reasons."""

import enum

import msgspec


class Effect(msgspec.Struct, frozen=True):
    """The consequence of an event."""

    activate: tuple[str, ...] = ()
    """Members that shall all enter the queue now, where it lets them."""
    one_of: tuple[str, ...] = ()
    """Members one of which shall enter the queue now: the first that it lets in."""
    allowed: tuple[str, ...] = ()
    """Waiting pods that are released."""
    rejected: tuple[str, ...] = ()
    """Waiting pods that must give their place back."""
    message: str = ""
    """Why they must."""


class GateReason(enum.Enum):
    """The reason why a pod may not enter the queue, or not be tried."""

    OK = "no objection"
    GANG_UNKNOWN = "the gang is not known"
    GANG_UNCONFIGURED = "nobody has described the gang yet"
    INCOMPLETE = "not all members of the gang group exist"
    ROUND_RUNNING = "the gang group is being scheduled, the pod's turn will come"
    ROUND_FAILED = "another member has failed the round"
    NOT_PENDING = "the pod is no member without a place"
    REPRESENTED = "another member is in the queue for the gang group"
    RESTING = "the gang group waited in vain until its time was up, and lets others have a go"
    NO_TOPOLOGY = "the gang asks for a network topology that is not known"


class GangGate(msgspec.Struct, frozen=True):
    """The decision whether a pod may go on, and the words if not."""

    reason: GateReason
    message: str = ""

    @property
    def is_open(self) -> bool:
        return self.reason is GateReason.OK


class EndReason(enum.Enum):
    """The reason why a round is over; the words are those of the metric's label."""

    SUCCEEDED = "gang is already succeed"
    ALL_TRIED = "all pending pods is already been attempted"
    GANG_GONE = "gang is nil, may be already deleted"
    OTHER_GROUP = "another gang group is scheduled"


class Next(msgspec.Struct, frozen=True):
    """The member to try next, or none; when the round is over: why, and who must give its place back."""

    pod: str = ""
    ended: EndReason | None = None
    rejected: tuple[str, ...] = ()
    tried_count: int = 0
    """Members that were tried in the round that ended."""
    one_of: tuple[str, ...] = ()
    """Members one of which shall enter the queue now: nothing else would wake their group."""


class Begin(msgspec.Struct, frozen=True):
    """The decision whether a pod may be tried, whether it starts a round, and how an older round was ended for it."""

    gate: GangGate
    has_started: bool = False
    ended: Next = Next()


class MemberFailure(msgspec.Struct, frozen=True):
    """The consequence when no node holds a member."""

    group_message: str = ""
    """Why the round has failed; kept for the members that follow."""
    message: str = ""
    rejected: tuple[str, ...] = ()
    """Waiting pods that must give their place back."""
    condition_patches: tuple[str, ...] = ()
    """Untried members that shall learn from their status why they are pending."""


class PermitReason(enum.Enum):
    """The reason why a pod that has a place may be bound, or not."""

    NO_GANG = "no member of a gang"
    RELEASED = "the gang group has enough places"
    WAIT = "the gang group does not have enough places yet"
    GANG_UNKNOWN = "Gang not found"


class Permit(msgspec.Struct, frozen=True):
    """The answer, with the waiting pods that are released, too."""

    reason: PermitReason
    wait_s: float = 0.0
    allowed: tuple[str, ...] = ()
    ended: EndReason | None = None
    tried_count: int = 0
    """Members that were tried in the round that ended."""
    one_of: tuple[str, ...] = ()
    """Members without a place one of which shall enter the queue now."""


class Rejection(msgspec.Struct, frozen=True):
    """Waiting pods that must give their place back; no message when the others are left alone."""

    message: str = ""
    rejected: tuple[str, ...] = ()
    is_tired: bool = False
    """The time was up: others shall have a go, and the group again after them."""
