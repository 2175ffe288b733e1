"""A GPT-2 in plain JAX: parameters, logits, loss, AdamW. No other library.

All layers have the same shapes, so their parameters are stacked along a first axis and
`jax.lax.scan` runs over it: XLA compiles one layer, however many there are. Shapes are written B
(sequences), T (tokens), D (width), V (vocabulary).
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
    """The sizes of a decoder of GPT-2's kind: LayerNorm, learned positions, GELU, biases, and the
    embedding table as output layer.
    """

    layers: int
    width: int
    heads: int
    mlp: int
    vocab: int
    max_positions: int

    @property
    def rows(self) -> int:
        """Rows of the embedding table in memory."""
        return -(-self.vocab // PADDED_TO) * PADDED_TO


def initial(shape: Shape, key: jax.Array) -> Tree:
    """Return parameters in fp32: weights with a standard deviation of 0.02, those that add to the
    residual stream divided by sqrt(2 L) as in GPT-2; biases 0."""
    keys = iter(jax.random.split(key, 16))
    small = 0.02 / math.sqrt(2 * shape.layers)

    def matrix(*sizes: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), sizes, jnp.float32)

    def norm(*sizes: int) -> Tree:
        return {"scale": jnp.ones(sizes), "bias": jnp.zeros(sizes)}

    def linear(inputs: int, outputs: int, scale: float = 0.02) -> Tree:
        weight = matrix(shape.layers, inputs, outputs, scale=scale)
        return {"weight": weight, "bias": jnp.zeros((shape.layers, outputs))}

    layer = {
        "attention_norm": norm(shape.layers, shape.width),
        "qkv": linear(shape.width, 3 * shape.width),
        "attention_out": linear(shape.width, shape.width, small),
        "mlp_norm": norm(shape.layers, shape.width),
        "mlp_in": linear(shape.width, shape.mlp),
        "mlp_out": linear(shape.mlp, shape.width, small),
    }
    return {
        "embedding": matrix(shape.rows, shape.width),
        "positions": matrix(shape.max_positions, shape.width),
        "layers": layer,
        "norm": norm(shape.width),
    }


def parameters(shape: Shape) -> int:
    """Return how many parameters the model has, without the rows added to its table."""
    params = jax.eval_shape(functools.partial(initial, shape), jax.random.key(0))
    held = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    return held - (shape.rows - shape.vocab) * shape.width


def normalize(x: jax.Array, norm: Tree) -> jax.Array:
    """Return LayerNorm of x, computed in fp32."""
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    return (wide * norm["scale"] + norm["bias"]).astype(x.dtype)


def linear(x: jax.Array, layer: Tree) -> jax.Array:
    """Return x multiplied by a matrix, and its bias added, in the type of x."""
    return x @ layer["weight"].astype(x.dtype) + layer["bias"].astype(x.dtype)


def block(shape: Shape, x: jax.Array, layer: Tree) -> jax.Array:
    """Return the output of one layer, B T D."""
    b, t, d = x.shape
    h = linear(normalize(x, layer["attention_norm"]), layer["qkv"])
    q, k, v = jnp.split(h.reshape(b, t, 3 * shape.heads, -1), 3, axis=2)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + linear(mixed.reshape(b, t, d), layer["attention_out"])
    inner = jax.nn.gelu(linear(normalize(x, layer["mlp_norm"]), layer["mlp_in"]))
    return x + linear(inner, layer["mlp_out"])


def logits_of(shape: Shape, compute: Any, params: Tree, inputs: jax.Array) -> jax.Array:
    """Return the logits of the token that follows each of ``inputs``, B T V in fp32. ``compute``:
    type of matrix products; norms and softmax are fp32.
    """
    x = params["embedding"][inputs] + params["positions"][: inputs.shape[1]]
    x, _ = jax.lax.scan(
        lambda x, weights: (block(shape, x, weights), None), x.astype(compute), params["layers"]
    )
    x = normalize(x, params["norm"])
    table = params["embedding"].astype(compute)
    logits = jnp.einsum("btd,vd->btv", x, table, preferred_element_type=jnp.float32)
    return logits[..., : shape.vocab]


def mean_loss(shape: Shape, compute: Any, params: Tree, tokens: jax.Array) -> jax.Array:
    """Return the mean cross entropy of predicting the next token, for ``tokens`` of B (T + 1), in
    fp32.

    The other arguments are the same as for `logits_of`.
    """
    logits = logits_of(shape, compute, params, tokens[:, :-1])
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


def update(state: Adam, grads: Tree, rate: float, decay: float, clip: float) -> Adam:
    """Return the state after an update with AdamW (betas 0.9 and 0.95, epsilon 1e-8), for gradients
    scaled to a norm of at most ``clip`` (0: as they are). Weight decay applies to matrices and
    tables."""
    if clip:
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, clip / (norm + 1e-6)), grads)
    updates = state.updates + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, grads)
    square = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, state.square, grads)

    def move(path: Any, p: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        step = (m / (1 - 0.9**updates)) / (jnp.sqrt(s / (1 - 0.95**updates)) + 1e-8)
        is_matrix = jax.tree_util.keystr(path[-1:]) == "['weight']" or len(path) == 1
        return p - rate * (step + decay * p if is_matrix else step)

    return Adam(
        jax.tree_util.tree_map_with_path(move, state.params, mean, square), mean, square, updates
    )
