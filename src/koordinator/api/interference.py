"""Settings of the loop by which batch follows what services feel, on the wire.

Settings are NodeSLO's `extensions.interference`, from the key `interference-config` of `slo-controller-config`. They
are ours; the reference has none. Pure.
"""

from typing import Annotated

import msgspec

from koordinator.api.meta import ViewPart

INTERFERENCE = "interference"
"""Key of `extensions`."""

_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Share = Annotated[int, msgspec.Meta(ge=1, le=100)]
_Seconds = Annotated[int, msgspec.Meta(ge=0)]

RESOURCES = ("cpu", "cache", "memory", "disk", "network")
"""What services may suffer from and batch be shrunk on; `cache` is the last-level cache with memory bandwidth."""
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
    """Of every other resource batch keeps at least this share of what is configured for it (of memory: of what it
    used)."""
    resources: list[_Resource] | None = None
    """What batch may be shrunk on; all when absent."""
    cap_culprit: bool = True
    """A batch pod that is named as the culprit gets a CPU quota of its own."""
    evict_culprit: bool = False
    """It is evicted when nothing else has helped for so long:"""
    evict_after_seconds: _Seconds = 30
    signal_half_life_seconds: _Seconds = 600
    """What scheduler and descheduler are told of a node that suffered halves in so long; 0: they are told nothing."""

    def acts_on(self, resource: str) -> bool:
        """Return whether batch may be shrunk on a resource."""
        return self.resources is None or resource in self.resources


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
