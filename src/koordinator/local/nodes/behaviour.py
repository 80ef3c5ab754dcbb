"""Decide what a simulated pod does: the annotation `simulation.koordinator.sh/behaviour` and its defaults."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError

DOMAIN = "simulation.koordinator.sh/"
ANNOTATION = DOMAIN + "behaviour"
HOLLOW_LABEL = DOMAIN + "hollow"

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Behaviour(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A pod's load while its container runs, and how it ends.

    `cpu_milli` is what it wants on average over a day; `follows_trace` replaces the generator by the pod's
    share of its node's trace (in proportion to `cpu_milli`). `gpu_core_ratio` and `gpu_memory_ratio` are the
    parts that it uses of what it was given of GPUs.
    A pod with `cpu_work_core_seconds` or `run_seconds` ends with `exit_code` once it had that much CPU and
    ran that long. `service_time_ms` makes it a service with a latency figure, `p99_target_ms` is its objective, which a
    closed loop protects. `oom_after_seconds` kills the
    container once, as the kernel's OOM killer would. Probes that the pod has succeed, but for what the last four
    fields say; their times count from each start of the container.
    """

    cpu_milli: NotNegative | None = None
    daily_amplitude_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    peak_hour: Annotated[float, msgspec.Meta(ge=0, lt=24)] = 14.0
    noise_sigma: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.0
    follows_trace: bool = False
    memory_bytes: NotNegative | None = None
    gpu_core_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    gpu_memory_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    service_time_ms: Positive | None = None
    p99_target_ms: Positive | None = None
    cpu_work_core_seconds: Positive | None = None
    run_seconds: Positive | None = None
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    oom_after_seconds: Positive | None = None
    start_delay_seconds: NotNegative | None = None
    startup_fails: bool = False
    readiness_fails_after_seconds: NotNegative | None = None
    readiness_fails_for_seconds: Positive | None = None
    liveness_fails_after_seconds: NotNegative | None = None

    @property
    def is_finite(self) -> bool:
        return (self.cpu_work_core_seconds is not None) or (self.run_seconds is not None)


def is_other(old: Pod, new: Pod) -> bool:
    """Return whether the annotation is another one."""
    return old.metadata.annotations.get(ANNOTATION) != new.metadata.annotations.get(ANNOTATION)


JOB_RUN_S = 10.0
"""Running time of a Job's pod that states none."""


class Defaults(msgspec.Struct, frozen=True):
    """The behaviour of a pod without (readable) annotation, relative to its requests."""

    cpu_ratio: float
    memory_ratio: float
    gpu_core_ratio: float
    gpu_memory_ratio: float


_SLEEP = re.compile(r"(?:(?:/bin/)?(?:ba)?sh -c )?(?:/bin/)?sleep (\d{1,9}(?:\.\d{1,9})?)([smhd]?)", re.ASCII)
_UNIT_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}

# Services use little of what they request (docs/models.md, section 3); batch pods use what they ask for.
SERVICE = Defaults(cpu_ratio=0.15, memory_ratio=0.45, gpu_core_ratio=0.3, gpu_memory_ratio=0.6)
BATCH = Defaults(cpu_ratio=0.9, memory_ratio=0.85, gpu_core_ratio=0.9, gpu_memory_ratio=0.85)
# What a pod without requests uses: a small side process.
CPU_MILLI_DEFAULT = 20.0
MEMORY_BYTES_DEFAULT = 32.0 * 2**20


def decode(text: str) -> Behaviour:
    """Raises: ProtocolError naming the annotation and what is wrong with it."""
    try:
        return msgspec.json.decode(text, type=Behaviour)
    except msgspec.DecodeError as error:
        raise ProtocolError("", ANNOTATION, str(error)) from error


def of_pod(pod: Pod) -> Behaviour:
    """Return what a pod without annotation does: `sleep N` sleeps, other pods of Jobs end after a while.

    Pods that are always restarted have no end of their own.
    """
    if pod.spec.restart_policy == "Always":
        return Behaviour()
    sleeps_s = [sleep_s([*one.command, *one.args]) for one in pod.spec.containers]
    longest_s = max((one for one in sleeps_s if one is not None), default=None)
    if longest_s is not None and None not in sleeps_s:
        return Behaviour(run_seconds=longest_s)
    of_job = any(owner.controller and owner.kind == "Job" for owner in pod.metadata.owner_references)
    return Behaviour(run_seconds=JOB_RUN_S) if of_job else Behaviour()


def sleep_s(words: Sequence[str]) -> float | None:
    """Return seconds that the command `sleep N` takes, also as `sh -c "sleep N"`; None for any other one."""
    found = _SLEEP.fullmatch(" ".join(words))
    if found is None:
        return None
    seconds = float(found[1]) * _UNIT_S[found[2]]
    return seconds or None


def encode(behaviour: Behaviour) -> str:
    """Return the annotation's text."""
    return msgspec.json.encode(behaviour).decode()


def annotations(behaviour: Behaviour) -> dict[str, Any]:
    """Return the annotations of a pod that behaves like this."""
    return {ANNOTATION: encode(behaviour)}
