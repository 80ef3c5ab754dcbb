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


STAGES: Mapping[str, Stages] = {
    "RunPodSandbox": Stages("PreRunPodSandbox", "", Checkpoint.STORE),
    "StopPodSandbox": Stages("", "PostStopPodSandbox", Checkpoint.DELETE),
    "CreateContainer": Stages("PreCreateContainer", "", Checkpoint.STORE),
    "StartContainer": Stages("PreStartContainer", "PostStartContainer"),
    "UpdateContainerResources": Stages("PreUpdateContainerResources", ""),
    "StopContainer": Stages("", "PostStopContainer", Checkpoint.DELETE),
}
"""CRI method → its stages; methods that are not here go to the runtime unchanged."""


def route(
    method: str,
    registered: Collection[str],
    labels: Mapping[str, str],
    skip: tuple[str, str] = (SKIP_LABEL, SKIP_VALUE),
) -> Stages:
    """Return the stages that a call of `method` for a pod with these labels reaches.

    `registered` holds the stages that some hook server asked for.
    """
    stages = STAGES.get(method, Stages())
    if labels.get(skip[0]) == skip[1]:
        registered = ()
    before, after = (each if each in registered else "" for each in (stages.before, stages.after))
    return Stages(before, after, stages.checkpoint)


class Calls(msgspec.Struct, frozen=True):
    """The calls for a request; `is_error` when kubelet gets an error instead of the runtime's answer."""

    steps: tuple[str, ...]
    is_error: bool


def calls(path: Stages, policy: FailurePolicy, hook_fails: bool) -> Calls:
    """Return the steps of a call whose runtime answers well and whose hook before it fails or not."""
    if path.before and hook_fails and policy is FailurePolicy.FAIL:
        return Calls((path.before,), True)
    return Calls(tuple(step for step in (path.before, BACKEND, path.after) if step), False)
