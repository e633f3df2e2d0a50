"""Tables of classes by name: names of this package, of programs and of installed packages."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import calibscale as cs
from calibscale import registry
from calibscale.cli.command_table import COMMANDS
from calibscale.cli.commands.plugins import REGISTRIES
from calibscale.estimators.known_estimators import ESTIMATORS, named
from calibscale.estimators.settings import build
from calibscale.recalibration.method_registry import METHODS
from calibscale.registry import Registry, RegistryEntry, imported
from calibscale.statistics.null_distributions import NULLS, DrawnLabels

ESTIMATOR = '''
from dataclasses import dataclass
from typing import ClassVar

from calibscale import Estimate
from calibscale.estimators.base import SimpleEstimator
from calibscale.statistics.score_sums import Totals


@dataclass(frozen=True)
class {kind}(SimpleEstimator):
    """Share of rows."""

    name: ClassVar[str] = "{name}"
    notion: ClassVar[str] = "top_label"
    protocol: ClassVar[int] = {protocol}

    @property
    def needs(self):
        return (Totals(),)

    def finalize(self, state):
        return Estimate(self.name, self.notion, 1.0, n=int(state.n))
'''


def _estimator(name: str, protocol: int = 2) -> str:
    return ESTIMATOR.format(kind="Share", name=name, protocol=protocol)


def install(folder: Path, package: str, points: dict[str, dict[str, str]], **modules: str) -> None:
    """Write the metadata and the modules of an installed package."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for group, targets in points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in targets.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Folder of packages that this process finds."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.forget_installed()
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)
    registry.forget_installed()


@pytest.fixture
def source() -> cs.ArraySource:
    return cs.from_arrays(probabilities=[0.2, 0.9, 0.4, 0.7], labels=[0, 1, 1, 1], binary=True)


def _states(run) -> dict[str, str]:
    listed = run("plugins", "--json", "-").json["plugins"]
    return {f"{entry['package']} {entry['name']}": entry["state"] for entry in listed}


@pytest.mark.parametrize("group", REGISTRIES)
def test_tables__have_classes_that_fit(group):
    table: Registry = imported(REGISTRIES[group])
    assert table.group == group
    for name in table.built_in:
        assert callable(table[name])
        assert table.base is None or table.fault(table.entry(name)) is None


def test_unknown_names__are_key_errors_of_the_mapping():
    assert "entropy" not in NULLS
    assert NULLS.get("entropy") is None
    with pytest.raises(KeyError, match="entropy"):
        NULLS["entropy"]
    assert list(COMMANDS) == list(COMMANDS.built_in)
    assert len(NULLS) == len(list(NULLS))


# ---------------------------------------------------------------- registered by a program


@dataclass(frozen=True)
class LabelsAgain(DrawnLabels):
    """The null of drawn labels under another name."""

    name: ClassVar[str] = "labels_again"


@pytest.fixture
def nulls(monkeypatch) -> Registry:
    monkeypatch.setattr(NULLS, "_registered", {})
    return NULLS


def test_registered_classes__are_known_by_name(nulls, source):
    nulls.register("labels_again", LabelsAgain, summary="drawn labels")
    nulls.register("labels_again", LabelsAgain)  # as a notebook that runs a cell again
    values = [
        cs.calibration_test(source, ["ece"], null=null, n_replicates=9, seed=3)["ece"].p_value
        for null in ("labels", "labels_again")
    ]
    assert values[0] == values[1]
    assert list(nulls)[-1] == "labels_again"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("wild", LabelsAgain, "tests cannot register the null 'wild', a name of calibscale"),
        ("Wild-Cluster", LabelsAgain, "'Wild-Cluster', a name of calibscale"),
        ("again", LabelsAgain, "the null again of tests has the name 'labels_again' in its class"),
        ("number", int, "the null number of .* is not a dataclass derived from calibscale"),
    ],
)
def test_registered_classes__that_do_not_fit_are_refused(nulls, name, value, message):
    with pytest.raises(cs.OptionError, match=message):
        nulls.register(name, value)
    assert name == "wild" or name not in nulls


def test_registered_names__of_other_packages_are_refused(nulls):
    nulls.register("labels_again", "first_package.nulls:Again")
    with pytest.raises(
        cs.OptionError, match=r"tests cannot .* 'labels_again', a name of first_pack"
    ):
        nulls.register("labels_again", LabelsAgain)


# ---------------------------------------------------------------- installed packages


