"""The flags of `koord-descheduler`. Source: behaviour/descheduler 1.1."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from koordinator.cli import flag_kinds, serving_flags
from koordinator.cli.flag_kinds import Decorate, file, listed, text
from koordinator.cli.flag_settings import FlagError
from koordinator.cli.serving_flags import ServingFlags


class Flags(ServingFlags, frozen=True, kw_only=True):
    """The command line; names are those of the flags. None means that the flag was not given."""

    config: Path | None
    write_config_to: Path | None
    dry_run: bool
    kubeconfig: str
    master: str
    address: str | None
    port: int | None
    feature_gates: str
    v: int
    vmodule: str
    logging_format: str
    disabled_metrics: tuple[str, ...]


OPTIONS: tuple[Decorate, ...] = (
    file("config", "The configuration file (DeschedulerConfiguration)."),
    click.option(
        "--write-config-to",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the configuration in force here, with all defaults, and exit.",
    ),
    click.option(
        "--dry-run", is_flag=True, help="Change nothing, whatever the file says; tell what would be evicted."
    ),
    text("kubeconfig", "", "Kubeconfig file; a pod needs none. The file's clientConnection wins."),
    text("master", "", "URL of the API server, instead of the one in a kubeconfig."),
    text("address", None, "Where to serve insecure HTTP (default 0.0.0.0). Ignored with --config."),
    click.option(
        "--port",
        type=flag_kinds.PORT,
        help="Port of insecure HTTP (default 10251); 0: none. Ignored with --config (healthzBindAddress).",
    ),
    *serving_flags.options(secure_port=10258),
    *serving_flags.ELECTION,
    text("feature-gates", "", "Gate=true,Other=false."),
    flag_kinds.verbosity(),
    text("vmodule", "", "pattern=N,…: another -v for the modules whose name matches."),
    click.option("--logging-format", type=click.Choice(("text", "json")), default="text", show_default=True),
    listed("disabled-metrics", "", "Names of metrics that are not shown."),
)

WITHOUT_EFFECT: dict[str, str] = {
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
"""Flags of others' command lines that are read so that these work, each with why it changes nothing."""


def options(command: Any) -> Any:
    """Put all flags on a command."""
    for name, why in reversed(WITHOUT_EFFECT.items()):
        command = flag_kinds.without_effect(name, why)(command)
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def of(values: Mapping[str, Any]) -> tuple[Flags, list[str]]:
    """Return the flags, and those that were given although they have no effect. Raises: FlagError."""
    given = [name for name in WITHOUT_EFFECT if values[name.replace("-", "_")] is not None]
    flags = Flags(**{field: values[field] for field in Flags.__struct_fields__})
    if flags.address is not None:
        try:
            ipaddress.ip_address(flags.address)
        except ValueError as error:
            raise FlagError("--address", str(error)) from error
    return flags, given
