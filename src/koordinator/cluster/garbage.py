"""Python's garbage collector in a process that holds a cluster: the store itself, or a component's caches.

Hundreds of thousands of objects are no garbage and hold no cycles. With the collector's defaults, going through
them again and again takes a fifth of the time, and a full collection stops everything for a tenth of a second and
more. What is really freed, is freed by reference counts.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_rarely() -> Iterator[None]:
    """Look for cycles rarely, and among young objects only; the collector is as before afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 1_000, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def set_aside() -> None:
    """What is there now stays: never look at it again.

    For a process whose caches have just been filled. What is garbage already stays, too: a few thousand objects that
    imports left, and to find them would hold up the first pods (0.2 s per million objects).
    """
    gc.freeze()
