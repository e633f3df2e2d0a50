"""python benchmarks/run.py [--small] [NAME ...] [--workdir DIR]: measure, judge, write JSON."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from compare_contestants import TASKS
from measure import RESULTS, Limits, Settings, usable_cores

NAMES = (
    "golden",
    "exact",
    "start",
    "reads",
    "scale",
    "scaling",
    "peers",
    "conventions",
    "compare",
    "excess_coverage",
    "selection",
    "pairs",
    "subnormal",
    "forecasts",
    "levels",
    "alarms",
    "nightly",
)
CORES = 2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--small", action="store_true", help="a hundredth; times are not judged")
    parser.add_argument("--workdir", type=Path, help="keeps the simulated stores; 6 GB")
    parser.add_argument("--results", type=Path, help="default benchmarks/results")
    parser.add_argument("--skip-largest", action="store_true", help="no 10^6 x 1000 (4 GB)")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers")
    compare = parser.add_argument_group("compare")
    compare.add_argument(
        "--largest", type=int, default=Settings.compare_rows, help="rows; default 10^7"
    )
    compare.add_argument(
        "--input-bytes",
        type=int,
        default=Settings.input_bytes,
        help="most bytes of the predictions of a size; default 4 * 10^8",
    )
    compare.add_argument(
        "--limit-seconds", type=float, default=Settings.limits.seconds, help="of a run; default 20"
    )
    compare.add_argument(
        "--limit-bytes", type=float, default=Settings.limits.memory, help="of a run; default 6e9"
    )
    compare.add_argument(
        "--task", action="append", default=[], choices=list(TASKS), help="default: all of them"
    )
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    if usable_cores() > CORES and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with (
        nullcontext(parsed.workdir) if parsed.workdir else tempfile.TemporaryDirectory() as workdir
    ):
        folder = Path(workdir)
        folder.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            folder=folder,
            small=parsed.small,
            results=parsed.results or (folder / "results" if parsed.small else RESULTS),
            peers_python=parsed.python,
            largest=not parsed.skip_largest,
            compare_rows=parsed.largest,
            input_bytes=parsed.input_bytes,
            tasks=tuple(parsed.task),
            limits=Limits(parsed.limit_seconds, parsed.limit_bytes),
        )
        missed = 0
        for name in parsed.names or NAMES:
            report = importlib.import_module(name).run(settings)
            report.write()
            missed += report.missed
    print(f"{missed} bounds missed" if missed else "no bound missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
