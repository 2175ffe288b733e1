"""A decoder-only transformer in plain JAX: parameters, logits, loss, AdamW. No other library.

All layers have the same shapes, so their parameters are stacked along a first axis and
`jax.lax.scan` runs over it: XLA compiles one layer, however many there are. Shapes are written B
(sequences), T (tokens), D (width), H (heads), K (heads of keys and values), C (width of a head), V
(vocabulary).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tree = Any
"""Nested dictionaries of arrays."""
PADDED_TO = 128
"""The embedding table has rows up to a multiple of this: matrix units read aligned rows. Their
logits do not count.
"""


class Shape(NamedTuple):
    """The sizes of a decoder, and its kind: GPT-2 has ``norm`` layer, ``positions`` learned,
    biases, a tied output layer; Llama has rms, rotary, a gated MLP and neither biases nor a tied
    output layer."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp: int
    gated: bool
    vocab: int
    tied: bool
    norm: str
    positions: str
    max_positions: int
    rope_theta: float
    bias: bool

    @property
    def rows(self) -> int:
        """Rows of the embedding table in memory."""
        return -(-self.vocab // PADDED_TO) * PADDED_TO


def initial(shape: Shape, key: jax.Array) -> Tree:
    """Return parameters in fp32: weights with a standard deviation of 0.02, those that add to the
    residual stream divided by sqrt(2 L) as in GPT-2; biases 0."""
    keys = iter(jax.random.split(key, 16))
    queries, values = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    small = 0.02 / math.sqrt(2 * shape.layers)

    def matrix(*sizes: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), sizes, jnp.float32)

    def norm(*sizes: int) -> Tree:
        return {
            "scale": jnp.ones(sizes),
            **({"bias": jnp.zeros(sizes)} if shape.norm == "layer" else {}),
        }

    def linear(inputs: int, outputs: int, scale: float = 0.02) -> Tree:
        weights = {"weight": matrix(shape.layers, inputs, outputs, scale=scale)}
        return weights | ({"bias": jnp.zeros((shape.layers, outputs))} if shape.bias else {})

    layer = {
        "attention_norm": norm(shape.layers, shape.width),
        "query": linear(shape.width, queries),
        "key": linear(shape.width, values),
        "value": linear(shape.width, values),
        "attention_out": linear(queries, shape.width, small),
        "mlp_norm": norm(shape.layers, shape.width),
        "mlp_in": linear(shape.width, shape.mlp),
        "mlp_out": linear(shape.mlp, shape.width, small),
        **({"mlp_gate": linear(shape.width, shape.mlp)} if shape.gated else {}),
    }
    params = {
        "embedding": matrix(shape.rows, shape.width),
        "layers": layer,
        "norm": norm(shape.width),
    }
    if shape.positions == "learned":
        params["positions"] = matrix(shape.max_positions, shape.width)
    if not shape.tied:
        params["head"] = matrix(shape.rows, shape.width)
    return params


def parameters(shape: Shape) -> int:
    """Return how many parameters the model has, without the rows added to its tables."""
    params = jax.eval_shape(functools.partial(initial, shape), jax.random.key(0))
    tables = 1 if shape.tied else 2
    return (
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
        - tables * (shape.rows - shape.vocab) * shape.width
    )


def normalized(shape: Shape, x: jax.Array, norm: Tree) -> jax.Array:
    """Return LayerNorm or RMSNorm of x, computed in fp32."""
    wide = x.astype(jnp.float32)
    if shape.norm == "layer":
        wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * norm["scale"]
    return (wide + norm["bias"] if "bias" in norm else wide).astype(x.dtype)


def linear(x: jax.Array, layer: Tree) -> jax.Array:
    """Return x multiplied by a matrix, in the type of x; the bias is added if there is one."""
    y = x @ layer["weight"].astype(x.dtype)
    return y + layer["bias"].astype(x.dtype) if "bias" in layer else y


