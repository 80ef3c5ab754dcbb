"""Durations of backoffs after failures, and the moments at which they end. Source: behaviour/scheduler B5."""

BACKOFF_WINDOW_S = 1.0
"""Backoffs that end within one window end together, with the window, and priority decides their order."""


def backoff_s(unschedulable_count: int, error_count: int, initial_s: float, max_s: float) -> float:
    """Return how long a pod waits after a failure: doubling from `initial_s` to `max_s`.

    Errors in a row replace the count of refusals; no failures or `max_s` 0 mean no wait.
    """
    failures = error_count if error_count > 0 else unschedulable_count
    if failures == 0 or max_s == 0:
        return 0.0
    # 2^63 seconds is beyond any maximum: larger exponents would only overflow.
    return min(max_s, initial_s * 2.0 ** min(failures - 1, 63))


def end_of_window(until_s: float) -> float:
    """Return the end of the window in which a backoff expires: until then the pod backs off."""
    return (until_s // BACKOFF_WINDOW_S + 1) * BACKOFF_WINDOW_S
