"""Run benchmarks: `python -m benchmarks [NAME ...]`, all of them without names."""

import importlib
import pkgutil
import sys

import benchmarks


def main(names: list[str]) -> int:
    known = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        print(f"== {name}", flush=True)
        sys.argv = [name]  # a benchmark with options of its own takes them from the command line
        importlib.import_module(f"benchmarks.{name}").main()
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
