"""Define how one kind differs from the others when its objects are written. Most kinds do not.

A strategy changes objects that it was given to keep (`obj` and `obj["metadata"]` are private copies of the
writer; anything deeper is shared and must be replaced, not changed). Everything here is synchronous.
"""

import random
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.registry.builtin import KindFacts
from koordinator.local.store import ObjectStore


class StrategyContext:
    """The state that strategies may look at: the other objects, and the seeded generator. Without `checks` objects
    are right.
    """

    def __init__(self, store: ObjectStore, rng: random.Random, *, checks: bool) -> None:
        self.store = store
        self.rng = rng
        self.checks = checks


class RestStrategy:
    """The generic life of an object; subclasses override the steps in which their kind is special."""

    def __init__(self, resource: Resource, facts: KindFacts, has_status: bool) -> None:
        self.resource = resource
        self.facts = facts
        self.has_status = has_status

    def admit_create(self, obj: dict[str, Any], around: StrategyContext) -> None:
        """Built-in admission of a new object, before (and after) webhooks. Raises: ApiError."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        """Fill in what the server decides; returns what is wrong. `now` is the creation time's text."""
        return []

    def prepare_update(
        self, obj: dict[str, Any], old: dict[str, Any], around: StrategyContext
    ) -> list[StatusCause]:
        """Carry over what an update of the main resource may not touch; returns what is wrong."""
        return []

    def is_over(self, obj: dict[str, Any]) -> bool:
        """Return whether an object being deleted may go, as far as this kind is concerned."""
        return True

    def grace_s(self, obj: dict[str, Any], asked_s: int | None) -> int | None:
        """Return seconds that the object may take to stop; None when it goes at once."""
        return None

    # Rules that follow from the facts alone

    def begin_status(self, obj: dict[str, Any]) -> None:
        """A new object's status is the server's, unless the kind brings its own."""
        if not self.has_status or self.facts.keeps_status:
            return
        if self.facts.fresh_status is None:
            obj.pop("status", None)
        else:
            obj["status"] = dict(self.facts.fresh_status)

    def keep_status(self, obj: dict[str, Any], old: dict[str, Any]) -> None:
        """An update of the main resource leaves the status alone."""
        if not self.has_status:
            return
        if "status" in old:
            obj["status"] = old["status"]
        else:
            obj.pop("status", None)

    def only_status(self, obj: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        """Return the object that an update of the status asks for: everything else stays as it is."""
        meta = dict(old["metadata"])
        sent = obj["metadata"]
        for field in ("resourceVersion", "uid", "managedFields"):
            if field in sent:
                meta[field] = sent[field]
        if self.facts.status_writes_labels:
            for field in ("labels", "annotations"):
                meta.pop(field, None)
                if sent.get(field):
                    meta[field] = sent[field]
        merged = {**old, "metadata": meta}
        merged.pop("status", None)
        if "status" in obj:
            merged["status"] = obj["status"]
        return merged

    def only_part(
        self, subresource: str, obj: dict[str, Any], old: dict[str, Any]
    ) -> tuple[dict[str, Any], list[StatusCause]]:
        """Return the object that an update of another subresource asks for, and what is wrong with it.

        Only kinds that serve such a subresource are asked.
        """
        raise AssertionError(f"{self.resource.qualified}/{subresource} is served, and nobody writes it")

    def counts_as_change(self, obj: dict[str, Any], old: dict[str, Any]) -> bool:
        """Return whether the generation goes up: anything but metadata (and a separate status) changed."""
        for key in {*obj, *old}:
            if key in ("metadata", "apiVersion", "kind") or (key == "status" and self.has_status):
                continue
            if obj.get(key) != old.get(key):
                return True
        return False
