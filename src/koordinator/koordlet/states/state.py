"""Define what one source of the view is to the agent."""

import asyncio
from typing import NoReturn, Protocol


class StateKeeper(Protocol):
    """Fills its part of the view until cancelled; survives whatever its source does."""

    name: str
    synced: asyncio.Event
    """The source has told something once."""

    @property
    def is_required(self) -> bool:
        """Return whether nothing is done on the node before it has."""
        ...

    @property
    def trouble(self) -> str:
        """Return why the source tells nothing now, empty when it does."""
        ...

    async def run(self) -> NoReturn:
        """Follow the source."""
        ...
