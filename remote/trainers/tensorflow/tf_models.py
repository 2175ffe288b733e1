"""The models that train_tensorflow.py trains, ResNet-50 v1.5 and VGG16, in plain TensorFlow.

TensorFlow 2.4 or newer, Python 3.8 or newer. Weights are fp32; a layer computes in the type of its
input.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf

COMPUTE_TYPES = {"fp32": tf.float32, "tf32": tf.float32, "fp16": tf.float16, "bf16": tf.bfloat16}


class Seeds:
    """Random numbers for the weights: the same on all nodes, different for each variable."""

    def __init__(self, seed: int) -> None:
        self.seed, self.count = seed, 0

    def normal(self, shape: Sequence[int], deviation: float) -> tf.Tensor:
        """Return normally distributed values."""
        self.count += 1
        return tf.random.stateless_normal(shape, seed=[self.seed, self.count], stddev=deviation)


class Conv(tf.Module):
    """A convolution padded like PyTorch's, by the same amount on both sides."""

    def __init__(
        self,
        seeds: Seeds,
        channels_in: int,
        width: int,
        size: int,
        stride: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        he = (2.0 / (size * size * width)) ** 0.5
        self.kernel = tf.Variable(seeds.normal([size, size, channels_in, width], he))
        self.bias = tf.Variable(tf.zeros([width])) if bias else None
        self.stride = stride
        self.padding = [[0, 0], [size // 2] * 2, [size // 2] * 2, [0, 0]]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the convolved images, computed in the type of ``x``."""
        y = tf.nn.conv2d(x, tf.cast(self.kernel, x.dtype), self.stride, self.padding)
        return y if self.bias is None else tf.nn.bias_add(y, tf.cast(self.bias, x.dtype))


class BatchNorm(tf.Module):
    """Batch norm in one kernel; scale, offset and statistics stay fp32, and each replica keeps its
    own statistics.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        statistics: dict[str, Any] = {
            "trainable": False,
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.MEAN,
        }
        self.scale, self.offset = tf.Variable(tf.ones([width])), tf.Variable(tf.zeros([width]))
        self.mean, self.variance = (
            tf.Variable(tf.zeros([width]), **statistics),
            tf.Variable(tf.ones([width]), **statistics),
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the normalised images, as in training."""
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=self.scale,
            offset=self.offset,
            mean=[],
            variance=[],
            epsilon=1e-5,
            is_training=True,
        )
        self.mean.assign_sub(0.1 * (self.mean - mean))
        self.variance.assign_sub(0.1 * (self.variance - variance))
        return y


class Bottleneck(tf.Module):
    """1x1, 3x3, 1x1 and a shortcut. Version 1.5: the stride is in the 3x3; version 1 had it in the
    first 1x1.
    """

    def __init__(self, seeds: Seeds, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv(seeds, channels_in, width, 1), BatchNorm(width)
        self.conv2, self.bn2 = Conv(seeds, width, width, 3, stride), BatchNorm(width)
        self.conv3, self.bn3 = Conv(seeds, width, 4 * width, 1), BatchNorm(4 * width)
        self.project: Any = None
        if stride != 1 or channels_in != 4 * width:
            self.project, self.bn4 = (
                Conv(seeds, channels_in, 4 * width, 1, stride),
                BatchNorm(4 * width),
            )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the block's output, at 1/stride of the size."""
        y = tf.nn.relu(self.bn1(self.conv1(x)))
        y = tf.nn.relu(self.bn2(self.conv2(y)))
        shortcut = x if self.project is None else self.bn4(self.project(x))
        return tf.nn.relu(self.bn3(self.conv3(y)) + shortcut)


class Dense(tf.Module):
    """A fully connected layer."""

    def __init__(self, seeds: Seeds, channels_in: int, width: int) -> None:
        super().__init__()
        self.kernel, self.bias = (
            tf.Variable(seeds.normal([channels_in, width], 0.01)),
            tf.Variable(tf.zeros([width])),
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the products, computed in the type of ``x``."""
        return tf.nn.bias_add(
            tf.matmul(x, tf.cast(self.kernel, x.dtype)), tf.cast(self.bias, x.dtype)
        )


class ResNet50(tf.Module):
    """ResNet-50 v1.5: 25,557,032 trainable parameters at 1000 classes."""

    def __init__(self, seeds: Seeds, num_classes: int) -> None:
        super().__init__()
        self.stem, self.bn = Conv(seeds, 3, 64, 7, 2), BatchNorm(64)
        self.blocks: list[Bottleneck] = []
        channels = 64
        for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(blocks):
                self.blocks.append(
                    Bottleneck(seeds, channels, width, first_stride if block == 0 else 1)
                )
                channels = 4 * width
        self.head = Dense(seeds, channels, num_classes)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Return the logits."""
        x = tf.nn.relu(self.bn(self.stem(images)))
        # Zeros next to relu's output cannot win, so this equals the padding of PyTorch's max
        # pooling.
        x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
        for block in self.blocks:
            x = block(x)
        return self.head(tf.reduce_mean(x, [1, 2]))


class VGG16(tf.Module):
    """VGG16 without BatchNorm: 138,357,544 parameters with 1000 classes, for any image size of 32
    or more.

    The head takes 7x7 values per channel: means over the cells of a larger grid, or repeated values
    of a smaller one.
    """

    def __init__(self, seeds: Seeds, num_classes: int) -> None:
        super().__init__()
        self.stages: list[list[Conv]] = []
        channels = 3
        for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            self.stages.append([])
            for _ in range(convolutions):
                self.stages[-1].append(Conv(seeds, channels, width, 3, bias=True))
                channels = width
        self.dense = [
            Dense(seeds, 512 * 7 * 7, 4096),
            Dense(seeds, 4096, 4096),
            Dense(seeds, 4096, num_classes),
        ]

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Return the logits."""
        x = images
        for stage in self.stages:
            for convolution in stage:
                x = tf.nn.relu(convolution(x))
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.reshape(seven_by_seven(x), [-1, 512 * 7 * 7])
        for dense in self.dense[:-1]:
            x = tf.nn.dropout(tf.nn.relu(dense(x)), 0.5)
        return self.dense[-1](x)


def seven_by_seven(x: tf.Tensor) -> tf.Tensor:
    """Return a 7x7 grid: each cell is the mean of the part of ``x`` that it covers, as in adaptive
    pooling.
    """
    size = x.shape[1]
    if size == 7:
        return x
    edges = [(cell * size // 7, -(-(cell + 1) * size // 7)) for cell in range(7)]
    rows = tf.stack([tf.reduce_mean(x[:, low:high], 1) for low, high in edges], 1)
    return tf.stack([tf.reduce_mean(rows[:, :, low:high], 2) for low, high in edges], 2)


MODELS: dict[str, Callable[[Seeds, int], tf.Module]] = {"resnet50": ResNet50, "vgg16": VGG16}
