"""The scheduler's configuration for commands that decide by themselves, without a running scheduler."""

from pathlib import Path

from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import SchedulerConfig

DEFAULT_SCHEDULER = "default-scheduler"


def read_config(config_file: Path | None) -> SchedulerConfig:
    """Return the file, or the shipped profile under its own name and that of the stock scheduler. Raises: ConfigError,
    OSError."""
    if config_file is not None:
        return config.read(config_file)
    return default_plugins.shipped_config("koord-scheduler", DEFAULT_SCHEDULER)
