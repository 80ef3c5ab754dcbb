"""Are the four PriorityClasses there, with their numbers?"""

from collections.abc import Iterator

from koordinator.api import priority
from koordinator.api.priority import BANDS, INSTALLED_NUMBERS
from koordinator.api.scheduling import PriorityClass
from koordinator.doctor.finding import Finding
from koordinator.doctor.snapshot import ClusterSnapshot


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Missing ones, ones outside of their band, and a default that makes ordinary pods batch pods."""
    for name, (lowest, highest) in BANDS.items():
        found = snapshot.find(PriorityClass, name.value)
        if found is None:
            yield Finding.error(
                f"PriorityClass {name.value}",
                "missing",
                why="pods and profiles that name it are refused",
                do=(_create(name.value, INSTALLED_NUMBERS[name]),),
            )
        elif not lowest <= found.value <= highest:
            means = priority.of_number(found.value)
            yield Finding.error(
                found,
                f"value {found.value} is outside of {lowest} to {highest}",
                why=f"its pods count as {means.value or 'of no class'}, not as {name.value}: they are placed, "
                "suppressed and evicted as such",
                do=(
                    f"kubectl delete priorityclass {name.value}    # its value cannot be changed",
                    _create(name.value, INSTALLED_NUMBERS[name]),
                ),
            )
    for each in snapshot.of(PriorityClass):
        means = priority.of_number(each.value)
        if each.global_default and means not in (priority.PriorityClass.NONE, priority.PriorityClass.PROD):
            yield Finding.warning(
                each,
                f"the default of all pods, with value {each.value} in the band of {means.value}",
                why=f"every pod without a priority class of its own counts as {means.value}",
                do=(f"kubectl patch priorityclass {each.metadata.name} -p '{{\"globalDefault\": false}}'",),
            )


def _create(name: str, value: int) -> str:
    return f"kubectl create priorityclass {name} --value={value}"
