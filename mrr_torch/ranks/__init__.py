"""From scores, relevance, groups or ids to `Ranks`. The only place that says what a rank is."""

from mrr_torch.ranks.base import Ranks
from mrr_torch.ranks.dense import rank_relevant, rank_target
from mrr_torch.ranks.grouped import rank_grouped
from mrr_torch.ranks.retrieved import rank_retrieved

__all__ = ["Ranks", "rank_grouped", "rank_relevant", "rank_retrieved", "rank_target"]
