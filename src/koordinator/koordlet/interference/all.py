"""All parts of this room, put together."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from koordinator.api.feature_gates import FeatureGate, FeatureStage
from koordinator.koordlet.degradation import INTERFERENCE
from koordinator.koordlet.interference import act
from koordinator.koordlet.interference.act import InterferenceControl
from koordinator.koordlet.interference.counters import CounterSampler
from koordinator.koordlet.interference.detector import InterferenceDetector
from koordinator.koordlet.interference.scrape import LatencyScrapes
from koordinator.koordlet.interference.verdict_reporter import VerdictReporter
from koordinator.koordlet.parts import Shared, Strategy
from koordinator.koordlet.qos import shadow
from koordinator.koordlet.qos.eviction_strategy import CarriesOut
from koordinator.koordlet.qos.shadow import Shadowed, ShadowEvictor, ShadowMode

NEW_GATES: Mapping[str, FeatureGate] = {
    INTERFERENCE: FeatureGate(
        False, FeatureStage.ALPHA, "notice how services suffer, and name the pods that make them"
    ),
    **act.NEW_GATES,
}
"""Gates that the reference does not have."""


class InterferenceParts:
    """One of each, in the order in which they are started."""

    def __init__(self, shared: Shared, evictor: CarriesOut, mode: ShadowMode) -> None:
        self.scrapes = LatencyScrapes(shared)
        self.reporter = VerdictReporter(shared)
        self.counters = CounterSampler(shared)
        self.watch = InterferenceDetector(shared, self.scrapes, self.counters, self.reporter)
        double = ShadowEvictor(
            mode.shared_in_shadow(), on_evicted=partial(mode.bill_eviction, {}, is_shadow=True)
        )

        def control(given: Shared) -> list[InterferenceControl]:
            return [InterferenceControl(given, evictor if given is shared else double)]

        self._control = Shadowed(InterferenceControl.name, mode, shared, control, shadow.closed_loop_cost)

    @property
    def strategies(self) -> list[Strategy]:
        """Return the loops."""
        return [self.scrapes, self.counters, self.watch, *self._control.parts()]

    def answer(self, pod: str) -> dict[str, Any]:
        """Return what is known of a pod (of all when that is empty), and the last steps of the loop."""
        (control,) = self._control.in_force
        return self.reporter.answer(pod) | (
            control.records.report() if isinstance(control, InterferenceControl) else {}
        )

    def close(self) -> None:
        """Close connections."""
        self.scrapes.close()
