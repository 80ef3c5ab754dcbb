"""Is the API server new enough for what components send it, and may they do what they need to?"""

import re
from collections.abc import Iterator

from koordinator.doctor.finding import Finding
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot

SHOWN_MAX = 4


def check_access(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield one finding per component, with all that it may not do."""
    answers = snapshot.access
    if not answers:
        return
    gap = next((each.gap for each in answers if each.gap), "")
    if gap:
        yield Finding.notice(
            "permissions",
            f"not asked for: {gap}",
            why="we may not create SubjectAccessReviews",
            do=("ask a cluster administrator to run: koordinator doctor --check access",),
        )
    for component in ComponentName:
        lacking = [
            each for each in answers if each.component is component and not each.allowed and not each.gap
        ]
        if not lacking:
            continue
        account = lacking[0].account
        words = "; ".join(f"{each.need.words} ({each.need.why})" for each in lacking[:SHOWN_MAX])
        more = f" and {len(lacking) - SHOWN_MAX} more" if len(lacking) > SHOWN_MAX else ""
        yield Finding.error(
            f"ServiceAccount {account.removeprefix('system:serviceaccount:').replace(':', '/')}",
            f"may not {words}{more}",
            why=f"requests of {component} are answered with 403",
            do=(
                "koordinator install --apply    # brings the roles of this version",
                "koordinator install --apply --force-conflicts    # where somebody replaced a role: it says so",
                f"kubectl auth can-i {lacking[0].need.words} --as={account}",
            ),
            objects=[each.need.words for each in lacking],
        )


MINOR_MIN = 22  # policy/v1 evictions; CRDs, webhooks and their reviews in v1 are older
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def check_version(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield one finding for a server that is too old, or that tells nothing of its version."""
    text = snapshot.server_version
    if not text:
        if snapshot.is_live:
            yield Finding.notice("API server", "it does not tell its version", do=("kubectl version",))
        return
    found = _VERSION.match(text)
    if found is None or (int(found[1]), int(found[2])) >= (1, MINOR_MIN):
        return
    yield Finding.error(
        "API server",
        f"version {text} is older than v1.{MINOR_MIN}",
        why="evictions are sent as policy/v1, which older servers do not know: batch pods cannot be evicted",
        do=(f"upgrade the control plane to v1.{MINOR_MIN} or newer",),
    )
