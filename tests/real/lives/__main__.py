"""Lead as many lives as wanted on both kinds of server, and print where ours differ.

python -m tests.real.lives --cases 100 deployment job
python -m tests.real.lives --seed 4711 --cases 1 --show deployment      # with all steps
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.real import binaries
from tests.real.lives import cases, compare
from tests.real.lives.compare import CONTROLLER_FLAGS
from tests.real.servers import Servers


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.real.lives", description=__doc__, formatter_class=form)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(cases.NAMES)}; all without")
    parser.add_argument("--cases", type=int, default=20, help="for each name")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--at-once", type=int, default=40, help="lives that are led side by side")
    parser.add_argument("--show", action="store_true", help="print the steps of lives that differ")
    parser.add_argument("--kubeconfig", help="of a running server with controllers; else one is started")
    options = parser.parse_args()
    if options.kubeconfig:
        return run(options, Path(options.kubeconfig))
    if why := binaries.why_missing():
        print(why, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder))
        try:
            servers.start(controller_flags=CONTROLLER_FLAGS)
            return run(options, servers.kubeconfig)
        finally:
            servers.close()


def run(options: argparse.Namespace, kubeconfig: Path) -> int:
    names = options.names or cases.NAMES
    seeds = range(options.seed, options.seed + options.cases)
    lives = [cases.life_of(name, seed) for seed in seeds for name in names]
    begun_s = time.monotonic()
    found = compare.differing(kubeconfig, lives, options.at_once)
    for life, lines in found:
        print(f"{life['name']}:", *lines, sep="\n    ")
        if options.show:
            for number, step in enumerate(life["steps"]):
                print(f"  # {number}: {json.dumps(step)}")
    print(f"{len(lives)} lives, {len(found)} differ, {time.monotonic() - begun_s:.0f} s", flush=True)
    return min(1, len(found))


if __name__ == "__main__":
    sys.exit(main())
