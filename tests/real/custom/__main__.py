"""Compare as many cases as wanted, and print where we differ from Kubernetes.

python -m tests.real.custom --cases 20000 expression definition
"""

import sys
from pathlib import Path

from tests import go_programs
from tests.go_programs import Ask, Missing
from tests.real import many_cases
from tests.real.custom import compare

PROGRAM = Path(__file__).parent


def program() -> Path:
    """Kubernetes' own judgement, built where it is missing. Raises: Missing."""
    return go_programs.provide(PROGRAM, "custom", "packages of Kubernetes' API server")


def main() -> int:
    parser = many_cases.options_of("tests.real.custom", __doc__, cases=2000)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(compare.KINDS)}; all without")
    options = parser.parse_args()
    seeds = many_cases.seeds_of(options)
    try:
        path = program()
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    with go_programs.answering(path) as ask:
        return min(1, sum(differing(ask, name, seeds) for name in options.names or compare.KINDS))


def differing(ask: Ask, name: str, seeds: range) -> int:
    return many_cases.differing(name, seeds, lambda seed: compare.KINDS[name](ask, seed))


if __name__ == "__main__":
    sys.exit(main())
