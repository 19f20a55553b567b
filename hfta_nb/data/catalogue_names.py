"""Names and tasks of the data sets, and which of them are read from directories."""

from __future__ import annotations

TASKS: dict[str, str] = {
    **dict.fromkeys(("digits", "breast_cancer", "wine", "iris", "shapes"), "classification"),
    "diabetes": "regression",
    **dict.fromkeys(("photographs", "shape_parts"), "segmentation"),
    **dict.fromkeys(("english", "english_words"), "language_model"),
    **dict.fromkeys(("english_masked", "english_words_masked"), "masked_language_model"),
    "clicks": "click",
    **dict.fromkeys(("photograph_patches", "digit_images", "image_files", "lsun"), "generation"),
    **dict.fromkeys(("modelnet40_off", "modelnet40_hdf5"), "classification"),
    **dict.fromkeys(
        ("mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "image_folder"), "classification"
    ),
    **{
        "modelnet40": "classification",
        "shapenet_part": "segmentation",
        "wikitext": "language_model",
        "criteo": "click",
    },
}
"""Tasks of built-in data sets and kinds of directories, known without reading them."""


def task_of(name: str) -> str | None:
    """The task of a data set by name; None if unknown."""
    return TASKS.get(name.partition(":")[0])


DIRECTORIES = frozenset(
    {
        *("mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "image_folder", "image_files", "lsun"),
        *("modelnet40", "modelnet40_off", "modelnet40_hdf5", "shapenet_part", "wikitext", "criteo"),
    }
)
"""The entries of `TASKS` that are read from a directory; the others are built in."""


def known(name: str) -> bool:
    """Whether `load` can load this name again."""
    kind, colon, _ = name.partition(":")
    built_in = name in TASKS and name not in DIRECTORIES
    return built_in or (bool(colon) and kind in DIRECTORIES)
