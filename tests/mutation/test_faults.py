"""Faults are put in where they can be, and said to need a new import where they cannot."""

import pytest

from tests.mutation.mutants import mutants
from tests.mutation.warm import changed_functions

SOURCE = """
LIMIT = 3

def low(value, least=1):
    return (
        value
        < LIMIT
    ) and value > least

def inner(values):
    return sum(value for value in values if value >= 2)
"""


def faults(line: int, about: str) -> list[tuple[str, str]]:
    """Names of the functions whose code a fault changes, and its text."""
    old = compile(SOURCE, "m.py", "exec")
    return [
        (code.co_name, mutant.text)
        for mutant in mutants("m.py", SOURCE)
        if mutant.line == line and mutant.about == about
        for code, _ in changed_functions(old, compile(mutant.applied(SOURCE), "m.py", "exec"))
    ]


def test_a_fault_changes_the_code_of_its_function_only_whatever_lines_it_takes() -> None:
    assert faults(6, "comparison") == [("low", "(value <= LIMIT\n)")]


def test_a_fault_in_a_generator_changes_the_function_around_it_too() -> None:
    assert [name for name, _ in faults(11, "comparison")] == ["inner", "<genexpr>"]


@pytest.mark.parametrize("line", [2, 4], ids=["a constant", "a default"])
def test_what_runs_at_import_cannot_be_changed_in_place(line: int) -> None:
    with pytest.raises(ValueError, match="at import"):
        faults(line, "constant")
