"""Synchronous training with a loop of its own, as in TensorFlow's guide to multi-worker training."""

import tensorflow as tf

STEPS = 6

strategy = tf.distribute.MultiWorkerMirroredStrategy()
size = strategy.num_replicas_in_sync


def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    x = tf.random.stateless_uniform((64, 4), seed=(1, 2))
    data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True)))
    return data.shard(context.num_input_pipelines, context.input_pipeline_id).repeat().batch(8)


with strategy.scope():
    weights = tf.Variable(tf.zeros((4, 1)))


@tf.function
def step(x, y):
    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - y) ** 2) / size
        gradient = tape.gradient(loss, weights)
        gradient = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
        weights.assign_sub(0.1 * gradient)
        return loss

    losses = strategy.run(replica, args=(x, y))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


data = iter(strategy.distribute_datasets_from_function(batches))
for number in range(1, STEPS + 1):
    loss = step(*next(data))
    print(f"step: {number}, loss: {loss.numpy():.4f}", flush=True)
print(f"{size} replicas in sync", flush=True)
