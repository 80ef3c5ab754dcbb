"""`koord-device-daemon`: describes accelerators to the node agent that only their vendors' tools can read."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import click

from koordinator import __version__
from koordinator.api import duration, scalars, user_files, yaml_text
from koordinator.api.user_files import FileError
from koordinator.cli import flag_kinds, flag_settings, logs, options, running
from koordinator.cli.flag_kinds import GoFlagCommand
from koordinator.cli.flag_settings import InertFlags
from koordinator.koordlet.device_daemon import daemon
from koordinator.koordlet.device_daemon.daemon import DaemonConfig, DeviceDaemon

FLAGS = {
    "oneshot": "oneshot",
    "noTimestamp": "no_timestamp",
    "sleepInterval": "sleep_interval",
    "printsOutputFile": "prints_output_file",
    "hostRoot": "host_root",
}
"""Names in the configuration file, below `flags.kdd`."""
VERSION = "v1"
"""The version of configuration files, also of one that does not say it."""
_DEFAULTS = {
    "oneshot": False,
    "sleep_interval": f"{daemon.SLEEP_S:.0f}s",
    "prints_output_file": daemon.OUTPUT,
    "host_root": daemon.HOST_ROOT,
}
_PREFIX = "KDD"
_INERT = InertFlags(flag_settings.LOG_FLAGS, flag_settings.LOG_SWITCHES)


@click.command(
    cls=GoFlagCommand,
    context_settings={
        **flag_kinds.SETTINGS,
        "auto_envvar_prefix": _PREFIX,
    },
)
@flag_kinds.switch("oneshot", None, "Write the file once and end; it stays then.")
@flag_kinds.without_effect("no-timestamp", "the file holds no time", is_switch=True)
@flag_kinds.time("sleep-interval", None, "Time between two cycles.  [default: 900s]")
@click.option(
    "--prints-output-file",
    envvar=[f"{_PREFIX}_PRINTS_OUTPUT_FILE", "PRINTS_OUTPUT_FILE"],
    help=f"The file to write; empty: standard output.  [default: {daemon.OUTPUT}]",
)
@flag_kinds.text("host-root", None, f"Where the host is mounted, / for none.  [default: {daemon.HOST_ROOT}]")
@click.option(
    "--config-file",
    type=flag_kinds.FILE,
    envvar=[f"{_PREFIX}_CONFIG_FILE", "CONFIG_FILE"],
    help="YAML with the same settings below `flags.kdd`; flags go before it.",
)
@options.together(*flag_settings.LOGGING, *_INERT.options())
@click.version_option(__version__, prog_name="koord-device-daemon")
def main(**values: Any) -> None:
    """Ask the tools of accelerators' vendors (npu-smi, cnmon, xpu_smi, mx-smi) and write a file for the node agent.

    Each flag can be set by an environment variable as well, such as KDD_SLEEP_INTERVAL. SIGHUP reads the configuration
    file again and asks at once. The file is removed when the daemon ends.
    """
    with running.one_line_errors():
        logs.set_up_by_flags(values | {"v": max(values["v"], 1)}, _INERT.given(values))
        configure(values)
        running.run(_main(values))


def configure(values: dict[str, Any]) -> DaemonConfig:
    """Return the configuration from flags, environment, configuration file and defaults, in this order of
    precedence. Raises: FileError."""
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
    except (OSError, yaml_text.YamlError) as error:
        raise FileError(str(path), "", str(error)) from error
    settings = _settings(path, config)
    unknown = sorted(str(name) for name in settings if name not in FLAGS)
    if unknown:
        reason = f"no such setting; there are {', '.join(FLAGS)}"
        raise FileError(str(path), f"flags.kdd.{unknown[0]}", reason)
    return {FLAGS[name]: _checked(path, name, value) for name, value in settings.items()}


def _settings(path: Path, config: Any) -> dict[Any, Any]:
    """Return what the file says below `flags.kdd`, nothing where it leaves that out."""
    found: Any = {} if config is None else config
    version = isinstance(found, dict) and found.get("version")
    if version and version != VERSION:
        raise FileError(str(path), f"version: {version!r}", f"only {VERSION} can be read")
    for place in ("flags", "kdd"):
        if isinstance(found, dict):
            found = found.get(place) or {}
    if not isinstance(found, dict):
        raise FileError(str(path), "", "expected a mapping with the settings below `flags.kdd`")
    return found


def _checked(path: Path, name: str, value: Any) -> Any:
    try:
        if name in ("oneshot", "noTimestamp"):
            return value if isinstance(value, bool) else scalars.parse_bool(str(value))
        if name == "sleepInterval":
            duration.parse(str(value))
    except scalars.ScalarError as error:
        raise FileError(str(path), f"flags.kdd.{name}", str(error)) from error
    return str(value)


async def _main(values: dict[str, Any]) -> None:
    made = DeviceDaemon(lambda: configure(values))
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, made.reload)
    await made.run()


if __name__ == "__main__":
    main()
