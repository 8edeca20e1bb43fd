"""Asynchronous training with a coordinator, as in TensorFlow's guide to parameter servers."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    weights = tf.Variable(tf.zeros((4, 1)))


@tf.function
def step(iterator):
    x = next(iterator)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - tf.reduce_sum(x, axis=1, keepdims=True)) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def batches():
    return tf.data.Dataset.from_tensor_slices(tf.random.uniform((64, 4))).repeat().batch(8)


data = iter(coordinator.create_per_worker_dataset(batches))
for epoch in range(1, 4):
    losses = [coordinator.schedule(step, args=(data,)) for _ in range(5)]
    coordinator.join()
    print(f"epoch: {epoch}, loss: {sum(loss.fetch() for loss in losses) / 5:.4f}", flush=True)
print(f"variables on {weights.device}", flush=True)
