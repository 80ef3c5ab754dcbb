"""`python -m tests.reference.cycles [KIND …]`: random clusters, and pods that come one by one, which the plugins of
koord-scheduler (Go, built once) and ours place."""

import logging
import sys
from collections.abc import Sequence

from tests.go_programs import Missing
from tests.real.many_cases import differing, options_of, seeds_of
from tests.reference import original
from tests.reference.cycles import cases, compare


def main(arguments: Sequence[str]) -> int:
    """Compare kinds of clusters; 1 where an answer differs."""
    parser = options_of("tests.reference.cycles", __doc__ or "", 300)
    parser.add_argument("kinds", nargs="*", help=f"some of {', '.join(cases.NAMES)}; all without")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # what plugins say of odd objects
    try:
        with original.answering(compare.PROGRAM) as ask:
            count = sum(
                differing(kind, seeds_of(options), lambda seed, of=kind: compare.differences(ask, of, seed))
                for kind in options.kinds or cases.NAMES
            )
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
