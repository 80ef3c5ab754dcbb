"""The generated files of the Helm chart: values with their descriptions, schema, and what templates read.

The templates themselves are written by hand; tests hold what they render against `objects`.
"""

import json
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from koordinator import __version__
from koordinator.api import defaults
from koordinator.install import configs, rbac
from koordinator.install.text import text
from koordinator.install.values import Section, Values
from koordinator.install.workloads import WEBHOOK_SERVICE
from koordinator.manager.webhooks import configuration
from koordinator.manager.webhooks.table import WEBHOOKS

Json = dict[str, Any]

NAME = "koordinator"
_HEADER = "# Made by `make manifests` from src/koordinator/install; change it there.\n"
_NAMESPACE = "NAMESPACE"
"""Stands for the namespace where a template puts it in."""
KUBERNETES = ">=1.22.0-0"
"""Evictions and everything that we apply are served in these versions from there on."""


def files() -> dict[str, str]:
    """Path in the chart → content."""
    found = {
        "Chart.yaml": _HEADER + text(_chart()),
        "values.yaml": values_yaml(),
        "values.schema.json": json.dumps(schema(), indent=2) + "\n",
        "files/priorityclasses.yaml": _HEADER + text(list(_priority_classes())),
        "files/webhooks.yaml": _HEADER + text(list(_webhooks())),
        "files/scheduler-config.yaml": configs.shipped_profile(_NAMESPACE),
        "files/descheduler-config.yaml": configs.shipped_descheduling(_NAMESPACE, configs.PORT_PLACE),
    }
    for component in rbac.rules():
        found[f"files/rbac/{component}-cluster.yaml"] = text(rbac.cluster_rules(component))
        if rules := rbac.namespace_rules(component):
            found[f"files/rbac/{component}-namespace.yaml"] = text(rules)
    return found


def _chart() -> Json:
    return {
        "apiVersion": "v2",
        "name": NAME,
        "description": "Run services and batch work on the same nodes, and keep the services fast.",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": KUBERNETES,
        "keywords": ["scheduler", "colocation", "qos", "batch"],
    }


def _priority_classes() -> Iterator[Json]:
    for body in defaults.priority_classes():
        yield {
            "name": body["metadata"]["name"],
            "value": body["value"],
            "description": body["description"],
            "preemptionPolicy": body["preemptionPolicy"],
        }


def _webhooks() -> Iterator[Json]:
    service = configuration.WebhookService(name=WEBHOOK_SERVICE, namespace=_NAMESPACE)
    entries = {
        entry["name"]: entry for body in configuration.configurations(service) for entry in body["webhooks"]
    }
    for webhook in WEBHOOKS:
        yield {
            "policy": "" if webhook.only_warns else configs.POLICY_OF_RESOURCE[webhook.resource],
            "mutating": webhook.mutating,
            "entry": entries[webhook.name],
        }


def schema() -> Json:
    """JSON Schema of the values. `global` is what Helm adds for a chart within a chart."""
    body = msgspec.json.schema(Values)
    body["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    for name, definition in body["$defs"].items():
        definition["additionalProperties"] = False
        if name == Values.__name__:
            definition["properties"]["global"] = {"type": "object", "description": "Of the parent chart."}
    return body


def values_yaml() -> str:
    """Return the defaults, each with its description."""
    lines = [
        _HEADER.rstrip(),
        "# All values of the chart, with their defaults.",
        *_section_lines(Values(), 0),
    ]
    return "\n".join(lines) + "\n"


def _section_lines(section: Section, depth: int) -> Iterator[str]:
    indent = "  " * depth
    hints = get_type_hints(type(section), include_extras=True)
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        description = _description(hints[field.name], value)
        if depth == 0:
            yield ""
        yield from textwrap.wrap(
            description, 110, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        if isinstance(value, Section):
            yield f"{indent}{field.encode_name}:"
            yield from _section_lines(value, depth + 1)
        else:
            dumped = text({field.encode_name: msgspec.to_builtins(value)}).rstrip().splitlines()
            yield from (f"{indent}{line}" for line in dumped)


def _description(hint: Any, value: Any) -> str:
    """Return what the field says of itself, or else its section."""
    if get_origin(hint) is Annotated:
        for extra in get_args(hint)[1:]:
            if isinstance(extra, msgspec.Meta) and extra.description:
                return extra.description
    return (type(value).__doc__ or "").partition("\n")[0] if isinstance(value, Section) else ""
