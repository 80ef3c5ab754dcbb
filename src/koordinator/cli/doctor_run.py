"""Carry out `koordinator doctor` once its command line is read.

Its report on a terminal is a table with what is wrong, why it matters and what to do, and a line that sums up.
"""

import asyncio
import random
import sys
from collections.abc import Mapping
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from koordinator.cli import running
from koordinator.cli.tables import print_document
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.doctor import gather
from koordinator.doctor.checks.all import BY_NAME, CHECKS, DoctorReport, examine
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.simulate import dump as dumps

NO_ANSWER = 3
"""Exit status when the cluster, or the dump, cannot be read."""


def main(
    namespace: str,
    checks: tuple[str, ...],
    list_checks: bool,
    dump_files: tuple[str, ...],
    no_trial: bool,
    kubeconfig: str,
    context: str,
    output: str,
) -> None:
    """Carry out `koordinator doctor`; the parameters are its options."""
    if list_checks:
        for check in CHECKS:
            click.echo(f"{check.name:18} {check.question}")
        return
    with running.one_line_errors(exit_code=NO_ANSWER):
        if dump_files:
            snapshot = gather.from_objects(dumps.read(dump_files), namespace)
        else:
            chosen = frozenset(checks or BY_NAME) - ({"admission"} if no_trial else set())
            snapshot = asyncio.run(_from_cluster(namespace, kubeconfig, context, chosen))
    report = examine(snapshot, checks)
    _write(report, output)
    sys.exit(exit_code(report))


def exit_code(report: DoctorReport) -> int:
    """By the worst finding."""
    if report.count(FindingSeverity.ERROR):
        return 2
    return 1 if report.count(FindingSeverity.WARNING) else 0


async def _from_cluster(
    namespace: str, kubeconfig: str, context: str, chosen: frozenset[str]
) -> ClusterSnapshot:
    """Return what the chosen checks look at; requests that only other checks need are not sent."""
    client = connect.load(kubeconfig_file=kubeconfig, context=context)
    console = Console(stderr=True)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator-doctor") as cluster:
        with console.status("reading the cluster") as status:  # shows on terminals only
            return await gather.from_cluster(
                cluster,
                namespace,
                local_gates=_local_gates(client.extensions),
                tries_admission="admission" in chosen,
                asks_permissions="access" in chosen,
                progress=lambda text: status.update(f"{text} …"),
            )


def _local_gates(extensions: Mapping[str, Any]) -> str | None:
    """Return the manager's feature gates, as the kubeconfig of a `koordinator up` has them."""
    own = extensions.get("koordinator")
    gates = own.get("managerFeatureGates") if isinstance(own, dict) else None
    return gates if isinstance(gates, str) else None


def _write(report: DoctorReport, output: str) -> None:
    if output == "text":
        if sys.stdout.isatty():
            print_report(Console(highlight=False), report)
        else:
            click.echo(plain(report))
        return
    print_document(as_json(report), output)


def as_json(report: DoctorReport) -> dict[str, Any]:
    """Return the report for tools: counts, findings (worst first), names of checks."""
    return {
        "counts": {severity.value: report.count(severity) for severity in FindingSeverity},
        "findings": [msgspec.to_builtins(each) for each in report.findings],
        "passed": list(report.passed),
        "notDone": list(report.not_done),
    }


WIDTH_SEVERITY, WIDTH_CHECK = 9, 18
_STYLES = {
    FindingSeverity.ERROR: "bold red",
    FindingSeverity.WARNING: "yellow",
    FindingSeverity.NOTICE: "cyan",
}


def plain(report: DoctorReport) -> str:
    """Return the report for files and pipes: nothing is wrapped, so that commands can be copied."""
    indent = "\n" + " " * (WIDTH_SEVERITY + WIDTH_CHECK)
    blocks = []
    for each in report.findings:
        head = f"{each.severity.value.upper():{WIDTH_SEVERITY}}{each.check:{WIDTH_CHECK}}"
        blocks.append(head + _words(each, "").plain.replace("\n", indent))
    return "\n\n".join([*blocks, _summary(report).plain])


def print_report(console: Console, report: DoctorReport) -> None:
    """Worst first."""
    if report.findings:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 1, 0))
        table.add_column("", no_wrap=True)
        table.add_column("check", no_wrap=True)
        table.add_column("finding", overflow="fold")
        for each in report.findings:
            style = _STYLES[each.severity]
            table.add_row(Text(each.severity.value.upper(), style=style), each.check, _words(each, style))
        console.print(table)
    console.print(_summary(report))


def _words(finding: Finding, style: str) -> Text:
    text = Text()
    text.append(finding.object, style=f"bold {style}".strip())
    text.append(f": {finding.problem}")
    if finding.objects and some_of(finding.objects) not in finding.problem:
        text.append(f"\n({some_of(finding.objects)})", style="dim")
    if finding.why:
        text.append(f"\nwhy: {finding.why}", style="dim")
    for step in finding.remedy:
        text.append("\n→ ", style="green")
        text.append(step)
    return text


def _summary(report: DoctorReport) -> Text:
    counts = [
        f"{count} {severity.value}{'s' if count > 1 else ''}"
        for severity in FindingSeverity
        if (count := report.count(severity))
    ]
    passed = len(report.passed)
    text = Text(f"{passed} check{'s' if passed != 1 else ''} passed")
    if report.not_done:
        text.append(f", {len(report.not_done)} not done ({', '.join(report.not_done)})")
    text.append("; ")
    worst = report.findings[0].severity if report.findings else None
    if worst in (None, FindingSeverity.NOTICE):
        text.append("no problems found", style="bold green")
        if counts:
            text.append(f", {counts[0]}")
    else:
        text.append(", ".join(counts), style=_STYLES[worst] if worst is not None else "")
    return text
