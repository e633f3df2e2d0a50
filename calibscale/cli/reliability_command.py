"""``calibscale reliability``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.options import (
    EDGES,
    SHARE,
    Command,
    bins_option,
    check_outputs,
    edges_option,
    json_option,
    open_session,
    quiet_option,
    source_options,
    write_json,
    wrote,
)


@click.command(cls=Command, short_help="Compare predicted probabilities with frequencies.")
@click.argument("store", required=False)
@click.option("--output", "-o", metavar="PATH", help="Path of the diagram (png, svg, pdf).")
@json_option
@bins_option
@edges_option
@click.option(
    "--notion", type=click.Choice(["top_label", "positive", "class_wise"]),
    help="Probability to judge.  [default: positive for two classes, else top_label; class_wise "
    "with --class]",
)  # fmt: skip
@click.option(
    "--class", "class_index", type=click.IntRange(0), metavar="K",
    help="Index of the class to judge, from 0 (with --notion class_wise).",
)  # fmt: skip
@click.option(
    "--group-by", metavar="COLUMN",
    help="Name of a covariate; the diagram is repeated for each of its values.",
)  # fmt: skip
@click.option(
    "--confidence", "level", type=SHARE, default=0.95, show_default=True,
    help="Confidence level of the intervals and of the shaded band.",
)  # fmt: skip
@source_options
@quiet_option
def reliability(
    store: str | None,
    output: str | None,
    json_path: str | None,
    edges: str,
    notion: str | None,
    class_index: int | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Compare the predicted probabilities of STORE with observed frequencies, bin by bin.

    Every bin has the confidence interval of its frequency, and the band in which the frequency of a
    calibrated model would lie.

    \b
    Examples:
      calibscale reliability loans.zarr
      calibscale reliability loans.zarr --edges equal-mass --output diagram.png
    """
    check_outputs({"--output": output, "--json": json_path})
    if notion == "class_wise" and class_index is None:
        raise click.UsageError("--notion class_wise needs --class K, the class to judge")
    if notion not in (None, "class_wise") and class_index is not None:
        raise click.UsageError(f"--class needs --notion class_wise, not {notion}")
    if output is not None:
        from calibscale.output.plots.pictures import check_format

        check_format(output)
    from calibscale.evaluation import reliability as run

    notion = notion or (None if class_index is None else "class_wise")
    with open_session(store, options, "counting", quiet=quiet) as session:
        result = run(
            session, edges=bin_edges(edges), notion=notion, class_index=class_index, **options
        )
    if json_path != "-" and not quiet:
        from calibscale.output.text import print_result

        print_result(result)
    if output is not None:
        from calibscale.output.plots.pictures import save_picture

        save_picture(result, output)
        wrote(output)
    write_json(json_path, result.to_dict())


def bin_edges(text: str) -> str | tuple[float, ...]:
    """Convention or numbers of --edges."""
    if text in EDGES:
        return text
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither numbers nor one of {', '.join(EDGES)}", param_hint="--edges"
        ) from None
