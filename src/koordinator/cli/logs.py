"""Log lines for people (time, level, where, the phrase, the facts as key=value) or for machines (JSON)."""

import fnmatch
import json
import logging
from collections.abc import Mapping

from koordinator.api.errors import KoordinatorError

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

INFO_VERBOSITY = 1
DEBUG_VERBOSITY = 4


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


class FactsFormatter(logging.Formatter):
    """Appends the `extra` fields of a record to its line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return line + "".join(f" {name}={value!r}" for name, value in _facts(record).items())


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the keys of Kubernetes components: ts (milliseconds), level, logger, msg."""

    def format(self, record: logging.LogRecord) -> str:
        body = {
            "ts": round(record.created * 1000, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            body["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str)


def level_of(verbosity: int) -> int:
    """The level of a Kubernetes `-v`: 0 warnings, 1 to 3 changes too, from 4 on decisions too."""
    if verbosity >= DEBUG_VERBOSITY:
        return logging.DEBUG
    return logging.INFO if verbosity >= INFO_VERBOSITY else logging.WARNING


class VerbosityError(KoordinatorError, ValueError):
    """`--vmodule` cannot be understood."""

    def __init__(self, entry: str) -> None:
        super().__init__(entry)
        self.entry = entry

    def __str__(self) -> str:
        return f"--vmodule: {self.entry!r} is not pattern=N"


def modules_of(text: str) -> dict[str, int]:
    """`--vmodule` as levels by pattern. Raises: VerbosityError."""
    found = {}
    for entry in filter(None, text.split(",")):
        pattern, equals, number = entry.partition("=")
        if not equals or not number.isdigit():
            raise VerbosityError(entry)
        found[pattern] = level_of(int(number))
    return found


def set_up(level: int, *, as_json: bool = False, modules: Mapping[str, int] | None = None) -> None:
    """Send log lines of `level` and above to standard error; `modules` maps patterns of module names
    (the last part, or the whole dotted name) to levels of their own."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else FactsFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for pattern, own in (modules or {}).items():
        for name in list(logging.Logger.manager.loggerDict):
            if fnmatch.fnmatch(name.rpartition(".")[2], pattern) or fnmatch.fnmatch(name, pattern):
                logging.getLogger(name).setLevel(own)


def set_verbosity(verbosity: int) -> None:
    """Change the level while running."""
    logging.getLogger().setLevel(level_of(verbosity))


def keep_quiet() -> None:
    """Print no log lines: for commands that tell everything in their answer or error message."""
    package = logging.getLogger("koordinator")
    if not any(isinstance(handler, logging.NullHandler) for handler in package.handlers):
        package.addHandler(logging.NullHandler())
