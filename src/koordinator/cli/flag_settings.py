"""Flags that set the fields of a configuration, as tables: name of the flag -> field, and what it is for.

Defaults are those of the fields, so that a flag and the code that reads the field cannot disagree.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import click
import msgspec

from koordinator.api import duration
from koordinator.api.errors import SubjectError
from koordinator.cli import flag_kinds
from koordinator.cli.flag_kinds import Decorate
from koordinator.cluster.backoff import Rate

C = TypeVar("C", bound=msgspec.Struct)
_whole = partial(flag_kinds.count, kind=click.IntRange(min=0))


class FlagError(SubjectError, ValueError):
    """A flag or environment variable has an invalid value."""


class Setting(msgspec.Struct, frozen=True):
    """A flag that sets a field (`section.name` for those of a section): `kind` gives the option from name, default
    and help, `read` the field's value from the flag's, `show` the flag's default from the field's."""

    field: str
    words: str
    kind: Callable[..., Decorate] = flag_kinds.text
    read: Callable[[Any], Any] = lambda value: value
    show: Callable[[Any], Any] = lambda value: value


def text(field: str, words: str) -> Setting:
    return Setting(field, words)


def switch(field: str, words: str) -> Setting:
    return Setting(field, words, flag_kinds.switch)


def time(field: str, words: str) -> Setting:
    """Return a flag that takes a duration; the field has seconds."""
    return Setting(field, words, flag_kinds.time, duration.parse, duration.text_of)


def listed(field: str, words: str) -> Setting:
    """Return a flag that takes texts separated by commas; the field has a tuple."""
    return Setting(field, words, flag_kinds.listed, show=",".join)


def number(field: str, words: str) -> Setting:
    """Return a flag that takes a whole number, at least 0."""
    return Setting(field, words, _whole)


def natural(field: str, words: str) -> Setting:
    """Return a flag that takes a whole number, at least 1."""
    return Setting(field, words, flag_kinds.count)


def whole_seconds(field: str, words: str) -> Setting:
    """Return a flag that takes whole seconds; the field has a float."""
    return Setting(field, words, _whole, float, int)


def options(settings: Mapping[str, Setting], defaults: msgspec.Struct) -> list[Decorate]:
    """Return the options of a command."""
    return [
        setting.kind(name, setting.show(get(defaults, setting.field)), setting.words)
        for name, setting in settings.items()
    ]


def read(settings: Mapping[str, Setting], config: C, values: Mapping[str, Any]) -> C:
    """Return the configuration with the values of a command line."""
    for name, setting in settings.items():
        config = put(config, setting.field, setting.read(values[name.replace("-", "_")]))
    return config


def get(config: msgspec.Struct, field: str) -> Any:
    """Return the value of `name` or `section.name`."""
    value: Any = config
    for name in field.split("."):
        value = getattr(value, name)
    return value


def put(config: C, field: str, value: Any) -> C:
    """Return the configuration with a new value of `name` or `section.name`."""
    section, dot, name = field.rpartition(".")
    if not dot:
        return msgspec.structs.replace(config, **{name: value})
    changed = msgspec.structs.replace(get(config, section), **{name: value})
    return msgspec.structs.replace(config, **{section: changed})


# Flags that every component has

_LINES = "lines are written to standard error at once"
LOG_FLAGS: Mapping[str, str] = {
    "log-backtrace-at": _LINES,
    "log-dir": _LINES,
    "log-file": _LINES,
    "log-file-max-size": _LINES,
    "log-flush-frequency": _LINES,
    "stderrthreshold": _LINES,
}
"""Flags of klog that are accepted and ignored, each with the reason."""

LOG_SWITCHES: Mapping[str, str] = {
    "logtostderr": _LINES,
    "alsologtostderr": _LINES,
    "add-dir-header": _LINES,
    "one-output": _LINES,
    "skip-headers": _LINES,
    "skip-log-headers": _LINES,
    "legacy-stderr-threshold-behavior": _LINES,
}
"""The same for switches."""

COMPONENT_BASE_FLAGS: Mapping[str, str] = {
    "allow-metric-labels": "all labels are shown",
    "allow-metric-labels-manifest": "all labels are shown",
    "disable-http2-serving": "HTTP/1.1 is served",
    "http2-max-streams-per-connection": "HTTP/1.1 is served",
    "log-flush-frequency": "lines are written at once",
    "log-json-info-buffer-size": "lines are written at once",
    "log-json-split-stream": "all lines go to standard error",
    "log-text-info-buffer-size": "lines are written at once",
    "log-text-split-stream": "all lines go to standard error",
    "show-hidden-metrics-for-version": "no metric is hidden",
}
"""Flags of Kubernetes' component-base that are accepted and ignored, each with the reason."""

LOGGING: tuple[Decorate, ...] = (
    flag_kinds.verbosity(),
    flag_kinds.text("vmodule", "", "pattern=N,…: another -v for the modules whose name matches."),
    click.option("--logging-format", type=click.Choice(("text", "json")), default="text", show_default=True),
)


class InertFlags(msgspec.Struct, frozen=True):
    """Flags of others' command lines that are read so that these work, each with why it changes nothing."""

    flags: Mapping[str, str]
    switches: Mapping[str, str] = {}

    def options(self) -> list[Decorate]:
        """Return the options of a command, each with the reason in its help."""
        return [
            *(flag_kinds.without_effect(name, why) for name, why in self.flags.items()),
            *(flag_kinds.without_effect(name, why, is_switch=True) for name, why in self.switches.items()),
        ]

    def given(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return those that were given, as they were written, with the reasons."""
        return {
            f"--{name}": why
            for name, why in {**self.flags, **self.switches}.items()
            if values[name.replace("-", "_")] is not None
        }


def served_at(flag: str, text: str) -> tuple[str, int] | None:
    """Return host and port of an address; None for those that switch a server off. Raises: FlagError."""
    return None if text in ("", "0") else host_and_port(flag, text)


def client_rate(per_s: int, burst: int) -> Rate:
    """Return the rate of requests; for 0 or less the default of upstream's client."""
    return Rate(per_s=float(per_s) if per_s > 0 else 20.0, burst=burst if burst > 0 else 30)


def host_and_port(flag: str, text: str) -> tuple[str, int]:
    """Return host and port of an address in Go's form: `:9316`, `127.0.0.1:9316`, `[::1]:9316`. Raises: FlagError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise FlagError(flag, f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
