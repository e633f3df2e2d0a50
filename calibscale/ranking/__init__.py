"""Several models ranked by calibration, and how sure the ranking is."""

from calibscale.ranking.models import distinct_names, rank
from calibscale.ranking.results import Agreement, Difference, RankedModel, Ranking

__all__ = ["Agreement", "Difference", "RankedModel", "Ranking", "distinct_names", "rank"]
