"""Carry out `koordinator explain` once its command line is read: for a pod, a gang, and for many pods, where those with
the same answer share a line."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from koordinator.cli import explain_sources as sources
from koordinator.cli.explain_sources import ExplainArgs, PodsFound, PodsWanted
from koordinator.cli.explain_text import grid, print_answer, print_parts, remedy_table
from koordinator.cli.tables import console, print_document
from koordinator.scheduler.explain.answer import GangAnswer, PodAnswer, PodVerdict, ReservationAnswer

CANNOT_BE_PLACED = 3
Answer = PodAnswer | GangAnswer | ReservationAnswer
PLACED = (PodVerdict.BOUND, PodVerdict.SCHEDULABLE, PodVerdict.FINISHED)


class ExplainOptions(msgspec.Struct, frozen=True):
    """The options that `pod` and `gang` share: the scheduler to ask, and the form of the answer."""

    namespace: str
    dump_files: tuple[str, ...]
    config_file: Path | None
    seed: int
    kubeconfig: str
    scheduler_url: str
    output: str


def pod(name: str, nodes: tuple[str, ...], verbose: bool, best: int, **shared: Any) -> None:
    """Carry out `koordinator explain pod`; the parameters are its options."""
    asked = ExplainOptions(**shared)
    ask = _ask(name, asked, None if verbose else nodes, best)
    _report(asked, ask, sources.pod_from_dump, sources.pod_from_cluster)


def gang(name: str, **shared: Any) -> None:
    """Carry out `koordinator explain gang`; the parameters are its options."""
    asked = ExplainOptions(**shared)
    _report(asked, _ask(name, asked, (), 0), sources.gang_from_dump, sources.gang_from_cluster)


def reservation(name: str, pod_name: str, **shared: Any) -> None:
    """Carry out `koordinator explain reservation`; the parameters are its options."""
    asked = ExplainOptions(**shared)
    namespace, slash, own = pod_name.rpartition("/")
    pod = f"{namespace if slash else asked.namespace or 'default'}/{own}" if own else ""
    ask = ExplainArgs(name=name, namespace="", nodes=(), best=0, seed=asked.seed, pod=pod)
    _report(asked, ask, sources.reservation_from_dump, sources.reservation_from_cluster)


def _ask(name: str, asked: ExplainOptions, nodes: tuple[str, ...] | None, best: int) -> ExplainArgs:
    """The name may bring its namespace along; an empty namespace is that of the kubeconfig."""
    namespace, slash, own = name.partition("/")
    if not slash:
        namespace, own = asked.namespace, name
    if asked.dump_files:
        namespace = namespace or "default"
    return ExplainArgs(name=own, namespace=namespace, nodes=nodes, best=best, seed=asked.seed)


def _report(
    asked: ExplainOptions,
    ask: ExplainArgs,
    from_dump: Callable[[ExplainArgs, Sequence[str], Path | None], Answer],
    from_cluster: Callable[[ExplainArgs, str, str], Coroutine[Any, Any, Answer]],
) -> None:
    """Write the answer and end with its status. Raises: ClickException, in one line, when there is none."""
    if asked.dump_files:
        answer = from_dump(ask, asked.dump_files, asked.config_file)
    else:
        answer = asyncio.run(from_cluster(ask, asked.kubeconfig, asked.scheduler_url))
    if asked.output == "text":
        print_answer(console(), answer)
    else:
        print_document(msgspec.to_builtins(answer), asked.output)
    if answer.verdict not in PLACED:
        sys.exit(CANNOT_BE_PLACED)


EXAMPLES = 3


def pods(pending: bool, all_namespaces: bool, selector: str, limit: int, **shared: Any) -> None:
    """Carry out `koordinator explain pods`; the parameters are its options."""
    asked = ExplainOptions(**shared)
    wanted = PodsWanted(
        namespace=asked.namespace,
        all_namespaces=all_namespaces,
        selector=selector,
        pending=pending,
        limit=limit,
    )
    _explain_pods(wanted, asked)


def workload(kind: str, name: str, limit: int, **shared: Any) -> None:
    """Carry out `koordinator explain deployment NAME` and the like; the parameters are its options."""
    asked = ExplainOptions(**shared)
    own, slash, rest = name.partition("/")
    namespace, name = (own, rest) if slash else (asked.namespace, name)
    _explain_pods(PodsWanted(namespace=namespace, kind=kind, name=name, limit=limit), asked)


def _explain_pods(wanted: PodsWanted, asked: ExplainOptions) -> None:
    if asked.dump_files:
        found = sources.pods_from_dump(wanted, asked.dump_files, asked.config_file, asked.seed)
    else:
        found = asyncio.run(sources.pods_from_cluster(wanted, asked.kubeconfig, asked.scheduler_url))
    if asked.output == "text":
        _print_groups(wanted, found)
    else:
        print_document(msgspec.to_builtins(found.answers), asked.output)
    if any(each.verdict not in PLACED for each in found.answers):
        sys.exit(CANNOT_BE_PLACED)


def _print_groups(wanted: PodsWanted, found: PodsFound) -> None:
    what = f"{wanted.kind} {wanted.name} has" if wanted.kind else "there are"
    if not found.answers:
        click.echo(f"{what} no {'pods without a node' if wanted.pending else 'pods'}")
        return
    groups = grouped(found.answers)
    table = grid("pods", "answer", "why", "for example")
    for group in groups:
        examples = ", ".join(each.pod for each in group[:EXAMPLES])
        table.add_row(str(len(group)), group[0].verdict.value, why(group[0]), examples)
    parts = [table]
    for group in groups:
        remedies = remedy_table(group[0].remedies)
        if remedies is not None:
            remedies.title = f"What would help {group[0].pod}"
            parts.append(remedies)
    print_parts(console(), parts)
    if found.count > len(found.answers):
        rest = found.count - len(found.answers)
        click.echo(f"{rest:,} more pods were not asked about: --limit {found.count}")
    click.echo(f"More about one of them: koordinator explain pod {groups[0][0].pod}", err=True)


def grouped(answers: Sequence[PodAnswer]) -> list[list[PodAnswer]]:
    """Answers that say the same, those of most pods first, pods that cannot be placed before all others."""
    groups: dict[tuple[str, str], list[PodAnswer]] = {}
    for each in answers:
        groups.setdefault((each.verdict.value, why(each)), []).append(each)
    return sorted(groups.values(), key=lambda group: (group[0].verdict in PLACED, -len(group)))


def why(answer: PodAnswer) -> str:
    """Return the sentence of an answer without what is the pod's own."""
    if answer.verdict in PLACED:
        return "on a node" if answer.verdict.value == "Bound" else "would be placed now"
    _, _, rest = answer.sentence.partition(answer.pod)
    return (rest or answer.sentence).strip(" :.") or answer.message
