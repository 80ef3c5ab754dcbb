"""Templates of slices that NPUs can be cut into, and who needs one. Source: behaviour/devices 6.1."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordinator.api import labels, resources, yaml_text
from koordinator.api.core import ConfigMap
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.scheduler.plugin.status import unresolvable
from koordinator.scheduler.plugins.device_share.inventory import amounts_of
from koordinator.scheduler.plugins.device_share.request import Amounts, PerDevice

log = logging.getLogger(__name__)

NO_TEMPLATE = unresolvable("no matched GPU shared resource template")
DATA_KEY = "data.yaml"

Templates = Mapping[str, Mapping[str, Amounts]]
"""`vendor-model` → template → amounts."""


class GPUTemplates(msgspec.Struct, frozen=True):
    """Templates, and the resources of which shared requests need one."""

    of_models: Templates = {}
    matched_resources: frozenset[str] = frozenset((resources.HUAWEI_NPU_CORE,))

    def concern(self, wanted: PerDevice) -> bool:
        """Return whether a request has to equal a template."""
        return wanted.is_shared and not self.matched_resources.isdisjoint(wanted.amounts)

    def refuse(self, wanted: PerDevice) -> bool:
        """Return whether a request has to equal a template and no model has one."""
        return self.concern(wanted) and not any(
            of == wanted.amounts for named in self.of_models.values() for of in named.values()
        )

    def equal_on(self, node_labels: Mapping[str, str], amounts: Amounts) -> list[str]:
        """Return the names of the templates of a node's model that equal the amounts."""
        key = f"{node_labels.get(labels.GPU_VENDOR, '')}-{node_labels.get(labels.GPU_MODEL, '')}"
        return [name for name, of in self.of_models.get(key, {}).items() if of == amounts]


class GPUTemplatesConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The ConfigMap with the templates, and the resources of which shared requests need one."""

    config_map_namespace: str = "koordinator-system"
    config_map_name: str = "gpu-shared-resource-templates"
    matched_resources: tuple[str, ...] = (resources.HUAWEI_NPU_CORE,)


def read_templates(found: ConfigMap) -> Templates:
    """Return the templates of a ConfigMap; none when it has no text. Raises: ProtocolError."""
    name = f"ConfigMap {found.metadata.namespace}/{found.metadata.name}"
    try:
        body: Any = yaml_text.load(found.data.get(DATA_KEY, ""))
        models = msgspec.convert(body or {}, dict[str, dict[str, dict[str, str | int]]])
        return {
            model: {template: amounts_of(amounts) for template, amounts in of_model.items()}
            for model, of_model in models.items()
        }
    except (yaml_text.YamlError, msgspec.ValidationError, QuantityError) as error:
        raise ProtocolError(name, f"data[{DATA_KEY!r}]", str(error)) from error


class TemplateSource:
    """The templates as the ConfigMap says; content that cannot be read leaves those before."""

    def __init__(self, config: GPUTemplatesConfig, changed: Callable[[], None]) -> None:
        self.templates = GPUTemplates({}, frozenset(config.matched_resources))
        self.version = 0
        """Grows whenever there are other templates."""
        self._changed = changed

    def set_config_map(self, found: ConfigMap | None) -> None:
        """Take in what the ConfigMap says now; None when there is none."""
        try:
            of_models = read_templates(found) if found is not None else {}
        except ProtocolError as problem:
            log.warning("templates of shared GPUs stay as they were: %s", problem)
            return
        if of_models != self.templates.of_models:
            self.templates = GPUTemplates(of_models, self.templates.matched_resources)
            self.version += 1
            self._changed()
