"""One case: a config of a rotary class, its own rotation, and the service's."""

import contextlib
import dataclasses

import numpy
import peer
import random_configs
import service
import torch
from service import config_pb2

TOKENS = 5
# Relative errors of float32 inverse frequencies that the golden files' README allows.
FREQUENCY_ERROR, DYNAMIC_FREQUENCY_ERROR = 1.5e-6, 4e-6
BLENDED_FREQUENCY_ERROR = 2e-5


@dataclasses.dataclass
class Case:
    config_json: str
    sub_config: str  # its path in the composite that config_json is; empty: it is the class's own
    layer_type: str | None
    positions: numpy.ndarray  # [1, tokens] or [axes, 1, tokens]
    inputs: list  # q, k: [1, heads, tokens, head_dim]
    theirs: peer.Rotated


class NotRunnable(Exception):
    """The class itself cannot run the drawn config."""


def positions_of(rng, axes, length):
    """Five tokens: the first, the last of the model's length, and three anywhere to 100,000.

    The axes of a token are never equal.
    """
    ends = [0, length - 1, *(rng.randrange(100_000) for _ in range(TOKENS - 2))]
    tokens = [[end, *rng.sample([n for n in range(1, 6) if n != end], axes - 1)] for end in ends]
    if axes > 1:
        for token in tokens[2:]:
            token[:] = rng.sample(range(100_000), axes)
        for token in tokens:
            rng.shuffle(token)
    rows = numpy.array(tokens, dtype="int64").T
    return rows.reshape((axes, 1, TOKENS) if axes > 1 else (1, TOKENS))


def draw_cases(rng, rotary, config_cls, resize, place=None):
    """The drawn config, its module, and a case per layer type.

    With `place` the service gets the composite that holds the config there.
    NotRunnable: the class, or the composite, accepts no such config.
    """
    try:
        config = random_configs.draw(rng, rotary, config_cls, resize)
        if config is None:
            raise NotRunnable
        sent = config
        if place is not None:
            sent, config = place.put(config)
        module = peer.build(rotary, config)
        cases = []
        for label in peer.layer_types(module):
            head_dim = random_configs.head_dim_of(rotary, config, label)
            length = min(getattr(config, "max_position_embeddings", None) or 4096, 100_000)
            positions = positions_of(rng, peer.axes(rotary), length)
            numbers = numpy.random.default_rng(rng.randrange(2**32))
            inputs = [
                numbers.integers(-96, 97, (1, h, TOKENS, head_dim)).astype("float32") / 32
                for h in (2, 1)
            ]
            theirs = _theirs(rotary, module, config, label, positions, inputs)
            name = place.name if place else ""
            cases.append(Case(sent.to_json_string(), name, label, positions, inputs, theirs))
        return config, module, cases
    except Exception as error:  # whatever a class raises, it does not accept this config
        raise NotRunnable(repr(error)) from error


def _theirs(rotary, module, config, label, positions, inputs):
    return peer.rotate(
        rotary, module, config, label, torch.from_numpy(positions), *map(torch.from_numpy, inputs)
    )


def pair_channels(described, order):
    """The channels (a, b) of each pair: two arrays of rotary_dim/2 indices."""
    count, begin = len(described.inv_freq), described.config.rotary_offset
    i = numpy.arange(count)
    if order == config_pb2.PAIRING_HALF:
        return begin + i, begin + i + count
    return begin + 2 * i, begin + 2 * i + 1


def left_order(described):
    """The order in which the model's code leaves the channels."""
    return described.channel_order or described.pairing


def _tolerance(described, per_pair):
    tolerance = numpy.zeros((*per_pair.shape[:-1], described.config.head_dim))
    for channels in pair_channels(described, left_order(described)):
        tolerance[..., channels] = per_pair
    return tolerance


def exact_tolerance(described, theirs, positions, x):
    """The golden files' float32 formula, with the error of their inverse frequencies."""
    a, b = pair_channels(described, described.pairing)
    angle = positions.reshape(-1, TOKENS).max(axis=0)[:, None] * numpy.abs(described.inv_freq)
    frequency = frequency_error(described, theirs)
    size = described.attention_factor * (abs(x[..., a]) + abs(x[..., b]))
    return _tolerance(described, size * (angle * (frequency + 6e-8) + 3e-7))


