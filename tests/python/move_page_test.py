"""The blocks of client/python/MOVE.md: what they define does what the page says of it."""
import importlib.util
import pathlib
import re
import sys
import types

import numpy as np
import pytest
from move_test import E4M3, FROM, HEADS, LLAMA, ROWS, TABLE, TO, TOKENS, WIDTH, check, fresh, moved

PAGE = pathlib.Path(__file__).resolve().parents[2] / "client/python/MOVE.md"
BLOCKS = re.findall(r"^```python ?(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
OPS = "lmcache.v1.platform.devices.cpu.device_ops"


@pytest.fixture(scope="module")
def page():
    """The names that the page's blocks define, but those that need a missing package."""
    if importlib.util.find_spec("lmcache") is None:
        parts = OPS.split(".")
        for i in range(len(parts)):
            name = ".".join(parts[:i + 1])
            sys.modules[name] = types.ModuleType(name)
        sys.modules[OPS].CpuDeviceOps = type("CpuDeviceOps", (), {})
    module = sys.modules["page"] = types.ModuleType("page")
    for needs, code in BLOCKS:
        if needs == "torch" and importlib.util.find_spec(needs) is None:
            continue
        exec(compile(code, str(PAGE), "exec"), vars(module))
    yield module
    sys.modules.pop("page")
    if getattr(sys.modules.get("lmcache"), "__file__", None) is None:
        for name in [each for each in sys.modules if each.split(".")[0] == "lmcache"]:
            sys.modules.pop(name)


def test_lines_are_counted():
    text = PAGE.read_text()
    counts = {needs: sum(1 for line in code.splitlines() if line.strip())
              for needs, code in BLOCKS if needs}
    assert counts == {"lmcache": 4, "sglang": 11, "ucm": 4, "torch": 7, "transformers": 3}
    for needs, code in BLOCKS:
        if needs:
            stated = re.findall(r"(\d+) lines", text[:text.index(code)])[-1]
            assert int(stated) == counts[needs], needs


def test_lmcache(page):
    k = fresh(TOKENS, HEADS, WIDTH)
    for is_neox, pairing in ((True, "half"), (False, "interleaved")):
        got = k.copy()
        sys.modules[OPS].CpuDeviceOps.rotary_embedding_k_fused(
            None, FROM, TO, got, WIDTH, TABLE, is_neox)
        check(got, moved(k, FROM, TO, pairing=pairing))


def test_sglang(page):
    pool = types.SimpleNamespace(
        layer_num=3, k_buffer=[fresh(24, HEADS, WIDTH, seed=i) for i in range(3)],
        v_buffer=[fresh(24, HEADS, WIDTH, seed=9 + i) for i in range(3)])
    k, v = ([each.copy() for each in buffer] for buffer in (pool.k_buffer, pool.v_buffer))
    rotary = types.SimpleNamespace(cos_sin_cache=TABLE, is_neox_style=True, rotary_dim=WIDTH)
    old, new = np.arange(3, 3 + TOKENS), np.arange(23, 23 - TOKENS, -1)
    page.copy_kv_with_rope_correction(pool, rotary, old, new, FROM, TO, [False, True])
    for layer in (0, 2):
        check(pool.k_buffer[layer][new], moved(k[layer][old], FROM, TO))
        np.testing.assert_array_equal(pool.k_buffer[layer][:16], k[layer][:16])
        np.testing.assert_array_equal(pool.v_buffer[layer][new], v[layer][old])
    assert not pool.k_buffer[1][new].any() and not pool.v_buffer[1][new].any()


def test_ucm(page):
    cache = fresh(6, 4, HEADS, WIDTH)
    before = cache.copy()
    ids, by = np.array([4, 1]), np.array([7, 30])
    assert page.block_wise_rope_forward(cache, ids, by, TABLE[None]) is cache
    for block, by in ((4, 7), (1, 30)):
        check(cache[block], moved(before[block], 0, by))


def test_kvpress(page):
    torch = pytest.importorskip("torch")
    half = WIDTH // 2
    module = types.SimpleNamespace(
        rotary_emb=types.SimpleNamespace(inv_freq=torch.tensor(1e4 ** (-np.arange(half) / half))))
    keys = torch.from_numpy(fresh(2, HEADS, 40, WIDTH, dtype=np.float32))
    indices = torch.stack([torch.randperm(40)[:TOKENS].sort().values for _ in range(2 * HEADS)])
    got = page.rerotate_keys(module, indices.view(2, HEADS, TOKENS), keys)
    for b in range(2):
        for head in range(HEADS):
            old = indices.view(2, HEADS, TOKENS)[b, head].numpy()
            angles = np.outer(np.arange(ROWS), 1e4 ** (-np.arange(half) / half))
            table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
            want = moved(keys[b, head].numpy()[old][:, None], old, np.arange(TOKENS), table)[:, 0]
            np.testing.assert_allclose(got[b, head].numpy(), want, atol=1e-5)


def test_a_cache_of_layers(page, local):
    keys = [fresh(1, HEADS, TOKENS, WIDTH, dtype=np.float32, seed=i) for i in range(2)]
    want = [local.reposition(each, layout="BHSD", by=9, config=LLAMA) for each in keys]
    layers = [types.SimpleNamespace(keys=k) for k in keys]
    page.move_cache(types.SimpleNamespace(layers=layers), 9, LLAMA)
    np.testing.assert_array_equal(keys, want)


def test_ledger(page, local):
    pool = fresh(6, 4, HEADS, WIDTH, dtype=E4M3)
    once, ledger = pool.copy(), page.Ledger(pool, TABLE)
    for by in (50, -20, 3):
        ledger.move(2, by)
    local.move_(once, table=TABLE, pairing="half", pages=[2], by=33)
    np.testing.assert_array_equal(pool.view(np.uint8), once.view(np.uint8))
    ledger.move(2, -33)
    ledger.forget(2)
    assert not ledger.first and not ledger.sum
