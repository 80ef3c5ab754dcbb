"""All parts of this room, put together."""

from collections.abc import Mapping

from koordinator.api.feature_gates import FeatureGate, FeatureStage
from koordinator.koordlet.interference.counters import CounterSampler
from koordinator.koordlet.interference.scrape import LatencyScrapes
from koordinator.koordlet.interference.tell import Teller
from koordinator.koordlet.interference.watch import InterferenceWatch
from koordinator.koordlet.parts import Shared, Strategy
from koordinator.koordlet.suffering import INTERFERENCE

NEW_GATES: Mapping[str, FeatureGate] = {
    INTERFERENCE: FeatureGate(
        False, FeatureStage.ALPHA, "notice how services suffer, and name the pods that make them"
    )
}
"""Gates that the reference does not have."""


class InterferenceParts:
    """One of each, in the order in which they are started."""

    def __init__(self, shared: Shared) -> None:
        self.scrapes = LatencyScrapes(shared)
        self.teller = Teller(shared)
        self.counters = CounterSampler(shared)
        self.watch = InterferenceWatch(shared, self.scrapes, self.counters, self.teller)

    @property
    def strategies(self) -> list[Strategy]:
        """Return the loops."""
        return [self.scrapes, self.counters, self.watch]

    def close(self) -> None:
        """Close connections."""
        self.scrapes.close()
