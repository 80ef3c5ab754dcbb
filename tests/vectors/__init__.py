"""Language-neutral cases (JSON files of input and expected output) and what runs them.

    python -m tests.vectors DIR [DIR...]    run every `*.json` area file below DIR
    python -m tests.vectors DIR -a AREA     only that area (repeatable)
    python -m tests.vectors DIR -q          one line per area

Exit status: 0 when every case of every area that has an adapter passed or deviates in a documented way, 1 otherwise.

Where we answer something else on purpose, `tests.vectors.deviations` says where, what the reference answers instead,
and why. Such cases are counted and listed apart, with both answers unless `-q`. Our copy of a case carries our answer
as `ours` and the deviation's name as `why`.

To add an adapter, drop a module into `tests/vectors/adapters/` (any name); it is found by itself:

    ADAPTERS = {"cpu-suppress": cpu_suppress}      # area → function of the case's input

    def cpu_suppress(case: dict[str, Any]) -> Any:  # returns what `expected` should be
        return {"allowed": decide(...).allowed_milli}

What a file has under `fixtures` comes as `fixtures` of every case's input.

A result is compared with `expected` for equality, numbers by value (1 equals 1.0). An adapter may raise a
`KoordinatorError`: that becomes `{"error": True}`. Where equality is not the right question, add

    COMPARE = {"cpu-suppress": same}                # area → function of (expected, actual) → bool

`tests.vectors.compare` has ready ones: `quantities` (texts that are quantities compare by value, at any
depth), `tolerant(relative)` (floats within a tolerance), `subset` (only the members of `expected`).
Copy the area file to `tests/vectors/cases/` so that the test suite runs it, too.
"""