def test_names_and_synonyms_of_calibscale__come_first(site, run, source):
    points = {"ece": "early:Share", "smECE": "early:Share", "mmce": "early:Share"}
    install(site, "early", {"calibscale.estimators": points}, early=_estimator("mmce"))
    assert named("smece") == ("smooth_ece", {})
    assert named("ece") == ("ece", {})
    assert ESTIMATORS["ece"] is cs.ECE
    # calibscale has no MMCE and explains so, unless a package has it.
    assert named("MMCE") == ("mmce", {})
    assert cs.evaluate(source, "mmce")["mmce"].value == 1.0
    states = _states(run)
    assert states["early mmce"] == "works"
    for name in ("ece", "smECE"):
        assert states[f"early {name}"] == "clashes with calibscale, which has this name or synonym"


def test_two_packages_of_one_name__are_both_named(site, run, source):
    for package in ("left", "right"):
        points = {"share": f"{package}_share:Share", package: f"{package}_other:Share"}
        modules = {f"{package}_share": _estimator("share"), f"{package}_other": _estimator(package)}
        install(site, package, {"calibscale.estimators": points}, **modules)
    message = "the estimator 'share' is provided by left 1.0 and right 1.0; uninstall"
    with pytest.raises(cs.OptionError, match=message):
        build("share", {})
    assert cs.evaluate(source, ["left", "right", "ece"]).estimates[1].value == 1.0
    assert _states(run) == {
        "left left": "works",
        "left share": "clashes with right 1.0",
        "right right": "works",
        "right share": "clashes with left 1.0",
    }
    assert "share" in run("estimators").out


FAULTY = {
    "calibscale.estimators": {
        "exits": "exits:Share",
        "no_file": "no_such_module:Share",
        "older": "older:Share",
        "newer": "newer:Share",
        "fine": "fine:Share",
    },
    "calibscale.nulls": {"half": "half:Half"},
    "calibscale.readers": {".one": "half:NUMBER"},
    "calibscale.recalibration": {"labels": "half:Half"},
    "calibscale.estimator": {"misspelt": "fine:Share"},
}
MODULES = {
    "exits": "raise SystemExit('no licence')",
    "older": _estimator("older", 1),
    "newer": _estimator("newer", 3),
    "fine": _estimator("fine"),
    "half": "from dataclasses import dataclass\nfrom typing import ClassVar\n"
    "from calibscale.statistics.null_distributions import Null\n"
    "@dataclass(frozen=True)\nclass Half(Null):\n    name: ClassVar[str] = 'halves'\n"
    "NUMBER = 1\n",
}
MESSAGES = {
    "exits": "cannot be imported: SystemExit: no licence",
    "no_file": "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
    "older": "was written for protocol 1, and this is 2: upgrade faulty",
    "newer": "was written for protocol 3, and this is 2: upgrade calibscale",
    "fine": "works",
    "half": "has the name 'halves' in its class: use one name for both",
    ".one": "is not callable",
    "labels": "is not a dataclass derived from calibscale.recalibration.recalibrator."
    "RecalibrationMethod",
    "misspelt": f"has no effect: the groups are {', '.join(REGISTRIES)}",
}


def test_faulty_classes__are_named_and_the_others_work(site, run, source):
    install(site, "faulty", FAULTY, **MODULES)
    assert _states(run) == {f"faulty {name}": state for name, state in MESSAGES.items()}
    table = " ".join(run("plugins").out.split())
    for name, state in MESSAGES.items():
        assert f"{name} faulty 1.0 {state}" in table
    for name in ("exits", "no_file", "older", "newer"):
        with pytest.raises(cs.OptionError) as caught:
            cs.evaluate(source, name)
        assert str(caught.value) == f"the estimator {name} of faulty 1.0 {MESSAGES[name]}"
    assert cs.evaluate(source, "fine")["fine"].value == 1.0
    with pytest.raises(cs.OptionError, match=r"the null half of faulty 1.0 has the name"):
        cs.calibration_test(source, ["ece"], null="half")
    with pytest.raises(
        cs.OptionError, match=r"the recalibration method labels of faulty 1.0 is not"
    ):
        cs.recalibrate(source, "labels")


def test_jobs__name_faulty_estimators(site, tmp_path):
    from calibscale.monitoring.job.job_reader import read_job

    install(site, "faulty", FAULTY, **MODULES)
    (tmp_path / "job.toml").write_text(
        "estimators = ['older', 'fine', 'fine(bins=3)']\nsource.path = '{date}.zarr'\n[test]\n"
        "[[thresholds]]\nestimator = 'older'\nabove = 1.0\n"
    )
    with pytest.raises(cs.OptionError) as caught:
        read_job(tmp_path / "job.toml")
    lines = [line.partition("job.toml:1: ")[2] for line in str(caught.value).splitlines()]
    assert lines[0] == f"estimators[0]: the estimator older of faulty 1.0 {MESSAGES['older']}"
    assert lines[1] == "estimators[2].bins: fine has no such setting; allowed: none"


