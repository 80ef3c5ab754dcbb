"""Errors of the demonstration."""

from koordinator.api.errors import KoordinatorError


class DemoError(KoordinatorError):
    """The demonstration cannot go on; the message says why, and what to do where there is something to do."""
