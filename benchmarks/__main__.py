"""Run benchmarks: `python -m benchmarks [--record] [NAME ...]`, all of them without names.

`--record` keeps what they print in benchmarks/history, with date, commit and machine.
"""

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks import _record


def main(words: list[str]) -> int:
    is_recorded = "--record" in words
    names = [word for word in words if word != "--record"]
    known = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        print(f"== {name}", flush=True)
        sys.argv = [name]  # a benchmark with options of its own takes them from the command line
        run = importlib.import_module(f"benchmarks.{name}").main
        if is_recorded:
            print(f"kept in {_record.record(name, run).relative_to(_record.ROOT)}")
        else:
            run()
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
