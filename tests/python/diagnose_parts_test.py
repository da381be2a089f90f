"""Parts of diagnose: positions that fit angles, their rules, orders of channels, estimates."""
import numpy as np
import pytest

from ropeserve import _settings
from ropeserve._positions import common, contains, integer_in, rules_of, short_form, solve
from ropeserve._trial import Numbers, Sample, orders_of, plain_order


def solved_tokens(start, positions):
    """Tokens that should be at `start` and the positions after it, and that are at `positions`."""
    count = len(positions)
    return [range(count), range(start, start + count), range(start + count - 1, start - 1, -1),
            [[(position - 0.01, position + 0.01)] for position in positions]]


RULES = [
    (10, [10, 11, 12], ""), (10, [11, 12, 13], "positions + 1"), (10, [6, 7, 8], "positions - 4"),
    (10, [0, 1, 2], "positions counted from 0"), (10, [1, 2, 3], "positions counted from 1"),
    (10, [12, 11, 10], "positions reversed"), (10, [30, 33, 36], "positions * 3"),
    (10, [2.5, 2.75, 3], "positions / 4"), (10, [3, 3.3, 3.6], "positions * 0.3"),
    (10, [5, 5, 6], "positions / 2, rounded down"), (6, [6, 7, 0, 1], "positions modulo 8"),
    (6, [6, 7, 7, 7], "positions not above 7"), (6, [8, 8, 8, 9], "positions not below 8"),
    (10, [-10, -11, -12], "inverse rotation"), (10, [5, 5, 5], "every token at position 5"),
    (50, [1, 1, 0, 1, 2],
     "left padding: the first 2 tokens at position 1, the others count from 0"),
    (50, [0, 0, 0, 1, 2],
     "left padding: the first 2 tokens at position 0, the others count from 0"),
    (50, [50, 51, 52, 0, 0],
     "right padding: the last 2 tokens at position 0, the others count from 50"),
    (960, [0, 1, 2], "positions modulo 4 (or another divisor of 960 above 2)"),
    (10, [3, 1, 4, 1, 5], "positions 3, 1, 4, 1, 5"),
]


@pytest.mark.parametrize("start, positions, words", RULES)
def test_rules_of_positions(start, positions, words):
    found = {rule.words: rule.positions for rule in rules_of(*solved_tokens(start, positions))}
    np.testing.assert_allclose(found[words], positions, atol=0.01)
    alone = ("every", "positions 3", "positions modulo 8")
    assert not words.startswith(alone) or len(found) == 1


def test_a_token_without_a_position_has_no_rule():
    tokens = solved_tokens(10, [3, 1, 4])
    tokens[3][1].clear()
    assert rules_of(*tokens) == []


@pytest.mark.parametrize("positions, text", [
    ([0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7], "0..7, 7, 7, 7"), ([12] * 5, "12 (5 times)"),
    ([0, 1, 2, 9, 8, 7, 6], "0..2, 9..6"), ([4, 5], "4, 5"), ([0.5], "0.5"),
    (np.arange(40) * 3.0, "0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, ...")])
def test_short_form(positions, text):
    assert short_form(positions) == text


def angles_at(position, pairs=16, slack=1e-6):
    inv_freq = 10000.0 ** (-np.arange(pairs) / pairs)
    angles = np.angle(np.exp(1j * position * inv_freq))
    return angles[None], np.full((1, pairs), slack), inv_freq


@pytest.mark.parametrize("position", [0, 1, 99999, 654321, -12345, 17.25])
@pytest.mark.parametrize("slack", [1e-6, 1e-2])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_only_position_is_found(position, slack, sign):
    angles, slacks, inv_freq = angles_at(position, slack=slack)
    solved, = solve(sign * angles, slacks, sign * inv_freq, 1e6)
    assert len(solved) == 1 and contains(solved, position)
    assert solved[0][1] - solved[0][0] < 0.7


def test_angles_of_no_position_and_pairs_that_say_nothing():
    angles, slacks, inv_freq = angles_at(1000)
    angles[0, 3] += 0.5
    assert solve(angles, slacks, inv_freq, 1e6) == [[]]
    slacks[0, 3] = 4
    assert contains(solve(angles, slacks, inv_freq, 1e6)[0], 1000)
    slacks[:] = 4
    assert contains(solve(angles, slacks, inv_freq, 1e6)[0], -999999)
    angles, slacks, inv_freq = angles_at(1000)
    inv_freq[3], angles[0, 3] = 0, 0
    assert contains(solve(angles, slacks, inv_freq, 1e6)[0], 1000)
    angles[0, 3] = 0.1
    assert solve(angles, slacks, inv_freq, 1e6) == [[]]


