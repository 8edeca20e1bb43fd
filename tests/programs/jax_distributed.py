"""JAX over several processes. JAX itself reads JAX_COORDINATOR_ADDRESS; the rest is the program's to give."""

import os

import jax

jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jax.numpy.ones(jax.local_device_count()))
print(f"process {jax.process_index()} of {jax.process_count()}: the sum is {total[0]:.0f}", flush=True)
