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
    failed = sum(1 for outcome in outcomes if outcome.problem)
    for module, reason in found.broken.items():
        click.echo(f"adapters/{module}.py cannot be imported:\n{reason}")
    click.echo(f"{len(outcomes) - failed} passed, {failed} failed")
    if failed or found.broken:
        raise SystemExit(1)


def _run(area: Area, found: Adapters, quiet: bool) -> list[Outcome]:
    if area.name not in found.adapters:
        click.echo(f"{area.name}: no adapter yet")
        return []
    outcomes = [run_case(area.name, case, found) for case in area.cases]
    failures = [outcome for outcome in outcomes if outcome.problem]
    click.echo(f"{area.name}: {len(outcomes) - len(failures)} passed, {len(failures)} failed")
    for failure in [] if quiet else failures:
        click.echo(f"  {failure.case}\n    " + failure.problem.strip().replace("\n", "\n    "))
    return outcomes


if __name__ == "__main__":
    main()
