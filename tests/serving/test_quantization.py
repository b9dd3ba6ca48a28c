"""What a checkpoint's config says of its weights."""

from __future__ import annotations

import pytest

from neusight.serving.quantization import stated_quantization


@pytest.mark.parametrize(
    ("config", "stated"),
    [
        (None, ""),
        ({}, ""),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "gptq"}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "gptq"),
        ({"quant_method": "gptq", "bits": 3}, "gptq"),
        ({"quant_algo": "FP8"}, "fp8"),
        ({"bits": 4}, "unnamed"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "float"},
                        "input_activations": {"num_bits": 8, "type": "float"},
                    }
                },
            },
            "fp8",
        ),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    ],
)
def test_a_checkpoint_is_served_as_its_config_says(config: object, stated: str) -> None:
    assert stated_quantization(config) == stated
