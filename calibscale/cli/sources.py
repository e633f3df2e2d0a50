"""Options that name the source of a command, and the sources that they open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from calibscale.addresses import is_url, located, shown_address
from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared

if TYPE_CHECKING:
    from calibscale.data.source import ArraySource
    from calibscale.session import Session


def _storage_options(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any] | None:
    """Options of a file system, where texts that are not JSON are strings."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):  # the text may be secret
            raise click.BadParameter("an option is not KEY=VALUE", param_hint="--storage-option")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options or None


def _event(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> dict[str, Any] | None:
    """Setting of `forecast_events`."""
    if text is None:
        return None
    name, _, value = text.partition("=")
    try:
        first, *bounds = map(float, value.split(","))
    except ValueError:
        name = ""
    if name not in ("level", "threshold") or len(bounds) > (name == "threshold"):
        raise click.BadParameter("an event is level=NUMBER or threshold=NUMBER[,NUMBER]")
    return {name: (first, *bounds) if bounds else first}


storage_option = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_storage_options,
    help="Option of the file system of a URL (repeatable), such as anon=true or endpoint_url=URL "
    "for s3://; VALUE is JSON, or else text.  Credentials are better set in the environment, "
    "such as AWS_ACCESS_KEY_ID.",
)
forecast_option = click.option(
    "--forecast",
    metavar="KIND[(SETTING=VALUE,...)]",
    help="Kind of predictive distributions: normal (mean, standard deviation), ensemble (members), "
    "mixture (weights, means, standard deviations), quantiles(levels=[0.1,0.5,0.9]), "
    "histogram(edges=[0,1,2]) or ordinal(classes=5).  Or of one number or two: mean, median, "
    "quantile(level=0.9), expectile(level=0.9), second_moment, exceedance(threshold=20) or "
    "interval(coverage=0.9) (low, high).  Labels are then the observed numbers.  Or "
    "set(coverage=0.9): sets of classes, with labels that are classes.",
)
event_option = click.option(
    "--event",
    metavar="NAME=VALUE",
    callback=_event,
    help="Judge an event of predictive distributions as two classes: an outcome up to the "
    "predicted quantile of a level (level=0.5), up to a number (threshold=20), or up to numbers "
    "drawn between two, for the bias of the mean (threshold=0,40).",
)
_ARRAYS = (
    click.option(
        "--logits",
        metavar="PATH",
        help="Path of a zarr array of logits, (n, K); relative to STORE if STORE is passed.  Of a "
        "table: prefix, also with an asterisk, comma-separated names, or name of its columns.",
    ),
    click.option(
        "--probabilities",
        metavar="PATH",
        help="Path of a zarr array of predicted probabilities, (n, K), or columns of a table "
        "(instead of --logits).",
    ),
    click.option(
        "--predictions",
        metavar="PATH",
        help="Path of a zarr array, or columns of a table, of predictive distributions (with "
        "--forecast, instead of --logits).  Sets are one column of lists, a column of booleans for "
        "each class, or a zarr array or group.",
    ),
    forecast_option,
    event_option,
    click.option(
        "--labels",
        metavar="PATH",
        help="Path of a zarr array of labels, (n,), or column of a table: 0..K-1, or -1 for a "
        "missing label; in a table also names of classes, or words such as no and yes.",
    ),
    click.option(
        "--covariate-array", metavar="PATH", help="Path of a zarr array of covariates, (n, d)."
    ),
    click.option(
        "--covariate-names", metavar="A,B", help="Names of the columns of --covariate-array."
    ),
    click.option(
        "--weights",
        metavar="PATH",
        help="Path of a zarr array, (n,), or column of a table, of importance weights (not counts "
        "of rows) in any unit.",
    ),
    shared.class_names_option,
    click.option(
        "--top-k",
        metavar="PATH",
        help="Path of a zarr array, or columns of a table, of the classes of the k largest "
        "--probabilities; the rest is one more class.",
    ),
    *shared.meaning_options,
    shared.binary_option,
)
EXECUTION = ("on_invalid", "tolerance", "scheduler", "memory_limit")  # options of sessions
_SOURCE_NAMES = (
    *("logits", "probabilities", "predictions", "forecast", "labels"),
    *("covariate_array", "covariate_names", "weights", "top_k"),
    *("binary", "class_names", "storage_options", "event", *shared.MEANING),
)


