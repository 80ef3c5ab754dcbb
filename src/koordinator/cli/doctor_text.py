"""A doctor's report on a terminal: a table with what is wrong, why it matters, what to do; a line that sums up."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from koordinator.doctor.checks.all import DoctorReport
from koordinator.doctor.finding import Finding, Severity, some_of

WIDTH_SEVERITY, WIDTH_CHECK = 9, 18
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTICE: "cyan"}


def plain(report: DoctorReport) -> str:
    """The report for files and pipes: nothing is wrapped, so that commands can be copied."""
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
        for severity in Severity
        if (count := report.count(severity))
    ]
    passed = len(report.passed)
    text = Text(f"{passed} check{'s' if passed != 1 else ''} passed")
    if report.not_done:
        text.append(f", {len(report.not_done)} not done ({', '.join(report.not_done)})")
    text.append("; ")
    worst = report.findings[0].severity if report.findings else None
    if worst in (None, Severity.NOTICE):
        text.append("nothing is wrong", style="bold green")
        if counts:
            text.append(f", {counts[0]}")
    else:
        text.append(", ".join(counts), style=_STYLES[worst] if worst is not None else "")
    return text
