"""Is the API server new enough for what components send it?"""

import re
from collections.abc import Iterator

from koordinator.doctor.finding import Finding, Severity, finding
from koordinator.doctor.snapshot import Snapshot

MINOR_MIN = 22  # policy/v1 evictions; CRDs, webhooks and their reviews in v1 are older
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """One finding for a server that is too old, or that tells nothing of its version."""
    text = snapshot.server_version
    if not text:
        if snapshot.is_live:
            yield finding(
                Severity.NOTICE, "API server", "it does not tell its version", do=("kubectl version",)
            )
        return
    found = _VERSION.match(text)
    if found is None or (int(found[1]), int(found[2])) >= (1, MINOR_MIN):
        return
    yield finding(
        Severity.ERROR,
        "API server",
        f"version {text} is older than v1.{MINOR_MIN}",
        why="evictions are sent as policy/v1, which older servers do not know: batch pods cannot be evicted",
        do=(f"upgrade the control plane to v1.{MINOR_MIN} or newer",),
    )
