"""Are there objects that nothing in this version acts on?"""

from collections.abc import Iterator

from koordinator.api import labels, unready
from koordinator.api.core import Pod
from koordinator.doctor.finding import Finding, Severity, of_many
from koordinator.doctor.snapshot import Snapshot

_REMEDY = ("wait for the version that does, and keep what did it before until then (docs/switch-from-go.md)",)


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """By the table of what does not run yet (`koordinator.api.unready`)."""
    for view, meaning in unready.KINDS.items():
        if names := [each.key for each in snapshot.of(view)]:
            yield of_many(
                Severity.WARNING,
                view.resource.kind,
                names,
                "this version of Koordinator does not act on it yet",
                why=meaning,
                do=_REMEDY,
            )
    ended = ("Succeeded", "Failed")
    pods = [each for each in snapshot.of(Pod) if each.status.phase not in ended]
    if names := [each.key for each in pods if unready.devices_of(each)]:
        yield of_many(
            Severity.WARNING,
            "Pod",
            names,
            "requests a share of a device, which this version of Koordinator does not give out yet",
            why=unready.NO_DEVICE,
            do=_REMEDY,
        )
    needing = (each for each in pods if labels.RESERVATION_AFFINITY in each.metadata.annotations)
    if names := [each.key for each in needing if not each.spec.node_name]:
        yield of_many(
            Severity.WARNING,
            "Pod",
            names,
            "requires a reservation, into which this version of Koordinator does not place pods yet",
            why=unready.NO_RESERVATION,
            do=(
                f"remove the annotation {labels.RESERVATION_AFFINITY} from pods that may go anywhere",
                *_REMEDY,
            ),
        )
