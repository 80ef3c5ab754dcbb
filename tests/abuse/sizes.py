"""How much is done, by environment variables, and what came of it, for the table at the end."""

import os

REQUESTS = int(os.environ.get("REQUESTS", "100000"))
KILLS = int(os.environ.get("KILLS", "50"))
CHURN_MINUTES = float(os.environ.get("CHURN_MINUTES", "20"))
WATCHES = int(os.environ.get("WATCHES", "3000"))
SEED = int(os.environ.get("ABUSE_SEED", "1"))

RESULTS: list[tuple[str, str, str]] = []
"""Part, figure, value."""


def note(part: str, **figures: object) -> None:
    """Remember figures for the table, and say them at once."""
    for name, value in figures.items():
        RESULTS.append((part, name.replace("_", " "), str(value)))
    progress(part, ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items()))


def progress(part: str, text: str) -> None:
    """One line for whoever waits; pytest shows it with -s."""
    print(f"{part}: {text}", flush=True)


def table() -> list[str]:
    """The results as aligned lines."""
    widths = [max((len(row[column]) for row in RESULTS), default=0) for column in range(2)]
    return [f"{part:{widths[0]}}  {name:{widths[1]}}  {value}" for part, name, value in RESULTS]
