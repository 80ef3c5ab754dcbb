"""`python -m tests.vectors DIR`: runs the cases of every area file found."""

from pathlib import Path

import click

from tests.vectors.runner import Adapters, Area, Outcome, find_adapters, find_areas, run_case


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("-q", "--quiet", is_flag=True, help="One line per area, no failing cases.")
@click.option("-a", "--area", "names", multiple=True, help="Only this area; repeatable.")
def main(folders: tuple[Path, ...], quiet: bool, names: tuple[str, ...]) -> None:
    """Runs every area file (*.json) below FOLDERS against its adapter."""
    found = find_adapters()
    try:
        areas = [area for area in find_areas(*folders) if not names or area.name in names]
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    outcomes = [outcome for area in areas for outcome in _run(area, found, quiet)]
    for module, reason in found.broken.items():
        click.echo(f"adapters/{module}.py cannot be imported:\n{reason}")
    click.echo(_counts(outcomes))
    if found.broken or any(outcome.problem for outcome in outcomes):
        raise SystemExit(1)


def _run(area: Area, found: Adapters, quiet: bool) -> list[Outcome]:
    if area.name not in found.adapters:
        click.echo(f"{area.name}: no adapter yet")
        return []
    outcomes = [run_case(area.name, case, found) for case in area.cases]
    click.echo(f"{area.name}: {_counts(outcomes)}")
    for each in outcomes:
        if each.deviation is not None:
            click.echo(f"  {each.case} deviates ({each.deviation.name}): {each.deviation.why}")
        elif each.problem and not quiet:
            click.echo(f"  {each.case}")
        if not quiet and (text := each.problem or each.answers):
            click.echo("    " + text.strip().replace("\n", "\n    "))
    return outcomes


def _counts(outcomes: list[Outcome]) -> str:
    failed = sum(1 for each in outcomes if each.problem)
    deviating = sum(1 for each in outcomes if each.deviation is not None)
    documented = f"{deviating} documented deviation{'' if deviating == 1 else 's'}, " if deviating else ""
    return f"{len(outcomes) - failed - deviating} passed, {documented}{failed} failed"


if __name__ == "__main__":
    main()
