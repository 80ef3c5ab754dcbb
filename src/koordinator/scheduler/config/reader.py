"""From the text of a configuration to its struct, for the scheduler: `config_text` with our versions and our error."""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import config_text
from koordinator.api.config_text import ConfigFileError, problems_of, without_nulls

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"


class SchedulerConfigError(ConfigFileError):
    """The scheduler's configuration cannot be used."""

    of_what = "scheduler configuration"


def read_yaml(text: str | bytes) -> Any:
    """Return the body of a YAML or JSON text. Raises: SchedulerConfigError."""
    return config_text.read_yaml(text, SchedulerConfigError)


def check_version(body: Mapping[str, Any], kind: str, field: str = "") -> None:
    """Refuse a text whose `apiVersion` and `kind` are absent or not ours. Raises: SchedulerConfigError."""
    if found := config_text.version_problems(body, API_VERSION, kind, field):
        raise SchedulerConfigError.of(found)


def convert(body: Any, kind: type[msgspec.Struct], field: str = "") -> Any:
    """`body` as `kind`. `null` means "not set", as upstream. Raises: SchedulerConfigError with all problems."""
    body = without_nulls(body)
    if found := problems_of(body, kind, field):
        raise SchedulerConfigError.of(found)
    return msgspec.convert(body, kind)
