"""What plugins suggest to users of a pod that found no node. Source: behaviour/scheduler C2 (PostFilter) and C6."""

import enum

import msgspec


class SuggestionType(enum.StrEnum):
    """Upstream's suggestions."""

    EVICT_WORKLOAD_SELF = "EvictWorkloadSelf"
    WAITING_VICTIM_RELEASED = "WaitingVictimReleased"
    DELETE_CONFLICT_PVC = "DeleteConflictPVC"


class Suggestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What would help; stands in the message to users and in the diagnosis."""

    type: SuggestionType
    message: str = ""

    def __str__(self) -> str:
        return f"Suggestion: {{type: {self.type}, message: {self.message}}}"
