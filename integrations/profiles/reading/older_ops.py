"""Convolutions of profiles that older releases of torch wrote, as the operators of today.

They were recorded without stride and padding, which follow from the shapes of the image and of the
result: a gradient's call holds both; a forward call's result is the first argument of what comes
next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Older names of convolutions, to the positions of image, weight and gradient among their tensors.
CONVOLUTIONS: dict[str, tuple[int, int, int | None]] = {
    "aten::conv1d": (0, 1, None),
    "aten::conv2d": (0, 1, None),
    "aten::conv3d": (0, 1, None),
    "aten::convolution": (0, 1, None),
    "aten::_convolution": (0, 1, None),
    "aten::cudnn_convolution": (0, 1, None),
    "aten::miopen_convolution": (0, 1, None),
    "aten::cudnn_convolution_backward": (0, 2, 1),
    "aten::miopen_convolution_backward": (0, 2, 1),
}

Shape = tuple[int, ...]


class OlderConvolution(NamedTuple):
    """What a call of today takes: `name`, and the text of each argument behind the tensors."""

    name: str
    shapes: tuple[Shape, ...]
    values: tuple[str, ...]


def older_convolution(
    name: str, shapes: Sequence[Shape], results: Iterable[Shape], *, is_first: bool = False
) -> OlderConvolution | None:
    """The convolution of that name and those tensors; the first of `results` that can be is its
    output's shape. That of a network's first layer, `is_first`, has no gradient of its image.

    None where the shapes fit no convolution with the usual padding (half of the kernel).

    >>> older_convolution("aten::cudnn_convolution", [(8, 3, 224, 224), (64, 3, 7, 7)],
    ...                   [(8, 64, 112, 112)]).values[1:3]
    ('[2, 2]', '[3, 3]')
    """
    image_at, weight_at, gradient_at = CONVOLUTIONS[name]
    image, weight = shapes[image_at], shapes[weight_at]
    if not len(image) == len(weight) > 2 or image[1] % max(1, weight[1]):
        return None
    known = results if gradient_at is None else [shapes[gradient_at]]
    output = next((shape for shape in known if _can_be(shape, image, weight)), None)
    if output is None:
        return None
    found = [_stride(*sizes) for sizes in zip(image[2:], weight[2:], output[2:], strict=True)]
    if 0 in found:
        return None
    stride = str(found)
    padding = str([edge // 2 for edge in weight[2:]])
    ones, zeros = str([1] * len(found)), str([0] * len(found))
    groups = str(image[1] // weight[1])
    settings = (stride, padding, ones, "False", zeros, groups)
    if gradient_at is None:
        return OlderConvolution("aten::convolution", (image, weight), ("", *settings))
    return OlderConvolution(
        "aten::convolution_backward",
        (output, image, weight),
        ("", *settings, f"[{not is_first}, True, False]"),
    )


def _can_be(shape: Shape, image: Shape, weight: Shape) -> bool:
    """Whether a convolution of that image by that weight may have this shape."""
    return len(shape) == len(image) and shape[:2] == (image[0], weight[0])


def _stride(image: int, edge: int, output: int) -> int:
    """The stride that leads from an image to that output with a padding of half the kernel."""
    for stride in range(1, max(1, image) + 1):
        reached = (image + 2 * (edge // 2) - edge) // stride + 1
        if reached == output:
            return stride
        if reached < output:
            return 0
    return 0
