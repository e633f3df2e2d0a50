"""python examples/ddp_accumulator.py: evaluate a model on several processes of torch.distributed.

Each process evaluates its own part of the rows.  The accumulators, not the rows, are gathered, and
their estimates equal the estimates of `evaluate` on all rows.
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing

from calibscale import Accumulator, evaluate, from_arrays

PROCESSES, ROWS, BATCH, CLASSES = 2, 20_000, 500, 10
# with bandwidths, which are the same in all processes
ESTIMATORS = ("ece", "brier", "nll", "ckce(bandwidth=0.5)", "jkce(bandwidth=0.5)")


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of an overconfident model, and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(ROWS, CLASSES, generator=generator)
    labels = torch.multinomial((logits / 2).softmax(dim=1), 1, generator=generator)[:, 0]
    return logits, labels


def evaluation(rank: int, file: str) -> None:
    """Evaluation loop of one process."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=PROCESSES)
    logits, labels = (part[rank::PROCESSES] for part in rows())
    accumulator = Accumulator(ESTIMATORS, classes=CLASSES)
    for batch in zip(logits.split(BATCH), labels.split(BATCH), strict=True):
        accumulator.update(logits=batch[0], labels=batch[1])

    gathered: list[Accumulator | None] = [None] * PROCESSES
    dist.all_gather_object(gathered, accumulator)
    total = Accumulator(ESTIMATORS, classes=CLASSES)
    for part in gathered:
        total.merge(part)
    if rank == 0:
        show("merged", total.compute())
    dist.destroy_process_group()


def show(title, result) -> None:
    values = "  ".join(f"{e.estimator} {e.value:.12f}" for e in result.estimates)
    print(f"{title:8} {result.n:,} rows  {values}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(evaluation, (f"{folder}/rendezvous",), PROCESSES)
    logits, labels = rows()
    show("evaluate", evaluate(from_arrays(logits=logits, labels=labels), ESTIMATORS))


if __name__ == "__main__":
    main()
