"""Interference of batch with services, on the wire: settings of the closed loop, and what a node tells of itself.

Settings are NodeSLO's `extensions.interference`, from the key `interference-config` of `slo-controller-config`. What a
node tells is NodeMetric's `status.extensions.interference`: how much its services suffer, and who should not meet
again for a while. Both are ours; the reference has neither. Pure.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from koordinator import clock
from koordinator.api import decode, slo
from koordinator.api.core import Pod
from koordinator.api.meta import ViewPart, controller_of

log = logging.getLogger(__name__)

INTERFERENCE = "interference"
"""Key of both `extensions`."""

_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Share = Annotated[int, msgspec.Meta(ge=1, le=100)]
_Seconds = Annotated[int, msgspec.Meta(ge=0)]

RESOURCES = ("cpu", "cache", "memory", "disk", "network")
"""Resources that services may suffer from and that batch may be shrunk on; `cache` is the last-level
cache with memory bandwidth."""
_Resource = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(RESOURCES)})$")]


class InterferenceSettings(ViewPart, frozen=True, kw_only=True):
    """Settings by which batch follows services. Slack is what is left of a service's objective, in percent of it."""

    enable: bool = False
    slack_low_percent: _Percent = 10
    """Below this slack batch is shrunk …"""
    slack_high_percent: _Percent = 15
    """… above this one it grows; in between nothing changes."""
    cpu_threshold_min_percent: _Share = 10
    cpu_threshold_max_percent: _Share = 95
    """Between these lies the share of the node's CPU that services and batch may use together, in place of
    `cpuSuppressThresholdPercent`."""
    resource_min_percent: _Share = 10
    """Least share of every other resource that batch keeps, of what is configured for it (memory: of what it used)."""
    resources: list[_Resource] | None = None
    """Resources that batch may be shrunk on; all when absent."""
    cap_culprit: bool = True
    """A batch pod that is named as the culprit gets a CPU quota of its own."""
    evict_culprit: bool = False
    """It is evicted when nothing else has helped for so long:"""
    evict_after_seconds: _Seconds = 30
    signal_half_life_seconds: _Seconds = 600
    """Half-life of the signal that scheduler and descheduler get of a node that suffered; 0: they get none."""

    def acts_on(self, resource: str) -> bool:
        """Return whether batch may be shrunk on a resource."""
        return self.resources is None or resource in self.resources


DEFAULT_SETTINGS = InterferenceSettings()


def relation_problems(settings: InterferenceSettings) -> list[str]:
    """Return what is wrong with values that are each within their range."""
    pairs = (
        ("slackLowPercent", settings.slack_low_percent, "slackHighPercent", settings.slack_high_percent),
        (
            "cpuThresholdMinPercent",
            settings.cpu_threshold_min_percent,
            "cpuThresholdMaxPercent",
            settings.cpu_threshold_max_percent,
        ),
    )
    return [
        f"{low_name} must be below {high_name}, but {low} is not below {high}"
        for low_name, low, high_name, high in pairs
        if low >= high
    ]


def settings_of(extensions: Mapping[str, Any], obj: str) -> InterferenceSettings:
    """Return the settings that a NodeSLO's extensions hold; those that cannot be used are off, which is logged."""
    raw = slo.plain_extensions(extensions).get(INTERFERENCE)
    if raw is None:
        return DEFAULT_SETTINGS
    try:
        settings = decode.from_builtins(raw, InterferenceSettings)
        problems = relation_problems(settings)
    except msgspec.ValidationError as error:
        problems = [str(error)]
    if problems:
        facts = {"object": obj, "field": f"spec.extensions.{INTERFERENCE}", "problem": "; ".join(problems)}
        log.warning("interference settings invalid", extra=facts)
        return DEFAULT_SETTINGS
    return settings


_TEMPLATE_HASH = "pod-template-hash"


def workload_of(pod: Pod) -> str:
    """Return a pod's workload as `namespace/kind/name`: its controller, a ReplicaSet's Deployment, else itself."""
    meta = pod.metadata
    owner = controller_of(pod)
    if owner is None:
        return f"{meta.namespace}/Pod/{meta.name}"
    template = meta.labels.get(_TEMPLATE_HASH, "")
    if owner.kind == "ReplicaSet" and template and owner.name.endswith(f"-{template}"):
        return f"{meta.namespace}/Deployment/{owner.name.removesuffix(f'-{template}')}"
    return f"{meta.namespace}/{owner.kind}/{owner.name}"


class WorkloadPair(ViewPart, frozen=True, kw_only=True):
    """A workload that suffered from another one; both as `namespace/kind/name`. `until` is RFC 3339."""

    victim: str
    culprit: str
    resource: str = ""
    until: str


class NodeInterference(ViewPart, frozen=True, kw_only=True):
    """Report of how much services of a node suffered at `at` (RFC 3339), 0 to 100, halving every `half_life_seconds`;
    and which pairs should not meet again."""

    percent: _Percent
    at: str
    half_life_seconds: Annotated[int, msgspec.Meta(gt=0)] = 600
    resource: str = ""
    pairs: list[WorkloadPair] = []


REFUSED_PERCENT = 50
"""From this level on a node gets no batch; below it, batch prefers others, the more the higher it is."""
LEVEL_PERCENT_MIN = 5
"""Below this level a node counts as calm."""


class Fading(msgspec.Struct, frozen=True):
    """A level that was `percent` at `at_s` and halves every `half_life_s`."""

    percent: int
    at_s: float
    half_life_s: float

    def level(self, now_s: float) -> int:
        """Return the level now in whole percent; 0 from `LEVEL_PERCENT_MIN` down."""
        left = self.percent * 0.5 ** (max(now_s - self.at_s, 0.0) / self.half_life_s)
        return int(left) if left >= LEVEL_PERCENT_MIN else 0


CALM = Fading(0, 0.0, 1.0)


def of_report(extensions: Mapping[str, Any]) -> NodeInterference | None:
    """Return what a NodeMetric's extensions tell; None for nothing. Raises: msgspec.ValidationError, ValueError."""
    raw = extensions.get(INTERFERENCE)
    if raw is None:
        return None
    found = decode.from_builtins(raw, NodeInterference)
    for text in (found.at, *(pair.until for pair in found.pairs)):
        clock.parse_rfc3339(text)
    return found


def pairs_of(found: NodeInterference | None, now_s: float) -> dict[tuple[str, str], float]:
    """Return (victim, culprit) of the pairs that still count, and until when."""
    pairs = found.pairs if found is not None else ()
    until = {(pair.victim, pair.culprit): clock.parse_rfc3339(pair.until) for pair in pairs}
    return {pair: until_s for pair, until_s in until.items() if until_s > now_s}


def fading_of(found: NodeInterference | None) -> Fading:
    """Return the level that a report tells, as numbers."""
    if found is None:
        return CALM
    return Fading(found.percent, clock.parse_rfc3339(found.at), float(found.half_life_seconds))
