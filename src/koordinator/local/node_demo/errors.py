"""What can go wrong in the demonstration."""


class DemoError(Exception):
    """The demonstration cannot go on; the message says why, and what to do where there is something to do."""
