"""Print what nodes lend as tables: from the answers that `explain lent` makes or the manager gives, as JSON."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from koordinator import clock
from koordinator.api import duration, readable, resources
from koordinator.api.quantity import Quantity
from koordinator.cli.tables import console, table_of

Json = Mapping[str, Any]
PODS_SHOWN = 10
NODES_SHOWN = 50


def time_of(at: str, now_s: float) -> str:
    """Return a time as the manager reads it: `HH:MM` is the last such time of this machine's zone.

    Raises: ClickException.
    """
    try:
        when = datetime.time.fromisoformat(at)
    except ValueError:
        return at  # a whole date, which the manager checks
    now = datetime.datetime.fromtimestamp(now_s).astimezone()
    day = datetime.datetime.combine(now.date(), when).astimezone()
    if day > now:
        day = datetime.datetime.combine(now.date() - datetime.timedelta(days=1), when).astimezone()
    return clock.rfc3339(day.timestamp())


def ago(seconds: float) -> str:
    """Return an age for people."""
    return duration.text_of(max(round(seconds), 0))


def print_node(answer: Json, lines: Iterable[str]) -> None:
    """Print one node: what is to be said of it, its ledgers and services."""
    for line in lines:
        click.echo(line)
    print_ledgers(answer["lent"])
    if answer["services"] and answer["lent"]:
        _print_services(answer["services"])


def print_minute(answer: Json) -> None:
    """Print what a node lent at a minute that the manager remembers."""
    age = answer["ageSeconds"]
    report = "no report of its agent" if age is None else f"report of {ago(age)} before"
    written = f"; amounts last written at {answer['written']}" if answer["written"] else ""
    lines = [f"Node {answer['node']} at {answer['at']}: {answer['state']}; {report}{written}"]
    print_node(answer, lines)


def print_sums(answer: Json) -> None:
    """Print sums over nodes at a minute that the manager remembers, and what the first nodes lent."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(answer["states"].items()))
    click.echo(f"At {answer['at']}: {states}")
    print_nodes([(each | {"notes": []}, each["state"]) for each in answer["nodes"][:NODES_SHOWN]])
    if len(answer["nodes"]) > NODES_SHOWN:
        click.echo(f"… and {len(answer['nodes']) - NODES_SHOWN} nodes more (-o json has all)")
    print_ledgers(answer["lent"])


def print_ledgers(found: Sequence[Json]) -> None:
    """Print a table for each kind: the terms, their sum, and what of it stands on the node."""
    for ledger in found:
        columns = {"": False, "CPU": True, "memory": True, "why": False}
        table = table_of(f"{ledger['kind'].capitalize()} resources", columns)
        for term in ledger["terms"]:
            table.add_row(term["name"], *_signed(term), term["why"])
        table.add_section()
        table.add_row("lent", *amount_texts(ledger), "as decided", style="bold")
        on_node, unwritten = ledger["onNode"], ledger["unwritten"]
        if unwritten["cpuMilli"] or unwritten["memoryBytes"]:
            table.add_row(unwritten["name"], *_signed(unwritten), unwritten["why"])
        if on_node["cpuMilli"] is None and on_node["memoryBytes"] is None:
            table.add_row("on the node", "", "", "not on the node yet", style="bold")
        else:
            amounts = cpu_text(on_node["cpuMilli"] or 0), memory_text(on_node["memoryBytes"] or 0)
            table.add_row("on the node", *amounts, "", style="bold")
        console().print(table)


def _print_services(services: Sequence[Json]) -> None:
    has_requests = "requestCpuMilli" in services[0]
    columns = {"pod": False, "CPU used": True, "memory used": True}
    table = table_of("Services on the node", columns | ({"requested": True} if has_requests else {}))
    for each in services[:PODS_SHOWN]:
        requested = [cpu_text(each["requestCpuMilli"])] if has_requests else []
        table.add_row(each["pod"], *amount_texts(each), *requested)
    if len(services) > PODS_SHOWN:
        table.add_row(f"and {len(services) - PODS_SHOWN} more")
    console().print(table)


def print_nodes(found: Sequence[tuple[Json, str]]) -> None:
    """Print one line per node: what it lends by kind, or why nothing."""
    columns = {
        "node": False,
        "batch CPU": True,
        "batch memory": True,
        "mid CPU": True,
        "mid memory": True,
        "": False,
    }
    table = table_of("Lent", columns)
    totals = [0, 0, 0, 0]
    for node, state in found:
        of_kind = node["lent"]
        by_kind = of_kind if isinstance(of_kind, Mapping) else {each["kind"]: each for each in of_kind}
        none = {"cpuMilli": 0, "memoryBytes": 0}
        amounts = [
            by_kind.get(kind, none)[part] for kind in ("batch", "mid") for part in ("cpuMilli", "memoryBytes")
        ]
        totals = [total + amount for total, amount in zip(totals, amounts, strict=True)]
        why = "; ".join(node["notes"]) or ("" if by_kind else state)
        table.add_row(node["node"], *_cells(amounts), why)
    table.add_section()
    table.add_row(f"{len(found)} nodes", *_cells(totals), "", style="bold")
    console().print(table)


def _cells(amounts: Sequence[int]) -> list[str]:
    return [shown(amount) for amount, shown in zip(amounts, (cpu_text, memory_text) * 2, strict=True)]


def amount_texts(found: Json) -> tuple[str, str]:
    """Return CPU and memory for people."""
    return cpu_text(found["cpuMilli"]), memory_text(found["memoryBytes"])


def _signed(found: Json) -> tuple[str, str]:
    return _with_sign(found["cpuMilli"], cpu_text), _with_sign(found["memoryBytes"], memory_text)


def cpu_text(milli: int) -> str:
    """Return cores for people."""
    return readable.cell(resources.CPU, Quantity.of_milli(milli))


def memory_text(number: int) -> str:
    """Return bytes for people."""
    return readable.cell(resources.MEMORY, number)


def _with_sign(number: int, shown: Callable[[int], str]) -> str:
    """Return an amount with its sign; nothing for none."""
    return f"{'+' if number > 0 else ''}{shown(number)}" if number else ""
