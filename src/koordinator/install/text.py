"""Manifests as YAML files: the same text for the same object."""

from collections.abc import Iterable
from typing import Any

import yaml


def text(manifest: Any) -> str:
    """Return one document. Texts of several lines keep their lines."""
    # Without aliases: schemas share parts in memory, but each file must be plain to read and to patch.
    dumped: str = yaml.dump(manifest, Dumper=_PlainDumper, sort_keys=False, width=110, allow_unicode=True)
    return dumped


def documents(manifests: Iterable[Any]) -> str:
    """Several documents in one file."""
    return "---\n".join(text(manifest) for manifest in manifests)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_PlainDumper.add_representer(str, _represent_text)
