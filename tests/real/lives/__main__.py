"""Lead as many lives as wanted on both kinds of server, and print where ours differ.

python -m tests.real.lives --cases 100 deployment job
python -m tests.real.lives --seed 4711 --cases 1 --show deployment      # with all steps
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.go_programs import Missing
from tests.real import binaries
from tests.real.lives import cases, compare
from tests.reference import original


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.real.lives", description=__doc__, formatter_class=form)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(cases.NAMES)}; all without")
    parser.add_argument("--cases", type=int, default=20, help="for each name")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--at-once", type=int, default=40, help="lives that are led side by side")
    parser.add_argument("--show", action="store_true", help="print the steps of lives that differ")
    parser.add_argument(
        "--servers", type=int, default=4, help="for lives under a scheduler, one on each at once"
    )
    parser.add_argument(
        "--kubeconfig", help="of a running server with what the lives need; else they are started"
    )
    options = parser.parse_args()
    if why := binaries.why_missing((*binaries.CONTROL_PLANE, "kube-scheduler")):
        print(why, file=sys.stderr)
        return 1
    names = options.names or cases.NAMES
    count = 0
    if of_controllers := [name for name in names if name in cases.OF_CONTROLLERS]:
        count += run(options, of_controllers, 1)
    if of_scheduler := [name for name in names if name in cases.OF_SCHEDULER]:
        count += run(options, of_scheduler, options.servers)
    for of_koordinator in (
        cases.OF_KOORDINATOR,
        cases.OF_MANAGER,
        *((name,) for name in cases.OF_DESCHEDULER),
    ):
        if wanted := [name for name in names if name in of_koordinator]:
            try:
                count += run(options, wanted, 1 if wanted[0] in cases.OF_DESCHEDULER else options.servers)
            except Missing as error:
                print(f"{', '.join(wanted)}: {error}", file=sys.stderr)
    return min(1, count)


def run(options: argparse.Namespace, names: Sequence[str], servers: int) -> int:
    """How many differ."""
    is_descheduled = names[0] in cases.OF_DESCHEDULER
    is_scheduled = names[0] not in cases.OF_CONTROLLERS and not is_descheduled
    koord_descheduler = (original.command("koord-descheduler"), names[0]) if is_descheduled else None
    koord_scheduler = original.command("koord-scheduler") if names[0] in cases.OF_KOORDINATOR else None
    seeds = range(options.seed, options.seed + options.cases)
    lives = [cases.life_of(name, seed) for seed in seeds for name in names]
    begun_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        kubeconfigs = [Path(options.kubeconfig)] if options.kubeconfig else []
        ours: list[Path] = []
        if names[0] in cases.OF_MANAGER:
            both = compare.managers(original.command("koord-manager"))
            kubeconfigs, ours = ([each] for each in stack.enter_context(both))
        elif not kubeconfigs:
            started = compare.servers(
                servers,
                is_scheduled=is_scheduled,
                koord_scheduler=koord_scheduler,
                koord_descheduler=koord_descheduler,
            )
            kubeconfigs = stack.enter_context(started)
        at_once = 1 if is_scheduled else min(8, options.at_once) if is_descheduled else options.at_once
        found = compare.differing(kubeconfigs, lives, at_once, ours)
    for life, lines in found:
        print(f"{life['name']}:", *lines, sep="\n    ")
        if options.show:
            for number, step in enumerate(life["steps"]):
                print(f"  # {number}: {json.dumps(step)}")
    print(f"{len(lives)} lives, {len(found)} differ, {time.monotonic() - begun_s:.0f} s", flush=True)
    return len(found)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Missing as missing:
        sys.exit(str(missing))
