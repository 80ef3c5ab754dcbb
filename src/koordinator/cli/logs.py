"""Log lines for people: time, level, where, the phrase, and the facts as key=value."""

import logging

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FactsFormatter(logging.Formatter):
    """Appends the `extra` fields of a record to its line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        facts = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        return line + "".join(f" {name}={value!r}" for name, value in facts.items())


def set_up(level: int) -> None:
    """Send log lines of `level` and above to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(FactsFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
