"""Ranking of models on the days that all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibscale.array_types import Floats
from calibscale.engine.threads import one_thread
from calibscale.errors import StoreError
from calibscale.intervals.parts_of_rows import Parts
from calibscale.intervals.resampling import Jackknife
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.job.job_days import window_days
from calibscale.monitoring.job.job_tables import RankingSettings
from calibscale.monitoring.ledger.windows import Window, window
from calibscale.ranking.model_estimates import differences, rank_probabilities, ranks
from calibscale.results.comparison_results import Difference
from calibscale.results.estimate import POPULATION, THIS_N
from calibscale.results.night_results import ComparedModel, ComparedPair, NightRanking


@dataclass(frozen=True)
class RankingCheck:
    """Rank the models of the ledger by an estimator."""

    settings: RankingSettings

    def judge(self, day: JudgedDay) -> NightRanking:
        """Models compared on the days that all of them have, the best calibrated first."""
        settings = self.settings
        name = str(settings.window)
        first, last = window_days(name, day.date)
        # Models are compared on equal days: a hard day must not count for one of them alone.
        days = _shared_days(day, settings.models, first, min(last, day.date))
        k = [e.name for e in day.recipe.estimators].index(settings.by)
        ranked: list[tuple[float, str, Window]] = []
        for model in settings.models if days else ():
            part = window(
                day.ledger, first, last, model, confidence_level=day.job.confidence, only=days
            )
            value = part.estimates[k].value
            if value is not None:
                ranked.append((float(value), model, part))
        # A stable sort keeps the order of the job for models with equal values.
        ranked.sort(key=lambda item: item[0])
        names = [model for _, model, _ in ranked]
        windows = [part for _, _, part in ranked]
        parts = [part.parts[k] for part in windows]
        rows = [part.n for part in windows]  # equal numbers count as the same rows
        values = [part.value for part in parts]
        covers = POPULATION if day.recipe.estimators[k].unbiased else THIS_N
        jackknife = Jackknife(confidence_level=day.job.confidence)
        compared = differences(names, parts, values, rows, jackknife, covers)
        places = ranks(values)
        shares = _rank_shares(parts, rows, len(days), day.job.seed)
        return NightRanking(
            window=name,
            by=settings.by,
            level=day.job.confidence,
            days=tuple(sorted(days)),
            models=tuple(
                ComparedModel(
                    model=model,
                    rank=places[position],
                    value=values[position],
                    n=part.n,
                    interval=part.estimates[k].interval,
                    rank_probabilities=(() if shares is None else tuple(shares[position].tolist())),
                )
                for position, (_, model, part) in enumerate(ranked)
            ),
            differences=tuple(map(_compared_pair, compared)),
        )


def _shared_days(day: JudgedDay, models: Sequence[str], first: str, last: str) -> set[str]:
    """Days with readable rows of every model."""
    by_model = []
    for model in models:
        days = set()
        for entry in day.ledger.select(first, last, model):
            try:
                day.ledger.read(entry)
            except StoreError as error:
                day.notes.append(str(error))
                continue
            if entry.n:
                days.add(entry.day)
        by_model.append(days)
    return set.intersection(*by_model)


def _rank_shares(
    parts: Sequence[Parts], rows: Sequence[int], days: int, seed: int
) -> Floats | None:
    """P(rank) of each model (M, M).  A single day has no parts from which they follow."""
    if days <= 1 or not parts:
        return None
    with one_thread():
        chances = rank_probabilities(parts, rows, seed)
    return None if chances is None else chances[0]


def _compared_pair(difference: Difference) -> ComparedPair:
    """Difference of two models in results."""
    interval = difference.interval
    return ComparedPair(
        a=difference.better,
        b=difference.worse,
        difference=difference.value,
        paired=difference.paired,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        p_value=difference.p_value,
        adjusted_p_value=difference.p_adjusted,
    )
