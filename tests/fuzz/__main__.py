"""Command that runs cases in worker processes and prints their counts."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz.cases import run_case
from tests.fuzz.pool import counts_text, failures_of, run_cases, seeds


def main() -> None:
    """Print the counts of outcomes by target, and all failures. Exit with 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", action="append", help="only these targets")
    parser.add_argument("case", nargs="*", help="cases to repeat in this process, as csv:17")
    arguments = parser.parse_args()
    if arguments.case:
        with tempfile.TemporaryDirectory() as root:
            for case in arguments.case:
                target, _, seed = case.partition(":")
                print(*run_case(target, int(seed), Path(root)), sep="\n")
        return
    outcomes = run_cases(
        seeds(arguments.cases, arguments.first, arguments.target), arguments.workers
    )
    print(counts_text(outcomes))
    failures = failures_of(outcomes)
    for outcome in failures:
        print(f"\n{outcome.case}: {outcome.kind}\n{outcome.text}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
