"""`koord-device-daemon`: describes accelerators to the node agent that only their vendors' tools can read."""

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import click

from koordinator import __version__
from koordinator.api import duration, scalars, user_files, yaml_text
from koordinator.api.errors import KoordinatorError
from koordinator.cli import flag_kinds, logs, running
from koordinator.cli.flag_kinds import GoFlagCommand
from koordinator.koordlet.device_daemon import daemon
from koordinator.koordlet.device_daemon.daemon import DaemonConfig, DeviceDaemon

FLAGS = {
    "oneshot": "oneshot",
    "noTimestamp": "no_timestamp",
    "sleepInterval": "sleep_interval",
    "printsOutputFile": "prints_output_file",
    "hostRoot": "host_root",
}
"""Names in the configuration file, below `flags`."""
_DEFAULTS = {
    "oneshot": False,
    "sleep_interval": f"{daemon.SLEEP_S:.0f}s",
    "prints_output_file": daemon.OUTPUT,
    "host_root": daemon.HOST_ROOT,
}


class ConfigFileError(KoordinatorError):
    """The configuration file cannot be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@click.command(
    cls=GoFlagCommand,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "KDD",
        "max_content_width": 120,
    },
)
@flag_kinds.switch("oneshot", None, "Write the file once and end; it stays then.")
@flag_kinds.without_effect("no-timestamp", "the file holds no time", is_switch=True)
@flag_kinds.time("sleep-interval", None, "Time between two cycles.  [default: 900s]")
@flag_kinds.text("prints-output-file", None, f"The file to write.  [default: {daemon.OUTPUT}]")
@flag_kinds.text("host-root", None, f"Where the host is mounted, / for none.  [default: {daemon.HOST_ROOT}]")
@flag_kinds.file("config-file", "YAML with the same settings below `flags`; flags go before it.")
@click.version_option(__version__, prog_name="koord-device-daemon")
def main(**values: Any) -> None:
    """Ask the tools of accelerators' vendors (npu-smi, cnmon, xpu_smi, mx-smi) and write a file for the node agent.

    Each flag can be set by an environment variable as well, such as KDD_SLEEP_INTERVAL. SIGHUP reads the configuration
    file again and asks at once. The file is removed when the daemon ends.
    """
    logs.set_up(logging.INFO)
    with running.one_line_errors():
        configure(values)
        running.run(_main(values))


def configure(values: dict[str, Any]) -> DaemonConfig:
    """Return the configuration from flags, environment, configuration file and defaults, in this order of
    precedence. Raises: ConfigFileError."""
    path = values.get("config_file")
    settings = {**_DEFAULTS, **(_of_file(path) if path is not None else {})}
    settings |= {key: value for key, value in values.items() if value is not None}
    return DaemonConfig(
        oneshot=bool(settings["oneshot"]),
        sleep_s=max(duration.parse(settings["sleep_interval"]), 1.0),
        output=settings["prints_output_file"],
        host_root=settings["host_root"] or "/",
    )


def _of_file(path: Path) -> dict[str, Any]:
    try:
        config = yaml_text.load(user_files.read_text(path))
    except user_files.FileError as error:
        raise ConfigFileError(path, ": ".join(filter(None, (error.place, error.reason)))) from error
    except (OSError, yaml_text.YamlError) as error:
        raise ConfigFileError(path, str(error)) from error
    flags = config.get("flags") if isinstance(config, dict) else None
    if not isinstance(flags, dict):
        raise ConfigFileError(path, "expected a mapping with `flags`")
    unknown = sorted(str(name) for name in flags if name not in FLAGS)
    if unknown:
        raise ConfigFileError(path, f"flags.{unknown[0]}: no such setting; there are {', '.join(FLAGS)}")
    return {FLAGS[name]: _checked(path, name, value) for name, value in flags.items()}


def _checked(path: Path, name: str, value: Any) -> Any:
    try:
        if name in ("oneshot", "noTimestamp"):
            return value if isinstance(value, bool) else scalars.parse_bool(str(value))
        if name == "sleepInterval":
            duration.parse(str(value))
    except scalars.ScalarError as error:
        raise ConfigFileError(path, f"flags.{name}: {error}") from error
    return str(value)


async def _main(values: dict[str, Any]) -> None:
    made = DeviceDaemon(lambda: configure(values))
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, made.reload)
    await made.run()


if __name__ == "__main__":
    sys.exit(main())
