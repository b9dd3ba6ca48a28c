"""Which packages have stubs, under which version, and who may find them."""

from __future__ import annotations

from typing import NamedTuple


class StubPackage(NamedTuple):
    """A package that others replace: the file in `stubs/packages` that holds them, the
    name and version of what `pip` would install.

    `must_be_asked_for`: libraries find it too, since they use it where the program says so;
    `seekers`: only these do.
    """

    home: str
    distribution: str
    version: str
    must_be_asked_for: bool = False
    seekers: tuple[str, ...] = ()


#: By the name that a program imports. The versions are those whose manuals the functions follow.
CATALOGUE: dict[str, StubPackage] = {
    "amp_C": StubPackage("apex", "apex", "0.1"),
    "apex": StubPackage("apex", "apex", "0.1"),
    "deepspeed": StubPackage("deepspeed", "deepspeed", "0.17.5"),
    "flash_attn": StubPackage("flash_attention", "flash-attn", "2.8.3", must_be_asked_for=True),
    "flash_attn_interface": StubPackage(
        "flash_attention_3", "flash-attn-3", "3.0.0", must_be_asked_for=True
    ),
    "gptqmodel": StubPackage(
        "gptqmodel", "gptqmodel", "7.7.0", seekers=("transformers", "optimum")
    ),
    "causal_conv1d": StubPackage("mamba", "causal-conv1d", "1.5.2"),
    "mamba_ssm": StubPackage("mamba", "mamba-ssm", "2.2.5"),
    "transformer_engine": StubPackage("transformer_engine", "transformer-engine", "2.6.0"),
    "triton": StubPackage("triton", "triton", "3.7.1"),
    "xformers": StubPackage("xformers", "xformers", "0.0.30"),
}

#: Libraries that take up a package as soon as it is there. They do not find stubs which the
#: program did not import itself: else a T5 would be forecast with Apex where Apex is not installed.
TAKE_WHAT_IS_THERE = (
    "accelerate",
    "bitsandbytes",
    "datasets",
    "diffusers",
    "lightning",
    "lightning_fabric",
    "peft",
    "pytorch_lightning",
    "sentence_transformers",
    "tensorboard",
    "timm",
    "torch",
    "torchao",
    "torchmetrics",
    "torchvision",
    "transformers",
    "trl",
)
