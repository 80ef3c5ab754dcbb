"""Keeping an object of this node's name in the cluster as a reporter wants it.

Only what is the reporter's own is written, and only when it really differs from what is stored.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.informer import Informer
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report.outage import Outage

log = logging.getLogger(__name__)

WRITE_S_MAX = 20.0

O = TypeVar("O", bound=Object)  # noqa: E741 the stored object
W = TypeVar("W")


class StoredObject(Generic[O, W]):
    """The object in the cluster, and what it should say: a `W`."""

    def __init__(
        self,
        shared: Shared,
        view: type[O],
        *,
        new: Callable[[W], dict[str, Any]],
        patch_of: Callable[[O, W], dict[str, Any] | None],
    ) -> None:
        """`new` makes the body of an object, `patch_of` the merge patch; None when there is nothing to write."""
        self._shared = shared
        self._view = view
        self._name = shared.config.node_name
        self._new = new
        self._patch_of = patch_of
        self._outage = Outage(f"report of {view.resource.kind} {self._name}")
        self.informer = Informer(
            shared.cluster, view, rng=new_rng(shared.rng), field_selector=f"metadata.name={self._name}"
        )
        """Cache that must be run."""
        self.informer.add_handler(self._on_stored, lambda _, new: self._on_stored(new), self._on_stored)
        self._written: O | None = None
        """Object that we wrote last, until the cache has it or a newer one."""
        self._matched: tuple[O, W] | None = None
        """Stored and wanted object when there was nothing left to write."""

    @property
    def is_known(self) -> bool:
        """Return whether it is known what is stored, if anything."""
        return self.informer.synced.is_set()

    @property
    def newest(self) -> O | None:
        """Return the object as it was written or seen last; None while there is none."""
        return self._written or self.informer.get(self._name)

    async def write(self, wanted: W) -> None:
        """Create the object, or patch it; lost races are tried again in the next round."""
        now_s = self._shared.clock.now()
        stored = self.newest
        if self._matched == (stored, wanted) or not self._outage.is_due(now_s):
            return
        patch = None if stored is None else self._patch_of(stored, wanted)
        if stored is not None and patch is None:
            self._matched = (stored, wanted)
            return
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                if patch is None:
                    written = await self._shared.cluster.create(self._view, self._new(wanted))
                else:
                    written = await self._shared.cluster.patch(self._view, self._name, patch)
        except (errors.Conflict, errors.AlreadyExists, errors.NotFound) as error:
            self._written = None
            log.debug("%s not written, the cache was stale: %s", self._view.resource.kind, error)
            return
        except (errors.ApiError, TimeoutError) as error:
            self._outage.failed(error, now_s)
            return
        self._outage.ended()
        self._written = written
        # Should the answer not say what we wrote (a dry run, a field that the API drops), saying it again is no use.
        self._matched = (written, wanted)

    def _on_stored(self, _: O) -> None:
        self._written = None
