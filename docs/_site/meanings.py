"""What the axes of the built-in families mean; a test sees that none lacks an entry."""

from __future__ import annotations

MEANINGS = {
    "width": "Features of each token or hidden layer.",
    "depth": "Number of layers.",
    "activation": "Activation after each hidden layer.",
    "dropout": "Probability with which an activation is dropped.",
    "stem": "First layers: `cifar` for small images, `imagenet` for large ones (stride and pooling).",
    "width_multiplier": "Factor of all channels; 1 is the published model.",
    "patch_size": "Edge of a patch, in pixels.",
    "heads": "Attention heads of each layer; must divide `width`.",
    "norm": "Batch norm after each convolution.",
    "input_transform": "Learn a transformation of the points.",
    "feature_transform": "Learn a transformation of the features of each point.",
    "mlp_ratio": "Width of the feed-forward layers over `width`.",
    "size": "A published size; `own` for `width`, `depth` and `heads`, which do nothing otherwise.",
    "tied": "Use the embedding's weights in the last layer.",
    "bottom_width": "Width of the perceptron on the dense features.",
    "bottom_depth": "Hidden layers of the perceptron on the dense features.",
    "top_width": "Width of the perceptron on the products of features.",
    "top_depth": "Hidden layers of the perceptron on the products of features.",
    "sparse": "Sparse gradients of the tables, for the optimizer `rowwise_adagrad`.",
    "latent": "Numbers of noise from which an image is made.",
    "generator_width": "Channels of the generator's last hidden layer; each layer before has twice as many.",
    "discriminator_width": "Channels of the discriminator's first layer; each layer after has twice as many.",
}

OF_FAMILY = {
    ("cnn", "width"): "Channels of the first convolution; each of the next three doubles them.",
    ("cnn", "depth"): "Number of convolutions.",
    ("mlp", "width"): "Features of each hidden layer.",
    ("mlp", "depth"): "Number of hidden layers.",
    ("unet", "width"): "Channels of the first level; each level doubles them.",
    ("unet", "depth"): "How often the image is halved.",
    ("unet", "masked"): "Whether the last channel is a mask of the annotated area, by which the output is multiplied.",
    ("dlrm", "width"): "Length of each embedding.",
    ("lstm_lm", "width"): "Features of the embedding and of each recurrent layer.",
    ("gru_lm", "width"): "Features of the embedding and of each recurrent layer.",
    **{(name, "width"): "Channels of the first stage; 64 is the published model."
       for name in ("resnet18", "resnet34", "resnet50")},
    **{(name, "width"): "Channels of the first layer; 64 is the published model."
       for name in ("pointnet_cls", "pointnet_seg")},
}  # fmt: skip
"""Where a family differs from what the name says elsewhere."""


def meaning(family: str, axis: str) -> str:
    """What an axis of a family means; empty where nothing is written."""
    return OF_FAMILY.get((family, axis)) or MEANINGS.get(axis, "")
