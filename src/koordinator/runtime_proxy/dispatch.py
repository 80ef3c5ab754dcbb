"""Decide which hooks a CRI call reaches, and what their failure means. Pure. Source: behaviour/koordlet-act 23.2."""

import enum
from collections.abc import Collection, Mapping

import msgspec

from koordinator.api.labels import RUNTIME_PROXY_SKIP_HOOK_SERVER

SKIP_LABEL = RUNTIME_PROXY_SKIP_HOOK_SERVER
SKIP_VALUE = "true"
BACKEND = "backend"
"""The step that is the container runtime itself."""


class FailurePolicy(enum.Enum):
    """The meaning of an error of a hook before the call."""

    IGNORE = "Ignore"
    FAIL = "Fail"

    @classmethod
    def of(cls, text: str) -> "FailurePolicy":
        """Return the policy that a hook server registered; everything but `Fail` lets calls go on."""
        return cls.FAIL if text == cls.FAIL.value else cls.IGNORE


class Checkpoint(enum.Enum):
    """The change to what is remembered of a sandbox or container."""

    KEEP = "keep"
    STORE = "store"  # after the runtime succeeded
    DELETE = "delete"  # whether or not it did: kubelet will not ask for it again


class Stages(msgspec.Struct, frozen=True):
    """The hook stages around a CRI method; empty where there is none."""

    before: str = ""
    after: str = ""
    checkpoint: Checkpoint = Checkpoint.KEEP


PASSED_THROUGH = Stages()

STAGES: Mapping[str, Stages] = {
    "RunPodSandbox": Stages("PreRunPodSandbox", "", Checkpoint.STORE),
    "StopPodSandbox": Stages("", "PostStopPodSandbox", Checkpoint.DELETE),
    "CreateContainer": Stages("PreCreateContainer", "", Checkpoint.STORE),
    "StartContainer": Stages("PreStartContainer", "PostStartContainer"),
    "UpdateContainerResources": Stages("PreUpdateContainerResources", ""),
    "StopContainer": Stages("", "PostStopContainer", Checkpoint.DELETE),
}
"""CRI method → its stages; methods that are not here go to the runtime unchanged."""


class Route(msgspec.Struct, frozen=True):
    """The steps of one call, in order; `reason` says why there are no hooks in it, or empty."""

    before: str
    after: str
    checkpoint: Checkpoint
    reason: str = ""


def route(
    method: str,
    registered: Collection[str],
    labels: Mapping[str, str],
    skip: tuple[str, str] = (SKIP_LABEL, SKIP_VALUE),
) -> Route:
    """Return the hooks that a call of `method` for a pod with these labels reaches.

    `registered` holds the stages that some hook server asked for.
    """
    stages = STAGES.get(method, PASSED_THROUGH)
    if stages is PASSED_THROUGH:
        return Route("", "", Checkpoint.KEEP, "no hooks belong to this method")
    if labels.get(skip[0]) == skip[1]:
        return Route("", "", stages.checkpoint, f"the pod's label {skip[0]} is {skip[1]}")
    before = stages.before if stages.before in registered else ""
    after = stages.after if stages.after in registered else ""
    return Route(before, after, stages.checkpoint, "" if before or after else "no hook server asked for it")


class Calls(msgspec.Struct, frozen=True):
    """The calls for a request; `is_error` when kubelet gets an error instead of the runtime's answer."""

    steps: tuple[str, ...]
    is_error: bool


def calls(path: Route, policy: FailurePolicy, hook_fails: bool) -> Calls:
    """Return the steps of a call whose runtime answers well and whose hook before it fails or not."""
    if path.before and hook_fails and policy is FailurePolicy.FAIL:
        return Calls((path.before,), True)
    return Calls(tuple(step for step in (path.before, BACKEND, path.after) if step), False)
