"""Strategies of co-location: what would be installed and configured, as the live components read it.

A strategy file is YAML: the keys of the ConfigMap `slo-controller-config` (`colocation-config`,
`resource-threshold-config`), `load-aware` (the arguments of LoadAwareScheduling), `feature-gates` (evictions of the
node agent that are on), `protection`, and `closed-loop` (settings of the controller by slack).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from koordinator.api import slo_config, user_files, yaml_text
from koordinator.koordlet.interference.control import ControlConfig
from koordinator.koordlet.qos.memory_evict import BE_MEMORY
from koordinator.local.nodes.contention import Protection
from koordinator.manager.config import colocation_config, node_slo_spec
from koordinator.manager.config.colocation_config import ColocationState
from koordinator.manager.config.node_slo_spec import NodeSLOConfig
from koordinator.scheduler.plugins.load_aware.args import LoadAwareArgs
from koordinator.simulate.scenario import LOAD_AWARE_ARGS
from koordinator.simulate.whatif.cluster import WhatIfError

EVICTIONS = frozenset((BE_MEMORY,))
"""Features of the node agent that a what-if run plays."""


class SlackObjective(ControlConfig, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The settings of the controller by slack, and what services are promised: p99 over p99 without batch."""

    objective_ratio: Annotated[float, msgspec.Meta(gt=1)] = 1.2


class WhatIfStrategy(msgspec.Struct, frozen=True):
    """One way to co-locate; `load_aware` is None where batch is placed without a look at load."""

    name: str
    colocation: ColocationState
    slo: NodeSLOConfig
    load_aware: LoadAwareArgs | None
    protection: Protection = Protection.SUPPRESS
    evictions: frozenset[str] = frozenset()
    control: SlackObjective | None = None
    """Objective of the closed loop; None where batch is held below fixed thresholds."""


_ENABLED = {"enable": True}
_HELD_AT_65: dict[str, Any] = {"clusterStrategy": {"enable": True}}
_BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    "installed": {"colocation-config": _ENABLED, "resource-threshold-config": _HELD_AT_65},
    "conservative": {
        "colocation-config": {
            **_ENABLED,
            "cpuReclaimThresholdPercent": 45,
            "memoryReclaimThresholdPercent": 55,
        },
        "resource-threshold-config": {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 50}},
        "load-aware": {**LOAD_AWARE_ARGS, "usageThresholds": {"cpu": 45, "memory": 70}},
        "feature-gates": [BE_MEMORY],
    },
    "aggressive": {
        "colocation-config": {
            **_ENABLED,
            "cpuReclaimThresholdPercent": 80,
            "memoryReclaimThresholdPercent": 80,
        },
        "resource-threshold-config": {
            "clusterStrategy": {
                "enable": True,
                "cpuSuppressThresholdPercent": 80,
                "memoryEvictThresholdPercent": 85,
            }
        },
        "load-aware": {**LOAD_AWARE_ARGS, "usageThresholds": {"cpu": 75, "memory": 85}},
        "feature-gates": [BE_MEMORY],
        "protection": Protection.IDLE.value,
    },
    "closed-loop": {
        "colocation-config": {
            **_ENABLED,
            "cpuReclaimThresholdPercent": 85,
            "memoryReclaimThresholdPercent": 75,
        },
        "resource-threshold-config": {
            "clusterStrategy": {
                "enable": True,
                "memoryEvictThresholdPercent": 85,
                "cpuSuppressPolicy": "cfsQuota",
            }
        },
        "load-aware": {**LOAD_AWARE_ARGS, "usageThresholds": {"cpu": 80, "memory": 80}},
        "feature-gates": [BE_MEMORY],
        "closed-loop": {},
    },
}
NAMES = tuple(_BUILT_IN)
_KEYS = (
    "colocation-config",
    "resource-threshold-config",
    "load-aware",
    "feature-gates",
    "protection",
    "closed-loop",
)


def of_name(name: str) -> WhatIfStrategy:
    """Return a built-in strategy, or the one in a file of that name. Raises: WhatIfError, FileError, YamlError."""
    if name in _BUILT_IN:
        return of_settings(name, _BUILT_IN[name])
    path = Path(name)
    if not path.is_file():
        raise WhatIfError(f"--strategy {name}: neither a file nor one of {', '.join(NAMES)}")
    try:
        body = yaml_text.load(user_files.read(path))
    except yaml_text.YamlError as error:
        raise WhatIfError(f"{name}: no YAML: {error}") from error
    if not isinstance(body, dict):
        raise WhatIfError(f"{name}: expected a mapping with some of {', '.join(_KEYS)}")
    return of_settings(path.stem, body)


def of_config(name: str, data: Mapping[str, str] | None) -> WhatIfStrategy:
    """Return what the cluster's own `slo-controller-config` says. Raises: WhatIfError."""
    return of_settings(name, {key: text for key, text in (data or {}).items() if key in _KEYS})


def of_settings(name: str, settings: Mapping[str, Any]) -> WhatIfStrategy:
    """Return the strategy with these settings; what they do not say is as an installation has it. Raises: WhatIfError
    naming the key."""
    if unknown := sorted(set(map(str, settings)) - set(_KEYS)):
        raise WhatIfError(f"strategy {name}: {unknown[0]!r} is none of {', '.join(_KEYS)}")
    data = {
        key: each if isinstance(each := settings[key], str) else msgspec.json.encode(each).decode()
        for key in _KEYS[:2]
        if key in settings
    }
    if slo_config.COLOCATION.key not in data:
        data[slo_config.COLOCATION.key] = msgspec.json.encode(_ENABLED).decode()
    lending = colocation_config.sync(ColocationState(), data)
    protecting = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, data)
    for problem in (lending.problem, *lending.entry_problems, *protecting.problems.values()):
        if problem:
            raise WhatIfError(f"strategy {name}: {problem}")
    return WhatIfStrategy(
        name=name,
        colocation=lending.state,
        slo=protecting.config,
        load_aware=_load_aware(name, settings.get("load-aware", LOAD_AWARE_ARGS)),
        protection=_protection(name, settings.get("protection", Protection.SUPPRESS.value)),
        evictions=_gates(name, settings.get("feature-gates", ())),
        control=_control(name, settings.get("closed-loop")),
    )


def _control(name: str, settings: Any) -> SlackObjective | None:
    if settings is None or settings is False:
        return None
    try:
        return msgspec.convert({} if settings is True else settings, SlackObjective)
    except (msgspec.ValidationError, ValueError) as error:
        raise WhatIfError(f"strategy {name}: closed-loop: {error}") from error


def _load_aware(name: str, args: Any) -> LoadAwareArgs | None:
    if args is None or args is False:
        return None
    try:
        return msgspec.convert(args, LoadAwareArgs)
    except (msgspec.ValidationError, ValueError) as error:
        raise WhatIfError(f"strategy {name}: load-aware: {error}") from error


def _protection(name: str, text: Any) -> Protection:
    try:
        return Protection(text)
    except ValueError:
        known = ", ".join(each.value for each in Protection)
        raise WhatIfError(f"strategy {name}: protection: {text!r} is none of {known}") from None


def _gates(name: str, gates: Any) -> frozenset[str]:
    if not isinstance(gates, list | tuple) or not all(isinstance(each, str) for each in gates):
        raise WhatIfError(f"strategy {name}: feature-gates: expected a list of names")
    if unknown := sorted(set(gates) - EVICTIONS):
        raise WhatIfError(
            f"strategy {name}: feature-gates: {unknown[0]} is not played; {', '.join(sorted(EVICTIONS))} is"
        )
    return frozenset(gates)