READER = """
import numpy as np
from calibscale.data.ingest.readers import NamedArrays

def scores_file(file):
    columns = dict(zip("yp", np.loadtxt(file.path).T))
    return NamedArrays(list(columns), columns.__getitem__)
"""


OLD_ESTIMATOR = (
    _estimator("old")
    .replace("(SimpleEstimator)", "(Estimator)")
    .replace(
        "from calibscale.estimators.base import SimpleEstimator", "from calibscale import Estimator"
    )
)


def test_estimators__of_an_older_protocol_are_named_where_they_are_defined(site, run, source):
    install(site, "aged", {"calibscale.estimators": {"old": "old:Share"}}, old=OLD_ESTIMATOR)
    message = "the estimator Share was written for an older protocol"
    assert message in _states(run)["aged old"]
    with pytest.raises(cs.OptionError, match=f"the estimator old of aged 1.0 .* {message}"):
        cs.evaluate(source, "old")
    with pytest.raises(cs.OptionError, match=message):
        exec(OLD_ESTIMATOR, {"__name__": "old"})


def test_readers__are_known_by_the_ending_of_a_file(site):
    from calibscale.monitoring.job.job_reader import read_job

    points = {"calibscale.readers": {".scores": "score_files:scores_file"}}
    install(site, "score-files", points, score_files=READER)
    (site / "day.scores").write_text("1 0.5\n0 0.25\n")
    source = cs.from_file(site / "day.scores", probabilities="p", labels="y")
    assert cs.evaluate(source, "accuracy")["accuracy"].n == 2
    (site / "job.toml").write_text(
        "estimators = ['ece']\nsource.path = 'days/{date}.scores'\n"
        "source.columns = {probabilities = 'p', labels = 'y'}\n"
    )
    assert read_job(site / "job.toml").source.format == "files"
    (site / "other.score").write_text("1 0.5\n")
    with pytest.raises(cs.OptionError, match=r"must end in one of \.npz, .*, \.scores"):
        cs.from_file(site / "other.score")


def test_close_names__of_other_packages_are_suggested(site):
    points = {"calibscale.estimators": {"overconfidence": "over:Share"}}
    install(site, "over", points, over=_estimator("overconfidence"))
    with pytest.raises(cs.OptionError, match="did you mean 'overconfidence'"):
        named("overconfidense")


def test_plugins__without_any_say_so(monkeypatch, run):
    monkeypatch.setattr("calibscale.cli.commands.plugins.installed_groups", lambda: ())
    assert run("plugins").out == "No installed package adds anything to calibscale.\n"


READS = """
import json, sys
from calibscale import registry
from calibscale.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps(registry._entry_points.cache_info().misses), file=sys.stderr)
"""


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("--help",), 0),
        pytest.param(("nightly", "--help"), 0, marks=pytest.mark.slow),
        (("evaluate", "rows.npz", "-e", "smece,brier"), 0),
        (("evaluate", "rows.npz", "-e", "entropy"), 1),
        *(
            pytest.param(arguments, count, marks=pytest.mark.slow)
            for arguments, count in (
                (("test", "rows.npz", "--null", "wild", "-s", "ece", "--replicates", "9"), 0),
                (("recalibrate", "rows.npz", "--method", "platt"), 0),
                (("select", "rows.zarr", "--estimators", "bins"), 0),
                (("estimators",), 1),
            )
        ),
    ],
    ids=str,
)
def test_entry_points__are_read_for_unknown_names_and_lists_only(arguments, count, tmp_path):
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, 300)
    arrays = {"probabilities": p, "labels": (rng.random(300) < p).astype(int)}
    np.savez(tmp_path / "rows.npz", **arrays)
    store = cs.LogitStore.create(
        tmp_path / "rows.zarr", classes=2, kind="probabilities", binary=True
    )
    with store.writer() as writer:
        writer.append(p, arrays["labels"])
    command = [sys.executable, "-c", READS, *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(ran.stderr.splitlines()[-1]) == count, ran.stderr


def test_methods__restore_their_fits(source):
    for name in METHODS.built_in:
        assert METHODS[name].fit_class().stored is not None


def test_entries__describe_themselves():
    entry = RegistryEntry("share", "left:Share", package="left", version="1.0")
    assert entry.description == "from the package left 1.0"
    assert ESTIMATORS.entry("ece").description == ESTIMATORS.summaries["ece"]
