"""Decide whether a node has been hot for long enough. Source: behaviour/descheduler 6.7."""

from collections.abc import Iterable

import msgspec


class AnomalyRule(msgspec.Struct, frozen=True):
    """More than `abnormalities` marks in a row start an anomaly, `timeout_s` or `normalities` end it."""

    timeout_s: float
    abnormalities: int
    normalities: int


class Detector:
    """Counts abnormal and normal marks of one node."""

    def __init__(self, rule: AnomalyRule) -> None:
        self._rule = rule
        self._abnormal = 0
        self._normal = 0
        self._anomaly_until_s: float | None = None

    def is_anomalous(self, now_s: float) -> bool:
        """Return whether the node is in the state of anomaly, after ending one that is over."""
        until_s = self._anomaly_until_s
        if until_s is not None and (until_s < now_s or self._normal > self._rule.normalities):
            self._change(None)
        return self._anomaly_until_s is not None

    def mark_abnormal(self, now_s: float) -> bool:
        """Note that the node looks abnormal; return whether it is in anomaly then. Marks during an anomaly do not
        make it longer.
        """
        is_anomalous = self.is_anomalous(now_s)
        self._abnormal += 1
        self._normal = 0
        if not is_anomalous and self._abnormal > self._rule.abnormalities:
            self._change(now_s + self._rule.timeout_s)
        return self._anomaly_until_s is not None

    def mark_normal(self, now_s: float) -> None:
        is_anomalous = self.is_anomalous(now_s)
        self._normal += 1
        self._abnormal = 0
        if is_anomalous and self._normal > self._rule.normalities:
            self._change(None)

    def reset(self, now_s: float) -> None:
        """End an anomaly. Without one the counters stay, as in the reference."""
        if self.is_anomalous(now_s):
            self._change(None)

    def _change(self, until_s: float | None) -> None:
        self._anomaly_until_s = until_s
        self._abnormal = self._normal = 0


class Detectors:
    """Detectors by node name, each forgotten `ttl_s` after its last abnormal mark (0: never)."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._known: dict[str, Detector] = {}
        self._marked_s: dict[str, float] = {}

    def mark_abnormal(self, node: str, rule: AnomalyRule, now_s: float) -> bool:
        """Note that the node looks abnormal; return whether it is in anomaly then. `rule` counts if its detector is
        new.
        """
        self._forget(now_s)
        detector = self._known.setdefault(node, Detector(rule))
        self._marked_s[node] = now_s
        return detector.mark_abnormal(now_s)

    def mark_normal(self, node: str, now_s: float) -> None:
        self._forget(now_s)
        if (detector := self._known.get(node)) is not None:
            detector.mark_normal(now_s)

    def reset(self, nodes: Iterable[str], now_s: float) -> None:
        self._forget(now_s)
        for node in nodes:
            if (detector := self._known.get(node)) is not None:
                detector.reset(now_s)

    def __len__(self) -> int:
        return len(self._known)

    def _forget(self, now_s: float) -> None:
        if self._ttl_s <= 0:
            return
        for node in [node for node, at_s in self._marked_s.items() if now_s - at_s > self._ttl_s]:
            del self._known[node], self._marked_s[node]
