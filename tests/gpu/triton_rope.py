"""A rotation in Triton: one program a token, all heads of q and k at once, in place."""

import triton
import triton.language as tl


@triton.jit
def rotate_heads(pointer, cos, sin, heads, pairs: tl.constexpr, heads_padded: tl.constexpr):
    head = tl.arange(0, heads_padded)[:, None]
    pair = tl.arange(0, pairs)[None, :]
    offsets = head * 2 * pairs + pair
    inside = head < heads
    a = tl.load(pointer + offsets, mask=inside).to(tl.float32)
    b = tl.load(pointer + offsets + pairs, mask=inside).to(tl.float32)
    tl.store(pointer + offsets, (a * cos - b * sin).to(pointer.dtype.element_ty), mask=inside)
    tl.store(
        pointer + offsets + pairs, (b * cos + a * sin).to(pointer.dtype.element_ty), mask=inside
    )


@triton.jit
def rotate_token(q, k, cos_table, sin_table, q_heads, k_heads, pairs: tl.constexpr,
                 q_padded: tl.constexpr, k_padded: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, pairs)[None, :]
    cos = tl.load(cos_table + token * pairs + columns)
    sin = tl.load(sin_table + token * pairs + columns)
    rotate_heads(q + token * q_heads * 2 * pairs, cos, sin, q_heads, pairs, q_padded)
    rotate_heads(k + token * k_heads * 2 * pairs, cos, sin, k_heads, pairs, k_padded)


def rotate(q, k, cos, sin):
    """q and k: [tokens][heads][2 * pairs], dense; cos and sin: [tokens][pairs], float32."""
    tokens, q_heads, head_dim = q.shape
    k_heads = k.shape[1]
    rotate_token[(tokens,)](q, k, cos, sin, q_heads, k_heads, head_dim // 2,
                            triton.next_power_of_2(q_heads), triton.next_power_of_2(k_heads))
    return q, k
