"""What several test files use: comparisons, and what an operation allocates."""

import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def quietly(function, *arguments, **options):
    """Call without warnings, which are tested elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


def equal(left, right):
    """Return True if two `Ranks` are the same in values, shapes and dtypes."""
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(left, right, strict=True))


class Largest(TorchDispatchMode):
    """Keep the size in bytes of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.bytes = max(self.bytes, result.numel() * result.element_size())
        return result


def error_bound(queries, items):
    """Bound, for each score in float32, how far it is from the exact one.

    A sum of D products in any order, each operation off by a factor of at most 1 + u (u = eps / 2, half a unit in the
    last place), is off by at most D u / (1 - D u) times the sum of the products' magnitudes (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.1); one operation more for a bias.
    """
    operations = (items.shape[1] + 1) * torch.finfo(torch.float32).eps / 2
    return operations / (1 - operations) * (queries.abs() @ items.abs().T)


def assert_within_rounding(queries, items, target, ranks):
    """Check that ranks lie between the counts at the target's score less, and plus, what rounding may have done."""
    exact, bound = queries.double() @ items.double().T, error_bound(queries.double(), items.double())
    own = target[:, None]
    # Both scores of a comparison may be off.
    margin, reach = exact - exact.gather(1, own), bound + bound.gather(1, own)
    others = torch.arange(len(items)) != own
    least, most = ((margin > reach) & others).sum(1), ((margin >= -reach) & others).sum(1)
    assert (least <= ranks.higher).all()
    assert (ranks.higher + ranks.tied <= most).all()
    assert (most - least).float().mean() < 10  # a bound that tells something
