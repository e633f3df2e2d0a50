"""``calibscale demo``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from calibscale.addresses import shown_address
from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command


@command
@click.option("--rows", "-n", default=100_000, help="Number of rows.")
@click.option("--classes", "-k", default=10, help="Number of classes.")
@shared.seed_option
@click.option(
    "--keep", metavar="STORE", help="Path at which the simulated store is kept.  [default: deleted]"
)
@click.option("--quiet", "-q", is_flag=True, help="Print no progress.")
def demo(rows: int, classes: int, seed: int, keep: str | None) -> None:
    """Simulate an overconfident classifier, evaluate it, and compare with the true values."""
    from calibscale.evaluation.evaluate import evaluate as run
    from calibscale.output.text import demo_table
    from calibscale.session import default_estimators
    from calibscale.simulation import simulate as simulate_store
    from calibscale.simulation import truth

    estimators = default_estimators()
    with tempfile.TemporaryDirectory(prefix="calibscale-demo-") as folder:
        store = keep or str(Path(folder) / "demo.zarr")
        # The true values need float64, and kernels of one type take less time to compile.
        with outputs.progress("simulating", "rows") as report:
            simulate_store(
                store, rows=rows, classes=classes, dtype="float64", seed=seed, progress=report
            )
        with outputs.progress("evaluating") as report:
            result = run(store, None, progress=report)
    resolved = [e for e in estimators if result[e.name].value is not None]
    demo_table(result, truth(resolved, rows=rows, classes=classes, seed=seed))
    if keep:
        place = shown_address(keep)
        click.echo(f"The store is kept in {place}; try: calibscale evaluate {place}")
