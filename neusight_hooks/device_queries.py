"""What programs ask of their GPU, and what another GPU would have answered."""

from __future__ import annotations

from neusight.fake_cuda.compiling.choices.padding import padding_query_result
from neusight.fake_cuda.compiling.compiler import inductor_query_result
from neusight.fake_cuda.distributed.groups import intra_node_query_result
from neusight.fake_cuda.torch_api.cuda_module import static_answer
from neusight.fake_cuda.torch_api.overrides import attention_query_result
from neusight.predictors.gpu import GPU


def answer(device_query: str, gpu: GPU) -> str | None:
    """The recorded form of what `gpu` answers; None where it takes a new recording."""
    return (
        static_answer(device_query, gpu)
        or attention_query_result(device_query, gpu)
        or inductor_query_result(device_query, gpu)
        or intra_node_query_result(device_query, gpu)
        or padding_query_result(device_query, gpu)
    )
