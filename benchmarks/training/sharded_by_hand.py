"""A training loop over a mesh, as one writes it for one network: GPT-2's size, plain jit, and NamedShardings."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, LAYERS, HEADS, VOCABULARY, POSITIONS = 768, 12, 12, 50257, 1024


class Network(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> Any:
        embed = nn.Embed(VOCABULARY, WIDTH, embedding_init=nn.initializers.normal(0.02))
        positions = self.param("positions", nn.initializers.normal(0.02), (POSITIONS, WIDTH))
        x = embed(tokens) + positions[: tokens.shape[1]]
        mask = nn.make_causal_mask(tokens[:1])
        for _ in range(LAYERS):
            x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return embed.attend(nn.LayerNorm()(x))


def compiled_step(fsdp: int, batch: int, length: int) -> Any:
    """The step (state, inputs, labels) -> (state, loss), compiled. `fsdp`: devices that share a state."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(-1, fsdp), ("data", "fsdp"))
    network, optimizer = Network(), optax.adam(0.001)

    def initial() -> Any:
        params = network.init(jax.random.key(0), jnp.zeros((1, length), jnp.int32))["params"]
        return params, optimizer.init(params)

    def layout(leaf: Any) -> NamedSharding:
        axes = [axis for axis, size in enumerate(leaf.shape) if size % fsdp == 0]
        if fsdp == 1 or not axes or leaf.size < 1024:
            return NamedSharding(mesh, PartitionSpec())
        axis = max(axes, key=lambda axis: leaf.shape[axis])
        return NamedSharding(mesh, PartitionSpec(*(None,) * axis, "fsdp"))

    whole, by_batch = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    shapes = jax.eval_shape(initial)
    layouts = jax.tree.map(layout, shapes)

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def gather(_layout: NamedSharding, leaf: jax.Array) -> Any:
        return jax.lax.with_sharding_constraint(leaf, whole)

    gather.defvjp(
        lambda layout, leaf: (gather(layout, leaf), None),
        lambda layout, _, gradient: (jax.lax.with_sharding_constraint(gradient, layout),),
    )

    def step(state: Any, inputs: jax.Array, labels: jax.Array) -> Any:
        params, optimizer_state = state

        def loss(params: Any) -> Any:
            logits: Any = network.apply({"params": jax.tree.map(gather, layouts[0], params)}, inputs)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        mean_loss, gradients = jax.value_and_grad(loss)(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), mean_loss

    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    jitted = jax.jit(step, donate_argnums=0, in_shardings=(layouts, by_batch, by_batch), out_shardings=(layouts, whole))
    return jitted.lower(shapes, tokens, tokens).compile()
