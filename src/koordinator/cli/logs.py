"""Log lines for people (time, level, where, the phrase, the facts as key=value) or for machines (JSON)."""

import fnmatch
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from koordinator.api.errors import KoordinatorError

log = logging.getLogger(__name__)

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

REPEAT_S = 10.0
KINDS_MAX = 256
TEXT_CHARS_MAX = 200
BAD_REQUESTS = frozenset({"HttpProcessingError", "RequestPayloadError", "ConnectionError", "SSLError"})
"""Exceptions that tell of what somebody sent, by name: importing their modules would make every command slow."""

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


class Failures(logging.Filter):
    """Keeps failures from flooding the log: whoever sends nonsense decides how often they happen.

    The first failure of a kind (same logger, exception and line of code) keeps its traceback, unless the request was
    to blame; the next is a line that counts those since, at most every `REPEAT_S`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str, str], list[float]] = {}  # when told last, and how many since

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        names = {each.__name__ for each in type(error).__mro__}
        place = _place(error)
        if len(self._seen) > KINDS_MAX:
            self._seen.clear()
        seen = self._seen.setdefault((record.name, type(error).__name__, place), [-math.inf, 0])
        if record.created - seen[0] < REPEAT_S:
            seen[1] += 1
            return False
        if names & BAD_REQUESTS or seen[0] > -math.inf:
            text = " ".join(str(error).split())[:TEXT_CHARS_MAX]
            more = f" ({seen[1]:.0f} more since)" if seen[1] else ""
            record.msg = f"{record.getMessage()}: {type(error).__name__}: {text} at {place}{more}"
            record.args, record.exc_info, record.exc_text = (), None, None
        seen[:] = [record.created, 0]
        return True


def _place(error: BaseException) -> str:
    """File and line that raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "no place" if at is None else f"{at.tb_frame.f_code.co_filename.rpartition('/')[2]}:{at.tb_lineno}"


def level_of(verbosity: int) -> int:
    """Return the level of a Kubernetes `-v`: 0 warnings, 1 to 3 changes too, from 4 on decisions too."""
    if verbosity >= DEBUG_VERBOSITY:
        return logging.DEBUG
    return logging.INFO if verbosity >= INFO_VERBOSITY else logging.WARNING


class VerbosityError(KoordinatorError, ValueError):
    """`--vmodule` cannot be understood."""


def modules_of(text: str) -> dict[str, int]:
    """`--vmodule` as levels by pattern. Raises: VerbosityError."""
    found = {}
    for entry in filter(None, text.split(",")):
        pattern, equals, number = entry.partition("=")
        if not equals or not number.isdigit():
            raise VerbosityError("--vmodule", f"{entry!r} is not pattern=N")
        found[pattern] = level_of(int(number))
    return found


def set_up(level: int, *, as_json: bool = False, modules: Mapping[str, int] | None = None) -> None:
    """Send log lines of `level` and above to standard error; `modules` maps patterns of module names
    (the last part, or the whole dotted name) to levels of their own."""
    handler = logging.StreamHandler()
    handler.addFilter(Failures())
    handler.setFormatter(JsonFormatter() if as_json else FactsFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for pattern, own in (modules or {}).items():
        for name in list(logging.Logger.manager.loggerDict):
            if fnmatch.fnmatch(name.rpartition(".")[2], pattern) or fnmatch.fnmatch(name, pattern):
                logging.getLogger(name).setLevel(own)


def set_up_by_flags(values: Mapping[str, Any], without_effect: Mapping[str, str]) -> None:
    """Send log lines to standard error as the flags `v`, `vmodule` and `logging_format` say, first of all those about
    flags that were given `without_effect`, each with the reason. Raises: VerbosityError."""
    as_json = values["logging_format"] == "json"
    set_up(level_of(values["v"]), as_json=as_json, modules=modules_of(values["vmodule"]))
    for flag, why in without_effect.items():
        log.warning("flag has no effect", extra={"flag": flag, "why": why})


def set_verbosity(verbosity: int) -> None:
    """Change the level while running."""
    logging.getLogger().setLevel(level_of(verbosity))


def keep_quiet() -> None:
    """Print no log lines: for commands that tell everything in their answer or error message."""
    package = logging.getLogger("koordinator")
    if not any(isinstance(handler, logging.NullHandler) for handler in package.handlers):
        package.addHandler(logging.NullHandler())
