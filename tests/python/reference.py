"""A rotation in float64 with numpy, after the formula: what the package is compared with."""
import numpy as np

LLAMA = {"model_type": "llama", "head_dim": 64, "rope_theta": 10000.0}


def rotated(x, positions, theta=10000.0, interleaved=False):
    """x: [S, H, D]; pair i of D channels turns by position * theta^(-2i/D)."""
    x = np.asarray(x, np.float64)
    half = x.shape[-1] // 2
    angles = np.outer(positions, theta ** (-np.arange(half) / half))[:, None, :]
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = np.empty_like(x)
    first, second = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        turned[..., 0::2], turned[..., 1::2] = first, second
    else:
        turned[..., :half], turned[..., half:] = first, second
    return turned


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
