"""Stand in for schemas when checks are off (simulation at full speed).

Objects are taken as they come: the caller is this project's own code. Their life cycle is the same as ever.
"""

from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause


class PlainSchema:
    """Accepts everything, changes nothing."""

    def decode(self, obj: dict[str, Any], field_validation: str) -> tuple[dict[str, Any], list[str]]:
        return obj, []

    def default(self, obj: dict[str, Any]) -> dict[str, Any]:
        return obj

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[StatusCause]:
        return []


_PLAIN = PlainSchema()


class PlainCatalog:
    """Serves every definition as it says, without looking at its schemas."""

    def schema_of(self, resource: Resource) -> PlainSchema:
        return _PLAIN

    def check_crd(self, crd: dict[str, Any]) -> list[StatusCause]:
        return []

    def add_crd(self, crd: dict[str, Any]) -> list[Resource]:
        spec, names = crd["spec"], crd["spec"]["names"]
        return [
            Resource(
                group=spec["group"],
                version=version["name"],
                kind=names["kind"],
                plural=names["plural"],
                namespaced=spec.get("scope", "Namespaced") == "Namespaced",
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                subresources=tuple(version.get("subresources") or ()),
            )
            for version in spec["versions"]
            if version.get("served", True)
        ]

    def remove_crd(self, crd: dict[str, Any]) -> None:
        """Nothing was kept."""
