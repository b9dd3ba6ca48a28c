"""How an op's time on the host is shared between the operators around it and below it."""

from __future__ import annotations

#: Time of an operator without what it calls, on the host under torch.profiler, in microseconds:
#: medians over the calls of two models in profiles of one H100 machine (torch 2.6; shapes, stacks
#: and memory recorded), launches left out. They say in which ratio time is shared, no more.
_SELF_US = {
    "aten::_flash_attention_forward": 12.2,
    "aten::_local_scalar_dense": 4.2,
    "aten::_scaled_dot_product_flash_attention": 5.8,
    "aten::_to_copy": 2.4,
    "aten::add_": 3.9,
    "aten::addmm": 21.4,
    "aten::as_strided": 0.3,
    "aten::copy_": 8.1,
    "aten::detach": 3.0,
    "aten::dropout": 0.5,
    "aten::embedding": 3.4,
    "aten::empty": 2.5,
    "aten::empty_like": 1.9,
    "aten::empty_strided": 3.9,
    "aten::gelu": 7.5,
    "aten::index_select": 5.8,
    "aten::item": 2.7,
    "aten::layer_norm": 2.5,
    "aten::linear": 6.4,
    "aten::native_layer_norm": 10.1,
    "aten::permute": 1.3,
    "aten::reshape": 0.8,
    "aten::resize_": 2.0,
    "aten::scaled_dot_product_attention": 10.5,
    "aten::t": 1.8,
    "aten::to": 1.1,
    "aten::transpose": 1.2,
    "aten::view": 0.3,
}
#: The same of the others: what launches kernels (aten::add 8.2), and what only calls operators.
_LAUNCHES_US, _CALLS_US = 8.0, 2.0
#: What an operator takes after another one that it called has ended: assumed, as the shortest.
BETWEEN_US = 0.3


def self_us(name: str, *, launches: bool) -> float:
    """The share of an operator, in microseconds of a profiled host.

    >>> self_us("aten::linear", launches=False), self_us("aten::mine", launches=True)
    (6.4, 8.0)
    """
    return _SELF_US.get(name, _LAUNCHES_US if launches else _CALLS_US)
