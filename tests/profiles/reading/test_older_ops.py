"""Convolutions of older profiles, whose stride and padding follow from their shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neusight.integrations.profiles.reading.older_ops import CONVOLUTIONS, older_convolution

FORWARD, BACKWARD = "aten::cudnn_convolution", "aten::cudnn_convolution_backward"


@given(
    batch=st.integers(1, 4),
    groups=st.sampled_from([1, 2, 4]),
    edge=st.sampled_from([1, 3, 5, 7]),
    stride=st.integers(1, 3),
    image=st.integers(7, 40),
)
def test_the_settings_that_are_found_give_the_shape_of_the_result(
    batch: int, groups: int, edge: int, stride: int, image: int
) -> None:
    values = torch.empty(batch, 8, image, image, device="meta")
    weight = torch.empty(16, 8 // groups, edge, edge, device="meta")
    result = torch.nn.functional.conv2d(values, weight, None, stride, edge // 2, 1, groups).shape
    found = older_convolution(FORWARD, [tuple(values.shape), tuple(weight.shape)], [tuple(result)])
    assert found is not None
    _, strides, padding, dilation, _, _, found_groups = found.values
    again = torch.nn.functional.conv2d(
        values, weight, None, eval(strides), eval(padding), eval(dilation), int(found_groups)
    )
    assert again.shape == result


def test_a_gradient_states_the_shape_itself() -> None:
    shapes = [(32, 256, 56, 56), (32, 512, 28, 28), (512, 256, 1, 1)]
    found = older_convolution(BACKWARD, shapes, [])
    assert found is not None
    assert found.name == "aten::convolution_backward"
    assert found.shapes == (shapes[1], shapes[0], shapes[2])
    assert found.values[1:3] == ("[2, 2]", "[0, 0]")
    assert found.values[-1] == "[True, True, False]"


def test_the_first_layer_has_no_gradient_of_its_image() -> None:
    shapes = [(32, 3, 224, 224), (32, 64, 112, 112), (64, 3, 7, 7)]
    found = older_convolution(BACKWARD, shapes, [], is_first=True)
    assert found is not None
    assert found.values[-1] == "[False, True, False]"


def test_the_first_shape_that_can_be_the_result_is_taken() -> None:
    results = [(), (64,), (8, 64, 112, 112), (8, 64, 56, 56)]
    found = older_convolution(FORWARD, [(8, 3, 224, 224), (64, 3, 7, 7)], results)
    assert found is not None
    assert found.values[1] == "[2, 2]"


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_each_operator_has_its_tensors_in_an_order_of_its_own(name: str) -> None:
    image, weight, result, bias = (8, 4, 9, 7), (6, 2, 3, 5), (8, 6, 5, 4), (6,)
    shapes = [image, result, weight] if "backward" in name else [image, weight, bias]

    found = older_convolution(name, shapes, [result])

    assert found is not None
    expected = (result, image, weight) if "backward" in name else (image, weight)
    assert (found.name, found.shapes) == (
        f"aten::convolution{'_backward' * ('backward' in name)}", expected
    )  # fmt: skip
    assert found.values[:7] == ("", "[2, 2]", "[1, 2]", "[1, 1]", "False", "[0, 0]", "2")


@pytest.mark.parametrize(
    ("image", "weight"), [((8, 3), (64, 3)), ((8, 3, 9, 9), (64, 3, 7)), ((8, 3, 9), (64, 2, 7))]
)
def test_shapes_of_no_image_or_filter_give_nothing(
    image: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    assert older_convolution(FORWARD, [image, weight], [(8, 64, 9, 9)]) is None


@pytest.mark.parametrize(
    "results",
    [[], [(8, 32, 112, 112)], [(8, 64, 500, 500)], [(8, 64, 112)], [(8, 64, 0, 0)]],
    ids=["nothing follows", "other channels", "larger than the image", "fewer dimensions", "none"],
)
def test_shapes_that_fit_no_convolution_give_nothing(results: list[tuple[int, ...]]) -> None:
    assert older_convolution(FORWARD, [(8, 3, 224, 224), (64, 3, 7, 7)], results) is None
