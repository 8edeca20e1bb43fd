import tensorflow as tf


def residual(x, filters):
    y = tf.keras.layers.Conv2D(filters, 3, padding="same")(x)
    y = tf.keras.layers.BatchNormalization()(y)
    y = tf.keras.layers.ReLU()(y)
    return tf.keras.layers.Add()([x, tf.keras.layers.Conv2D(filters, 3, padding="same")(y)])


def create_model(number_of_classes):
    """A residual network for pictures, much smaller than the ResNet50 of the tutorial."""
    inputs = tf.keras.Input((32, 32, 3))
    x = tf.keras.layers.Conv2D(8, 3, strides=2)(inputs)
    x = residual(residual(x, 8), 8)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    outputs = tf.keras.layers.Dense(number_of_classes, activation="softmax")(x)
    model = tf.keras.Model(inputs, outputs)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.01),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
