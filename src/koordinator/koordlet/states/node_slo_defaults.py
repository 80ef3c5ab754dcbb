"""NodeSLO as the strategies see it: what is not set takes the defaults, what is off is neutral.

Source: behaviour/koordlet-observe 7.3; behaviour/koordlet-act 2.4.
"""

from typing import Any, TypeVar

import msgspec

from koordinator.api import slo, slo_qos
from koordinator.api.slo import NodeSLOSpec
from koordinator.api.slo_qos import NO_QOS, ResourceQOS, ResourceQOSStrategy

T = TypeVar("T", bound=msgspec.Struct)


def with_defaults(spec: NodeSLOSpec) -> NodeSLOSpec:
    """Return the policies in force: each block over its default, switched-off class sections with neutral values.

    Neutral values are written to the kernel, which is how switching a feature off undoes it.
    """
    strategy = overlaid(slo_qos.DEFAULT_QOS_STRATEGY, spec.resource_qos_strategy)
    return msgspec.structs.replace(
        spec,
        resource_used_threshold_with_be=overlaid(
            slo.DEFAULT_THRESHOLD_STRATEGY, spec.resource_used_threshold_with_be
        ),
        resource_qos_strategy=_neutralised(strategy),
        cpu_burst_strategy=overlaid(slo.DEFAULT_CPU_BURST_STRATEGY, spec.cpu_burst_strategy),
        system_strategy=overlaid(slo.DEFAULT_SYSTEM_STRATEGY, spec.system_strategy),
    )


def overlaid(default: T, given: T | None) -> T:
    """`given` where it says something, `default` elsewhere, at any depth; a list replaces a list."""
    if given is None:
        return default
    said: dict[str, Any] = {}
    for name in given.__struct_fields__:
        own, fallback = getattr(given, name), getattr(default, name)
        if own is None:
            continue
        if isinstance(own, msgspec.Struct) and isinstance(fallback, msgspec.Struct):
            said[name] = overlaid(fallback, own)
        elif isinstance(own, dict) and isinstance(fallback, dict):
            said[name] = {**fallback, **own}
        else:
            said[name] = own
    return msgspec.structs.replace(default, **said)


def _neutralised(strategy: ResourceQOSStrategy) -> ResourceQOSStrategy:
    """SYSTEM keeps its values: the reference leaves it out here, too."""
    return msgspec.structs.replace(
        strategy,
        lsr_class=_neutral_sections(strategy.lsr_class),
        ls_class=_neutral_sections(strategy.ls_class),
        be_class=_neutral_sections(strategy.be_class),
    )


def _neutral_sections(settings: ResourceQOS | None) -> ResourceQOS | None:
    if settings is None:
        return None
    off = {
        name: getattr(NO_QOS, name)
        for name in ("cpu_qos", "memory_qos", "resctrl_qos")
        if (section := getattr(settings, name)) is not None and not section.enable
    }
    return msgspec.structs.replace(settings, **off)
