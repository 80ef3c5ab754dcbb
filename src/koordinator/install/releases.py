"""Find the Helm release that owns an object, as long as that release is there.

Helm marks what it brings with annotations, and keeps a record of each release as a Secret (or a ConfigMap, with
HELM_DRIVER=configmap) with labels. What a release leaves behind when it goes (`helm.sh/resource-policy: keep`) still
bears the annotations, but nobody upgrades it any more.
"""

from typing import Any

from koordinator.api.core import ConfigMap, Secret
from koordinator.install.api import Api

Json = dict[str, Any]

NAME, NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"


class Releases:
    """The releases that objects name; each is looked up once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[tuple[str, str], bool] = {}

    async def owner(self, body: Json | None) -> str:
        """The name of the release that an object belongs to; empty for none, or one that is gone.

        Raises: ApiError.
        """
        annotations = (body or {}).get("metadata", {}).get("annotations") or {}
        name, namespace = str(annotations.get(NAME, "")), str(annotations.get(NAMESPACE, ""))
        if not name:
            return ""
        if (name, namespace) not in self._known:
            self._known[name, namespace] = await self._exists(name, namespace)
        return name if self._known[name, namespace] else ""

    async def _exists(self, name: str, namespace: str) -> bool:
        # `helm uninstall --keep-history` leaves a record of this status.
        selector = f"owner=helm,name={name},status!=uninstalled"
        for kind in (Secret, ConfigMap):
            records = await self._api.labelled(kind.resource, selector)
            if any(each["metadata"].get("namespace") == namespace for each in records):
                return True
        return False
