"""Tell what reservations are to a pod that found no node: why those for it do not help, and what others hold."""

from koordinator.api import pod_resources, quantity, readable, resource_list
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.plugins.reservation import objects, verdict
from koordinator.scheduler.plugins.reservation.ledger import ReservationRecord
from koordinator.scheduler.plugins.reservation.plugin import ReservationPlugin
from koordinator.scheduler.plugins.reservation.verdict import OwnerState
from koordinator.scheduler.table.pod_info import PodInfo

SHOWN_MAX = 5
OTHERS = "is for other owners"


def words(plugin: ReservationPlugin, pod: PodInfo, record: ReservationRecord) -> str:
    """Return what a reservation is to the pod."""
    state = plugin.prepare(pod)
    if not isinstance(state, OwnerState) or record.row is None:
        return OTHERS
    return verdict.words(plugin.judge, state, record, record.row)


def notes(profile: Profile, pod: PodInfo) -> list[str]:
    """Return a line for each reservation that the pod may use, and one for all others that hold room."""
    plugin = profile.find(ReservationPlugin)
    if plugin is None or not len(plugin.ledger):
        return []
    state = plugin.prepare(pod)
    own: list[str] = []
    others: list[ReservationRecord] = []
    records = (each for row in plugin.ledger.rows for each in plugin.ledger.at(row))
    for record in records:
        assert record.row is not None
        if not isinstance(state, OwnerState) or record.group.number not in state.groups:
            others.append(record)
        else:
            name = record.reservation.status.node_name
            own.append(
                f"reservation {record.name} on {name} {verdict.words(plugin.judge, state, record, record.row)}"
            )
    more = [f"and {len(own) - SHOWN_MAX} more reservations that it may use"] if len(own) > SHOWN_MAX else []
    return [*sorted(own)[:SHOWN_MAX], *more, *_held(others)]


def _held(others: list[ReservationRecord]) -> list[str]:
    """Return what strangers' reservations keep free for their owners."""
    left = resource_list.without_zeros(resource_list.sum_of(left_of(record) for record in others))
    if not left:
        return []
    amounts = ", ".join(readable.lot(name, amount) for name, amount in left.items())
    names = sorted(record.name for record in others)
    if len(names) == 1:
        node = others[0].reservation.status.node_name
        return [f"reservation {names[0]} keeps {amounts} free on {node} for its owners"]
    listed = ", ".join(names[:SHOWN_MAX]) + (", …" if len(names) > SHOWN_MAX else "")
    return [f"{len(names)} reservations keep {amounts} free for their owners: {listed}"]


def used_of(record: ReservationRecord) -> Amounts:
    """Return what the owners ask for of what is reserved."""
    return resource_list.mask(
        resource_list.sum_of(pod_resources.requests(owner.pod) for owner in record.owners.values()),
        held_of(record),
    )


def held_of(record: ReservationRecord) -> Amounts:
    """Return what is reserved."""
    return objects.requests(record.reservation)


def left_of(record: ReservationRecord) -> Amounts:
    """Return what no owner uses."""
    held, used = held_of(record), used_of(record)
    return {name: max(amount - used.get(name, quantity.ZERO), quantity.ZERO) for name, amount in held.items()}
