"""The Triton kernels compile for GPUs that are not there: without spills, within shared memory, on tensor cores."""

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels are not compiled", allow_module_level=True)

from triton_compile import SHARED, TARGETS, compile_for, cost, record

from mrr_torch.kernels.triton import accumulate, catalogue, scores
from mrr_torch.kernels.triton.tiles import tiles

HALF = (torch.float16, torch.bfloat16)
DTYPES = [*HALF, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
MOST = 4  # tiles for one type and length

pytestmark = pytest.mark.parametrize("target", TARGETS)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Keep compiled kernels where they are not found again."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def costs(target, launches, folder):
    """Compile all launches and check what must hold for each."""
    found = [cost(target, compile_for(target, launch), folder) for launch in launches]
    for each in found:
        assert each.spilled == 0
        assert each.shared <= SHARED[target]
    return found


def check_catalogue(monkeypatch, folder, target, dtype, columns, tile, *, biased=False, items=1_000_001):
    """Compile the kernels of 4,096 queries; by default of a catalogue that the tiles do not divide."""
    launches = record(monkeypatch, catalogue, "_count_tiles", "_score_listed")
    embeddings = meta(4096, columns, dtype=dtype), meta(items, columns, dtype=dtype)
    inputs = catalogue._Inputs(*embeddings, meta(items, dtype=dtype) if biased else None, tile)
    inputs.count(meta(4096))
    inputs.score(meta(4096, 3, dtype=torch.int64))
    assert len(launches) == (2 if items % tile.items == 0 else 3)
    found = costs(target, launches, folder)
    # A target's score has to come from the same instructions as its column's.
    assert len({each.products for each in found}) == 1
    (product,) = found[0].products
    if target == "gfx942":
        assert "mfma" in product
    elif dtype in HALF:
        assert "mma" in product
    else:
        assert product == "fma.rn.f32"  # not in TF32, which drops 13 bits


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=[pytest.mark.compile, pytest.mark.slow])], ids=str
)
def test_the_catalogue_kernels_compile(dtype, target, monkeypatch, tmp_path):
    tile = tiles(dtype, 64, amd=target == "gfx942")[0]
    check_catalogue(monkeypatch, tmp_path, target, dtype, 64, tile)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("at", range(MOST))
@pytest.mark.parametrize(
    ("dtype", "columns"),
    [(torch.float16, 64), (torch.float32, 64), *((torch.bfloat16, columns) for columns in (16, 50, 64, 128, 256))],
    ids=str,
)
def test_every_tile_compiles(dtype, columns, at, target, monkeypatch, tmp_path):
    choice = tiles(dtype, columns, amd=target == "gfx942")
    assert len(choice) <= MOST
    if at >= len(choice):
        pytest.skip("there are fewer tiles")
    check_catalogue(monkeypatch, tmp_path, target, dtype, columns, choice[at], items=2**20)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "columns"), [(torch.bfloat16, 64), (torch.float32, 50)], ids=str)
def test_a_bias_compiles(dtype, columns, target, monkeypatch, tmp_path):
    for tile in tiles(dtype, columns, amd=target == "gfx942"):
        check_catalogue(monkeypatch, tmp_path, target, dtype, columns, tile, biased=True)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_long_embeddings_compile(dtype, target, monkeypatch, tmp_path):
    tile = tiles(dtype, 1024, amd=target == "gfx942")[0]
    check_catalogue(monkeypatch, tmp_path, target, dtype, 1024, tile, items=2**20)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize(("queries", "columns"), [(torch.float32, 50), (torch.bfloat16, 128)], ids=str)
def test_items_of_any_strides_and_another_type_compile(queries, columns, target, monkeypatch, tmp_path):
    launches = record(monkeypatch, catalogue, "_count_tiles", "_score_listed")
    items = meta(columns, 100_000, dtype=torch.bfloat16).T
    inputs = catalogue._Inputs(meta(300, columns, dtype=queries), items, None, None)
    inputs.count(meta(300))
    inputs.score(meta(300, 1, dtype=torch.int64))
    costs(target, launches, tmp_path)


def check_scores(monkeypatch, folder, target, values, masked):
    launches = record(monkeypatch, scores, "_count")
    scores.count(values, values[:, :1], meta(*values.shape, dtype=torch.bool) if masked else None)
    costs(target, launches, folder)


@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_of_scores_compiles(masked, target, monkeypatch, tmp_path):
    check_scores(monkeypatch, tmp_path, target, meta(512, 20_000), masked)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_of_scores_compiles_for_any_type_and_shape(dtype, target, monkeypatch, tmp_path):
    shapes = (512, 20_000), (4096, 100), (3, 2_000_000)
    for values in [*(meta(*shape, dtype=dtype) for shape in shapes), meta(1000, 500, dtype=dtype).T]:
        check_scores(monkeypatch, tmp_path, target, values, masked=True)


def test_the_histogram_kernel_compiles(target, monkeypatch, tmp_path):
    launches = record(monkeypatch, accumulate, "_accumulate")
    accumulate.accumulate(meta(1026, dtype=torch.float64), meta(4096, dtype=torch.int64))
    costs(target, launches, tmp_path)
