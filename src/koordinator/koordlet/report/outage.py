"""Saying once that something cannot be told, and once that it can again: an API may be away for hours."""

import logging

log = logging.getLogger(__name__)


class Outage:
    """Failures of one named thing in a row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure_count = 0
        """In a row; 0 while all is well."""
        self._told = ""

    def failed(self, error: Exception | str) -> None:
        """Log the first failure of a row, and each that is of another kind than the one before."""
        self.failure_count += 1
        kind = error if isinstance(error, str) else type(error).__name__
        if kind != self._told:
            self._told = kind
            log.warning("%s failed: %s", self.name, error, extra={"failures": self.failure_count})

    def ended(self) -> None:
        """It worked."""
        if self.failure_count:
            log.info("%s works again after %d failures", self.name, self.failure_count)
        self.failure_count, self._told = 0, ""
