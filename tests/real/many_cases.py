"""What the commands that compare random cases with the originals have in common: options, and the count."""

import argparse
import time
from collections.abc import Callable

Differences = Callable[[int], list[str]]
"""By the number of a case: where ours differs, line by line."""


def options_of(name: str, described: str, cases: int) -> argparse.ArgumentParser:
    """The options `--cases` and `--seed` of `python -m NAME`; `described` is its documentation."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m {name}", description=described, formatter_class=form)
    parser.add_argument("--cases", type=int, default=cases, help="how many, of each name if it has names")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    return parser


def seeds_of(options: argparse.Namespace) -> range:
    return range(options.seed, options.seed + options.cases)


def differing(title: str, seeds: range, differences: Differences) -> int:
    """How many cases differ; each is printed."""
    begun_s, count = time.monotonic(), 0
    for seed in seeds:
        if lines := differences(seed):
            count += 1
            print(f"{title} {seed}:", *lines, sep="\n    ")
    print(f"{title}: {len(seeds)} cases, {count} differ, {time.monotonic() - begun_s:.0f} s", flush=True)
    return count
