"""Read what the kubelet leaves on the host: its processes' arguments, its configuration, its CPU manager's state.

Source: behaviour/koordlet-observe 3.1 and 9.3.
"""

import os

import msgspec

from koordinator.api import yaml_text
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files
from koordinator.host.processes import Processes
from koordinator.host.roots import HostRoots

_STATE = "cpu_manager_state"
_DRIVER_FLAG, _CONFIG_FLAG = "--cgroup-driver", "--config"
_NAME = "kubelet"


class FoundDriver(msgspec.Struct, frozen=True):
    """The kubelet's cgroup driver, and what told so; None while nothing does."""

    driver: Driver | None
    source: str


def cpu_manager_state(files: Files, roots: HostRoots) -> str | None:
    """Return text of the CPU manager's checkpoint; None when there is none."""
    return files.read(f"{roots.kubelet}/{_STATE}")


def cgroup_driver(cgroups: Cgroups, processes: Processes, roots: HostRoots) -> FoundDriver:
    """Return the driver by the directories that exist, else by the kubelet's arguments and its configuration file."""
    found = cgroups.driver()
    if found is not None:
        return FoundDriver(found, "directories of pods")
    pid = kubelet_pid(processes)
    if pid is None:
        return FoundDriver(None, "no directories of pods and no kubelet process yet")
    arguments = processes.command(pid) or []
    stated = flag(arguments, _DRIVER_FLAG)
    if stated is not None:
        return FoundDriver(_driver(stated), f"{_DRIVER_FLAG} of the kubelet")
    config = flag(arguments, _CONFIG_FLAG)
    if config is None:
        return FoundDriver(Driver.CGROUPFS, "the kubelet has neither flag nor configuration file")
    path = os.path.normpath(f"{roots.proc}/{pid}/root/{config}")
    text = cgroups.files.read(path)
    if text is None:
        return FoundDriver(None, f"{path} cannot be read")
    stated = config_value(text, "cgroupDriver")
    return FoundDriver(_driver(stated or Driver.CGROUPFS), f"{config} of the kubelet")


def kubelet_pid(processes: Processes) -> int | None:
    """Return the process of the kubelet, by its name; the oldest of several."""
    return next((pid for pid in processes.pids() if processes.name(pid) == _NAME), None)


def flag(arguments: list[str], name: str) -> str | None:
    """Value of a flag among arguments, as `--name=value` or `--name value`; the last one counts."""
    found = None
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
        elif argument == name and index + 1 < len(arguments):
            found = arguments[index + 1]
    return found


def config_value(text: str, key: str) -> str | None:
    """Return a text at the top of the kubelet's configuration file; None when it is missing or the file is
    malformed.
    """
    try:
        config = yaml_text.load(text)
    except yaml_text.YamlError:
        return None
    value = config.get(key) if isinstance(config, dict) else None
    return value if isinstance(value, str) and value else None


def _driver(text: str) -> Driver | None:
    return Driver(text) if text in (Driver.SYSTEMD, Driver.CGROUPFS) else None