def rotated(shape: Shape, x: jax.Array) -> jax.Array:
    """Return queries or keys, B T H C, turned by angles that grow with their position (RoPE, halves
    as in Llama).
    """
    half = shape.head_width // 2
    angles = jnp.arange(x.shape[1])[:, None] * shape.rope_theta ** (
        -jnp.arange(half) / half
    )  # T C/2
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(
        x.dtype
    )


def block(shape: Shape, attention: str | None, x: jax.Array, layer: Tree) -> jax.Array:
    """Return the output of one layer, B T D."""
    b, t, _ = x.shape
    h = normalized(shape, x, layer["attention_norm"])
    q, k, v = (
        linear(h, layer[name]).reshape(b, t, -1, shape.head_width)
        for name in ("query", "key", "value")
    )
    if shape.positions == "rotary":
        q, k = rotated(shape, q), rotated(shape, k)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
    x = x + linear(mixed.reshape(b, t, -1), layer["attention_out"])
    h = normalized(shape, x, layer["mlp_norm"])
    inner = linear(h, layer["mlp_in"])
    inner = jax.nn.silu(linear(h, layer["mlp_gate"])) * inner if shape.gated else jax.nn.gelu(inner)
    return x + linear(inner, layer["mlp_out"])


def logits_of(
    shape: Shape,
    compute: Any,
    attention: str | None,
    recompute: bool,
    params: Tree,
    inputs: jax.Array,
) -> jax.Array:
    """Return the logits of the token that follows each of ``inputs``, B T V in fp32.

    ``compute``: type of matrix products; norms and softmax are fp32. ``attention``: implementation, as
    `jax.nn.dot_product_attention` takes it. ``recompute``: keep only the input of each layer for the backward pass.
    """
    x = params["embedding"][inputs]
    if shape.positions == "learned":
        x = x + params["positions"][: inputs.shape[1]]
    layer = functools.partial(block, shape, attention)
    layer = jax.checkpoint(layer, prevent_cse=False) if recompute else layer
    x, _ = jax.lax.scan(
        lambda x, weights: (layer(x, weights), None), x.astype(compute), params["layers"]
    )
    x = normalized(shape, x, params["norm"])
    table = params["embedding" if shape.tied else "head"].astype(compute)
    return jnp.einsum("btd,vd->btv", x, table, preferred_element_type=jnp.float32)[
        ..., : shape.vocab
    ]


def mean_loss(
    shape: Shape,
    compute: Any,
    attention: str | None,
    recompute: bool,
    params: Tree,
    tokens: jax.Array,
) -> jax.Array:
    """Return the mean cross entropy of predicting the next token, for ``tokens`` of B (T + 1), in
    fp32. The other arguments are those of `logits_of`."""
    logits = logits_of(shape, compute, attention, recompute, params, tokens[:, :-1])
    of_target = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - of_target).mean()


class Adam(NamedTuple):
    """Parameters, the moving means of their gradients and of the squares, and the number of
    updates.
    """

    params: Tree
    mean: Tree
    square: Tree
    updates: jax.Array


def fresh(params: Tree) -> Adam:
    """Return the state before the first update."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Adam(params, zeros, zeros, jnp.zeros((), jnp.int32))


def updated(state: Adam, grads: Tree, rate: float, decay: float, clip: float) -> Adam:
    """Return the state after an update with AdamW (betas 0.9 and 0.95, epsilon 1e-8), for gradients
    scaled to a norm of at most ``clip`` (0: as they are). Weight decay applies to matrices and
    tables."""
    if clip:
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, clip / (norm + 1e-6)), grads)
    updates = state.updates + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, grads)
    square = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, state.square, grads)

    def moved(path: Any, p: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        step = (m / (1 - 0.9**updates)) / (jnp.sqrt(s / (1 - 0.95**updates)) + 1e-8)
        is_matrix = jax.tree_util.keystr(path[-1:]) == "['weight']" or len(path) == 1
        return p - rate * (step + decay * p if is_matrix else step)

    return Adam(
        jax.tree_util.tree_map_with_path(moved, state.params, mean, square), mean, square, updates
    )
