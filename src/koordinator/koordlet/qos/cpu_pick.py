"""Find which CPUs best-effort pods get: scattered over NUMA nodes and sockets, stacked on pairs of hyper-threads.

Scattering spreads the load on caches and memory, stacking leaves whole cores to services.
Source: behaviour/koordlet-act 4.4.
"""

from collections.abc import Collection

from koordinator.host.cpu_topology import Processor


def pick(count: int, processors: Collection[Processor]) -> list[int]:
    """`count` CPUs in the order picked, none when there are too few."""
    if count <= 0 or len(processors) < count:
        return []
    groups = _groups(processors)
    picked, turn = _pick_pairs(groups, count)
    return picked + _pick_singles(groups, set(picked), count - len(picked), turn)


def _groups(processors: Collection[Processor]) -> list[list[Processor]]:
    """Return CPUs by NUMA node and socket, ordered by core; the largest group first."""
    by_place: dict[tuple[int, int], list[Processor]] = {}
    for processor in processors:
        by_place.setdefault((processor.node, processor.socket), []).append(processor)
    groups = [sorted(group, key=lambda p: (p.core, p.cpu)) for group in by_place.values()]
    return sorted(groups, key=lambda group: (-len(group), group[0].cpu))


def _pick_pairs(groups: list[list[Processor]], count: int) -> tuple[list[int], int]:
    """Pairs of neighbours on one core, one per group in turn, and whose turn it is then."""
    pairs = [_pairs(group) for group in groups]
    picked: list[int] = []
    turn, brought = 0, False
    while count - len(picked) > 1:
        if pairs[turn]:
            picked += pairs[turn].pop(0)
            brought = True
        turn = (turn + 1) % len(groups)
        if turn == 0:
            if not brought:
                break
            brought = False
    return picked, turn


def _pairs(group: list[Processor]) -> list[list[int]]:
    pairs = []
    index = 0
    while index + 1 < len(group):
        if group[index].core == group[index + 1].core:
            pairs.append([group[index].cpu, group[index + 1].cpu])
            index += 2
        else:
            index += 1
    return pairs


def _pick_singles(groups: list[list[Processor]], taken: set[int], count: int, turn: int) -> list[int]:
    """Return the first CPU left in each group in turn; there are enough, as was checked before."""
    left = [[p.cpu for p in group if p.cpu not in taken] for group in groups]
    picked: list[int] = []
    while len(picked) < count:
        if left[turn]:
            picked.append(left[turn].pop(0))
        turn = (turn + 1) % len(groups)
    return picked
