"""Feature gates: which of them a component knows, and what its flag turned on.

Source: behaviour/api 12; the tables are in `feature_gate_tables`.
"""

import difflib
import enum
import types
from collections.abc import Mapping
from typing import Self

import msgspec

from koordinator.api import scalars
from koordinator.api.errors import KoordinatorError
from koordinator.api.feature_gate_tables import (
    KOORDLET,
    MANAGER,
    NODE_SLO_SWITCHED,
    SCHEDULER,
    FeatureGate,
    FeatureStage,
)


class Component(enum.StrEnum):
    """A component that reads a feature-gates flag."""

    MANAGER = "manager"
    SCHEDULER = "scheduler"
    DESCHEDULER = "descheduler"
    KOORDLET = "koordlet"


REGISTRIES: Mapping[Component, Mapping[str, FeatureGate]] = {
    Component.MANAGER: MANAGER,
    Component.SCHEDULER: SCHEDULER,
    Component.DESCHEDULER: MANAGER,  # the descheduler shares the manager's registry
    Component.KOORDLET: KOORDLET,
}

ALL_ALPHA = "AllAlpha"
ALL_BETA = "AllBeta"
_STAGE_SWITCHES = {ALL_ALPHA: FeatureStage.ALPHA, ALL_BETA: FeatureStage.BETA}


class FeatureGateError(KoordinatorError, ValueError):
    """The flag cannot be understood; the component must not start."""

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(entry, reason)
        self.entry, self.reason = entry, reason

    def __str__(self) -> str:
        return f"feature gates: {self.entry!r}: {self.reason}"


class FeatureGates(msgspec.Struct, frozen=True):
    """The gates of one component, each on or off, and how mature each is."""

    states: Mapping[str, bool]
    stages: Mapping[str, FeatureStage] = {}

    @classmethod
    def of(
        cls,
        component: Component,
        flag: str = "",
        added: Mapping[str, FeatureGate] = types.MappingProxyType({}),
    ) -> Self:
        """Return the defaults of the component's gates, changed by the flag's text (`A=true,B=false`).

        `AllAlpha` and `AllBeta` set the gates of that stage that the flag does not name; `added` are gates that
        policies of the component declare themselves.

        Raises: FeatureGateError.
        """
        registry = {**REGISTRIES[component], **added}
        named = _parse(flag, registry)
        states = {name: gate.default for name, gate in registry.items()}
        for switch, stage in _STAGE_SWITCHES.items():
            if switch in named:
                of_stage = (name for name, gate in registry.items() if gate.stage is stage)
                states.update(dict.fromkeys(of_stage, named[switch]))
        states.update((name, state) for name, state in named.items() if name in registry)
        return cls(states, {name: gate.stage for name, gate in registry.items()})

    def is_on(self, gate: str) -> bool:
        """Return whether the gate is on.

        Raises: KeyError when the component has no such gate.
        """
        return self.states[gate]


class NodeSwitch(enum.Enum):
    """The switch in a node's NodeSLO for a feature of the node agent."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"
    """There is no NodeSLO or strategy, or no switch for this feature: report it, and treat the feature as off."""


def node_switch(gate: str, threshold_enable: bool | None) -> NodeSwitch:
    """Return the second switch of a koordlet feature, by the NodeSLO of its node.

    `threshold_enable` is `spec.resourceUsedThresholdWithBE.enable`, None when any part of it is absent.
    Whoever asks for a feature that has no such switch has the wrong one: nothing is known of it.
    """
    if gate not in NODE_SLO_SWITCHED or threshold_enable is None:
        return NodeSwitch.UNKNOWN
    return NodeSwitch.ON if threshold_enable else NodeSwitch.OFF


def _unknown(name: str, registry: Mapping[str, FeatureGate]) -> str:
    alike = difflib.get_close_matches(name, registry, n=1)
    hint = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(sorted(registry))}"
    return f"no such gate; {hint}"


def _parse(flag: str, registry: Mapping[str, FeatureGate]) -> dict[str, bool]:
    """Name → state for each entry of the flag; the last one wins."""
    named: dict[str, bool] = {}
    for entry in filter(None, flag.split(",")):
        name, equals, state = (part.strip() for part in entry.partition("="))
        if not equals:
            raise FeatureGateError(entry, "expected NAME=true or NAME=false")
        if name not in registry and name not in _STAGE_SWITCHES:
            raise FeatureGateError(entry, _unknown(name, registry))
        try:
            named[name] = scalars.parse_bool(state)
        except scalars.ScalarError as error:
            raise FeatureGateError(entry, str(error)) from error
    return named
