"""Which data sets there are, by name and task, and which of them lie in directories."""

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
"""Of built-in data sets and kinds of directories, so that they need not be read to be offered."""


def task_of(name: str) -> str | None:
    """The task of a data set by name; None where it is not known."""
    return TASKS.get(name.partition(":")[0])


DIRECTORIES = frozenset(
    {
        *("mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "image_folder", "image_files", "lsun"),
        *("modelnet40", "modelnet40_off", "modelnet40_hdf5", "shapenet_part", "wikitext", "criteo"),
    }
)
"""Of `TASKS` those that are read from a directory; the others are built in."""


def known(name: str) -> bool:
    """Whether `load` can be asked for this name again."""
    kind, colon, _ = name.partition(":")
    built_in = name in TASKS and name not in DIRECTORIES
    return built_in or (bool(colon) and kind in DIRECTORIES)