def test_intervals():
    one_pair, = solve(np.zeros((1, 1)), np.full((1, 1), 1e-6), np.ones(1), 100.0)
    assert len(one_pair) == 31 and integer_in(one_pair) == 0 and not contains(one_pair, 6)
    shared = common([(0, 2), (4, 6)], [(1, 5), (5.5, 9)])
    assert shared == [(1, 2), (4, 5), (5.5, 6)]
    assert (integer_in([(1.1, 1.9), (2.2, 4)]), integer_in([(1.1, 1.9)])) == (3, None)


def test_orders_of_channels():
    assert plain_order("half", 2, 2, 8).before[:, 1].tolist() == [3, 5]
    assert plain_order("interleaved", 2, 2, 8).before[:, 1].tolist() == [4, 5]
    assert plain_order("half", 2, 2, 8).still.tolist() == [[0, 1, 6, 7]] * 2
    # As DeepSeek's code does: pairs are interleaved before the rotation and halves after it.
    found = {order.changes: order for order in orders_of("interleaved", 0, 2, 4)}
    order = found["output channels de-interleaved",]
    assert (order.before.tolist(), order.after.tolist()) == ([[0, 2], [1, 3]], [[0, 1], [2, 3]])
    for pairs in (4, 8):
        orders = orders_of("half", 0, pairs, 16)
        keys = {repr([order.before, order.after, order.still]) for order in orders}
        assert len(keys) == len(orders) and max(len(order.changes) for order in orders) == 2
        assert orders[0].changes == ()


def turned(positions, theta, factor, pairs, head_dim):
    """One row of (1, 0) pairs rotated by theta^(-i/pairs) / factor; other channels are still."""
    before = np.full((len(positions), 1, head_dim), 0.5)
    after = before.copy()
    angles = np.outer(positions, theta ** (-np.arange(pairs) / pairs)) / factor
    before[:, 0, :2 * pairs] = [1] * pairs + [0] * pairs
    after[:, 0, :2 * pairs] = np.hstack([np.cos(angles), np.sin(angles)])
    positions, none = np.asarray(positions), np.zeros(1, np.int64)
    return Sample(before, after, "fp32", positions, np.arange(len(positions)), none, positions, 1)


def test_estimates():
    channels = plain_order("half", 0, 16, 32).before
    sample = turned([1000, 1001, 1002, 1009, 1060], 73000, 6, 16, 32)
    found = _settings.estimate(sample, channels, channels)
    assert found.theta == pytest.approx(73000, rel=1e-9)
    assert found.factor == pytest.approx(6, rel=1e-9)
    for positions in ([0, 5, 10], [3]):
        sample = turned(positions, 10000, 1, 16, 32)
        assert _settings.estimate(sample, channels, channels) is None
    sample = turned([7, 8], 10000, 1, 6, 32)
    assert [_settings.estimated_rotary_dim(sample, window) for window in (0, 4)] == [12, 8]
    assert _settings.estimated_rotary_dim(turned([0], 10000, 1, 6, 32), 0) == 0


def settings(sample, pairs=16, **config):
    config = {"rope_type": "default", "rope_theta": 10000, "head_dim": 32, **config}
    believed = Numbers((), config, np.ones(pairs), 1.0, 0)
    return dict(_settings.Settings(believed, sample, "half"))


def test_settings():
    assert {"theta 73000", "linear scaling, factor 6"} <= settings(
        turned([0, 1, 2, 3, 20], 73000, 6, 6, 32), 6).keys()
    sample = turned([0, 1], 10000, 1, 6, 32)
    assert "rotary_dim 12" in settings(sample)
    words = settings(sample, rope_type="linear", factor=4)
    assert {"no scaling", "linear scaling, factor 8"} <= words.keys()
    assert not {"theta 10000", "linear scaling, factor 4", "rotary_dim 32"} & words.keys()
    words = settings(sample, rope_type="yarn", factor=4, original_max_position_embeddings=4096,
                     truncate=False, rotary_dim=16)
    assert {"yarn truncate true", "yarn ramp by turns", "llama3 scaling, factor 4", "factor 2",
            "original length 8192", "beta_fast 16"} <= words.keys()
    assert words["no scaling"] == {"rope_type": "default", "rope_theta": 10000, "head_dim": 32,
                                   "rotary_dim": 16}