def _listed(
    context: click.Context, parameter: click.Parameter, addresses: tuple[str, ...]
) -> str | tuple[str, ...] | None:
    """Store or table, or files of one table, which a shell has listed."""
    if len(addresses) < 2:
        return addresses[0] if addresses else None
    from calibscale.data.ingest.folders import is_table
    from calibscale.data.ingest.npy_shards import as_listed

    # A shell lists the files of a pattern, which are shards of one table, but two stores are a
    # mistake.
    for address in addresses:
        if not (is_url(address) or is_table(address)):
            raise click.UsageError(
                f"several files are read as one table, and {address} is not a file that can be "
                "read (a command takes one STORE)"
            )
    return tuple(as_listed(addresses))


store_argument = click.argument("store", nargs=-1, callback=_listed, metavar="[STORE|FILE...]")


def source_options(command: Callable) -> Callable:
    """Add --quiet, and the options of a store, zarr arrays or a table."""
    return array_options(shared.quiet_option(command))


def array_options(command: Callable) -> Callable:
    """Add the options of commands that read a store, zarr arrays or a table."""
    command = shared.add_options(command, _ARRAYS, "Table files, and zarr arrays of other programs")
    return shared.add_options(command, (*shared.READING, storage_option), "Reading and execution")


@contextmanager
def open_session(
    store: str | tuple[str, ...] | None, options: dict[str, Any], what: str, unit: str = "blocks"
) -> Iterator[Session]:
    """Session of the store, or of the arrays that the options name and that are then removed.

    Progress is shown as `what`, in `unit`.
    """
    from calibscale.session import Session

    (source,) = open_sources((store,), options)
    settings = {name: options.pop(name) for name in EXECUTION}
    with (
        outputs.progress(what, unit) as report,
        Session.open(source, progress=report, **settings) as session,
    ):
        yield session


def open_sources(stores: Sequence[Any], options: dict[str, Any]) -> list[ArraySource]:
    """Open stores, or the arrays in each that the options name, and remove these options."""
    named = {name: options.pop(name) for name in _SOURCE_NAMES}
    addresses = [path for path in named.values() if isinstance(path, str)]
    for store in stores:
        # A store has one address, a table has the addresses of its files, and None has none.
        addresses += [store] if isinstance(store, str) else (store or ())
    if named["storage_options"] and not any(map(is_url, addresses)):
        raise click.UsageError("--storage-option applies to URLs")
    return [_opened(store, named) for store in stores]


def open_other(store: str, options: dict[str, Any], covariates: Sequence[str] = ()) -> ArraySource:
    """Second store or table, with the options of the first, which stay in `options`.

    `covariates` are columns of a table that the command needs besides those that it names.
    """
    from calibscale.data.ingest.folders import is_table

    named = {name: options[name] for name in _SOURCE_NAMES}
    if not is_table(store, named["storage_options"]):  # a store names its arrays itself
        settings = {name: named[name] for name in ("storage_options", "event")}
        named = dict.fromkeys(_SOURCE_NAMES) | settings
    return _opened(store, named, covariates)


def _opened(
    store: str | tuple[str, ...] | None, options: dict[str, Any], covariates: Sequence[str] = ()
) -> ArraySource:
    from calibscale.data.event_sources import forecast_events

    source, event = _described(store, options, covariates), options["event"]
    return forecast_events(source, **event) if event else source


