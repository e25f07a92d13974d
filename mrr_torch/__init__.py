"""Mean reciprocal rank and its relatives for PyTorch: exact, on the device, in constant memory."""

from mrr_torch.catalogue import rank_catalogue
from mrr_torch.collection import ranking_metrics
from mrr_torch.functional import mean_reciprocal_rank, reciprocal_rank
from mrr_torch.metrics import HitRate, MeanReciprocalRank, NormalizedDCG
from mrr_torch.rank_distribution import RankDistribution
from mrr_torch.rank_metric import RankMetric
from mrr_torch.ranks import Outcome, Ranks
from mrr_torch.ranks.grouped import rank_grouped
from mrr_torch.ranks.retrieved import rank_retrieved
from mrr_torch.ranks.run import rank_run
from mrr_torch.ranks.scores import rank_relevant, rank_target
from mrr_torch.sampling.negatives import sample_negatives

__all__ = [
    "HitRate",
    "MeanReciprocalRank",
    "NormalizedDCG",
    "Outcome",
    "RankDistribution",
    "RankMetric",
    "Ranks",
    "mean_reciprocal_rank",
    "rank_catalogue",
    "rank_grouped",
    "rank_relevant",
    "rank_retrieved",
    "rank_run",
    "rank_target",
    "ranking_metrics",
    "reciprocal_rank",
    "sample_negatives",
]
__version__ = "0.1.0"
