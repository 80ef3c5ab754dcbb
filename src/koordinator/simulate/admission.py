"""Admission webhooks served in this process: the review protocol word for word, only without a socket."""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import WriteOptions
from koordinator.local.patches import json_patch
from koordinator.manager.webhooks.review import Handler, review


class InProcessAdmission:
    """Asks the handlers of the manager about every pod that is created (`local.interfaces.Admission`)."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = list(handlers.values())
        self._asked = 0

    def wants(self, resource: Resource, operation: str, subresource: str) -> bool:
        return (operation == "CREATE") and (resource.plural == "pods") and not (resource.group or subresource)

    async def admit(
        self,
        operation: str,
        resource: Resource,
        namespace: str,
        name: str,
        obj: dict[str, Any] | None,
        old: dict[str, Any] | None,
        options: WriteOptions,
        subresource: str = "",
    ) -> dict[str, Any] | None:
        """The object as the handlers want it.

        Raises: Forbidden with the webhook's message when it denies.
        """
        for handler in self._handlers:
            self._asked += 1
            request = {
                "uid": str(self._asked),
                "resource": {
                    "group": resource.group,
                    "version": resource.version,
                    "resource": resource.plural,
                },
                "subResource": subresource,
                "name": name,
                "namespace": namespace,
                "operation": operation,
                "object": obj,
                "oldObject": old,
                "dryRun": options.dry_run,
            }
            envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
            answer = msgspec.json.decode(await review(handler, msgspec.json.encode(envelope)))["response"]
            if not answer["allowed"]:
                raise errors.Forbidden(f"admission webhook denied the request: {answer['status']['message']}")
            if "patch" in answer:
                obj = json_patch.apply(obj, msgspec.json.decode(base64.b64decode(answer["patch"])))
        return obj