def _described(
    store: str | tuple[str, ...] | None, options: dict[str, Any], covariates: Sequence[str]
) -> ArraySource:
    from calibscale.data.ingest.folders import is_table
    from calibscale.data.source_arguments import as_source
    from calibscale.errors import BinaryError

    kinds = ("logits", "probabilities", "predictions")
    paths = {name: options[name] for name in (*kinds, "top_k", "weights")}
    storage = options["storage_options"]
    # Options that are not passed are left to the reader of the data.
    meaning = {name: options[name] for name in ("binary", *shared.MEANING) if options[name]}
    if class_names := shared.split(options["class_names"]):
        meaning["class_names"] = class_names
    if store is not None and is_table(store, storage):
        from calibscale.data.ingest.table_files import from_file

        for name in ("covariate_names", "covariate_array"):
            _refuse(options, name, "zarr arrays; the columns of a table are named by other options")
        columns: dict[str, Any] = {
            name: shared.split(text) if "," in text else text
            for name, text in paths.items()
            if text
        }
        return from_file(
            store,
            **columns,
            labels=options["labels"],
            covariates=_covariates(options["forecast"], covariates) or None,
            storage_options=storage,
            forecast=options["forecast"],
            **meaning,
        )
    paths["covariates"] = options["covariate_array"]
    named = {name: path for name, path in paths.items() if path is not None}
    # A store names its arrays itself.  With names of arrays, STORE is a folder of arrays.
    if store is not None and not named and options["labels"] is None:
        for name in ("covariate_names", "forecast", "class_names", *shared.MEANING):
            _refuse(options, name, "tables and arrays; the store declares it itself")
        assert isinstance(store, str)
        source = as_source(located(store, storage))
        # A store of several columns contradicts the declaration.
        if options["binary"] and not source.binary:
            raise BinaryError(
                f"{shown_address(store)}: binary is declared, but the store has {source.classes} "
                "columns"
            )
        return source
    if options["labels"] is None or named.keys().isdisjoint(kinds):
        raise click.UsageError("pass STORE, or --labels and one of --logits and --probabilities")
    from calibscale.data.zarr_arrays import open_arrays  # zarr is slow to import

    assert not isinstance(store, tuple)
    return open_arrays(
        store=store,
        labels=options["labels"],
        covariate_names=shared.split(options["covariate_names"]) or None,
        forecast=options["forecast"],
        storage_options=storage,
        **named,
        **meaning,
    )


def _refuse(options: dict[str, Any], name: str, scope: str) -> None:
    if options[name]:
        raise click.UsageError(f"--{name.replace('_', '-')} applies to {scope}")


def _covariates(forecast: str | None, also: Sequence[str]) -> list[str]:
    """Columns of a table that the options of the command name as covariates or groups, and `also`.

    The column that `forecast_events` adds to predictions of a kind is none of the table.
    """
    from calibscale.data.groups import Grouping, listed_groups
    from calibscale.predictions.functionals.functional import Functional
    from calibscale.predictions.kinds import forecast_of

    parameters = click.get_current_context().params
    names = [
        *shared.split(parameters.get("covariates")),
        *also,
        *filter(None, [parameters.get("cluster")]),
    ]
    names += [Grouping.parse(text).column for text in listed_groups(parameters.get("group_by"))]
    target = forecast_of(forecast)
    if isinstance(target, Functional) and target.has_constant_claim:
        names = [name for name in names if name != target.order_name]
    return list(dict.fromkeys(names))


_COLUMNS = "  NAME is an array, a column, comma-separated columns, or the prefix of their names."
ROLES = {
    "logits": f"Logits, (n, K).{_COLUMNS}  [default: logits]",
    "probabilities": "Predicted probabilities, (n, K), instead of --logits.",
    "predictions": "Parameters of predictive distributions, or a column of sets, with --forecast, "
    "instead of --logits.",
    "top_k": "Classes of the k largest --probabilities; the rest is one more class.",
    "labels": "Labels: 0..K-1, -1 for a missing label, or names of classes.  [default: labels]",
    "covariates": "Covariates, numbers or texts.  [default: covariates]",
    "covariate_names": "Array of the names of covariates.  [default: covariate_names]",
    "weights": "Importance weights, not counts of rows, in any unit.  [default: weights]",
}


def role_options(command: Callable) -> Callable:
    """Options for the columns of the files that `ingest` reads, by role."""
    options = (
        click.option(f"--{role.replace('_', '-')}", metavar="NAME", help=text)
        for role, text in ROLES.items()
    )
    return shared.add_options(command, options, "Columns")
