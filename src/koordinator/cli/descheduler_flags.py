"""The flags of `koord-descheduler`. Source: behaviour/descheduler 1.1."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from koordinator.cli import flag_kinds, flag_settings, serving_flags
from koordinator.cli.flag_kinds import Decorate, file, listed, text
from koordinator.cli.flag_settings import FlagError, InertFlags
from koordinator.cli.options import together
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
    *flag_settings.LOGGING,
    listed("disabled-metrics", "", "Names of metrics that are not shown."),
)

INERT = InertFlags(
    {**flag_settings.LOG_FLAGS, **flag_settings.COMPONENT_BASE_FLAGS}, flag_settings.LOG_SWITCHES
)

options = together(*OPTIONS, *INERT.options())


def of(values: Mapping[str, Any]) -> Flags:
    """Return the flags. Raises: FlagError."""
    flags = Flags(**{field: values[field] for field in Flags.__struct_fields__})
    if flags.address is not None:
        try:
            ipaddress.ip_address(flags.address)
        except ValueError as error:
            raise FlagError("--address", str(error)) from error
    return flags
