"""May the components do what they need to?"""

from collections.abc import Iterator

from koordinator.doctor.finding import Finding, Severity, finding
from koordinator.doctor.installation import Name
from koordinator.doctor.snapshot import Snapshot

SHOWN_MAX = 4


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """One finding per component, with all that it may not do."""
    answers = snapshot.access
    if not answers:
        return
    gap = next((each.gap for each in answers if each.gap), "")
    if gap:
        yield finding(
            Severity.NOTICE,
            "permissions",
            f"not asked for: {gap}",
            why="we may not create SubjectAccessReviews",
            do=("ask a cluster administrator to run: koordinator doctor --check access",),
        )
    for component in Name:
        lacking = [
            each for each in answers if each.component is component and not each.allowed and not each.gap
        ]
        if not lacking:
            continue
        account = lacking[0].account
        words = "; ".join(f"{each.need.words} ({each.need.why})" for each in lacking[:SHOWN_MAX])
        more = f" and {len(lacking) - SHOWN_MAX} more" if len(lacking) > SHOWN_MAX else ""
        yield finding(
            Severity.ERROR,
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