def frequency_error(described, theirs):
    """Relative errors: those of the golden files' README, or larger ones that are there.

    Float32 cancels in the blended bands of llama3 and yarn: there 2e-5 are allowed.
    """
    usual = DYNAMIC_FREQUENCY_ERROR if described.depends_on_seq_len else FREQUENCY_ERROR
    ours = numpy.abs(described.inv_freq)
    if len(ours) != len(theirs.inv_freq):
        return usual
    error = numpy.abs(theirs.inv_freq.numpy() - ours) / numpy.maximum(ours, 1e-30)
    return numpy.maximum(usual, numpy.where(error <= BLENDED_FREQUENCY_ERROR, error, 0))


def hf_tolerance(described, theirs):
    """Two float32 units of the pair's larger channel."""
    a, b = pair_channels(described, left_order(described))
    larger = numpy.maximum(abs(theirs[..., a]), abs(theirs[..., b]))
    return _tolerance(described, 2 * numpy.spacing(larger).astype("float64"))


@contextlib.contextmanager
def rounded_cos_and_sin():
    """Torch's float32 cos and sin, correctly rounded: its vector library is off by a last bit, on
    some processors and not on others."""
    kept = torch.Tensor.cos, torch.Tensor.sin
    torch.Tensor.cos = lambda x: kept[0](x.double()).to(x.dtype)
    torch.Tensor.sin = lambda x: kept[1](x.double()).to(x.dtype)
    try:
        yield
    finally:
        torch.Tensor.cos, torch.Tensor.sin = kept


def excess(ours, theirs, tolerance):
    error = numpy.abs(ours.astype("float64") - theirs)
    return float(numpy.where(error == 0, 0, error / numpy.maximum(tolerance, 1e-300)).max())


def relative_error(a, b):
    return float(((a - b).abs() / b.abs().clamp(min=1e-30)).max())


def service_rows(positions):
    """Positions as the service takes them: two axes are h and w."""
    if positions.ndim == 3 and len(positions) == 2:
        return numpy.concatenate([numpy.zeros_like(positions[:1]), positions])
    return positions


def verdict(rotary, module, config, case, server):
    """("right" | "refused" | "different", reason)."""
    seq_len = int(case.positions.max()) + 1
    answers = []
    for precision in (config_pb2.PRECISION_EXACT, config_pb2.PRECISION_HF):
        spec = service.spec(case.config_json, case.sub_config, case.layer_type, precision)
        try:
            described = server.describe(spec, seq_len)
            order = described.channel_order
            rows = service_rows(case.positions)
            answers.append((described, server.rotate(spec, rows, *case.inputs, order)))
        except service.Refused as error:
            return "refused", str(error)
    described, ours = answers[0]
    for x, mine, his in zip(case.inputs, ours, (case.theirs.q.numpy(), case.theirs.k.numpy())):
        ratio = excess(mine, his, exact_tolerance(described, case.theirs, case.positions, x))
        if ratio > 1:
            return "different", f"{ratio:.3g} x the tolerance"
    return _hf_verdict(rotary, module, config, case, *answers[1])


def _hf_verdict(rotary, module, config, case, described, ours):
    """Precision hf, given the same float32 frequencies; those are compared first."""
    frequencies = torch.tensor(list(described.inv_freq), dtype=torch.float32).abs()
    theirs = case.theirs.inv_freq
    if not peer.keeps(rotary):
        return "right", ""  # there is nothing to set
    if len(frequencies) != len(theirs):
        return "right", ""  # the class keeps the frequencies of one axis
    if relative_error(frequencies, theirs) > DYNAMIC_FREQUENCY_ERROR:
        if (
            relative_error(frequencies.sort().values, theirs.sort().values)
            > BLENDED_FREQUENCY_ERROR
        ):
            return "different", "hf: inverse frequencies"
        return "right", ""  # the class keeps them in another order
    peer.set_frequencies(module, case.layer_type, frequencies)
    with rounded_cos_and_sin():
        again = _theirs(rotary, module, config, case.layer_type, case.positions, case.inputs)
    for mine, his in zip(ours, (again.q.numpy(), again.k.numpy())):
        ratio = excess(mine, his, hf_tolerance(described, his))
        if ratio > 1:
            return "different", f"hf: {ratio:.3g} x the tolerance"
    return "right", ""
