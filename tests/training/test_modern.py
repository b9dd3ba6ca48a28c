"""Tables of rows of serving libraries, and of calls of a BLAS library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from priced_kernels import label

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import GemmSize
from neusight.predictors.training.reading import read_dataset
from places import require_golden

pytest.importorskip("pandas", reason="reading tables needs the extra [data]")

BLAS = """gpu,dtype,m,n,k,a_transposed,b_transposed,latency_us
V100-SXM2-16GB (DGX-1),fp16_tensor_core,2560,16,512,True,False,51
T4,fp32,2560,16,512,False,False,50
T4,fp32,35,8457,4096,True,False,60
T4,fp32,35,8457,4096,False,True,70
"""


def test_a_blas_call_is_the_product_of_its_operands_swapped(tmp_path: Path) -> None:
    """Columns of B are rows of Bᵀ: C[m, n] in columns is Cᵀ[n, m] in rows."""
    (tmp_path / "gemm.csv").write_text(BLAS, encoding="utf-8")

    t4, v100 = read_dataset(tmp_path).groups

    assert [(kernel.size, kernel.layout) for (kernel,) in t4.launches] == [
        (GemmSize(1, 16, 2560, 512), "nn"),
        (GemmSize(1, 8457, 35, 4096), "nt"),
        (GemmSize(1, 8457, 35, 4096), "tn"),
    ]
    assert v100.gpu.name == "V100-SXM2-16GB"  # the system in brackets is no part of its name
    assert v100.launches[0][0].dtype == "float16"


def test_only_the_rows_of_one_gpu_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text(BLAS, encoding="utf-8")

    dataset = read_dataset(tmp_path, only=find_gpu("T4"))

    assert [group.gpu.name for group in dataset.groups] == ["T4"]
    assert "another GPU was asked for" in dataset.left_out[0]


#: A row of every kind that a table may hold, by table.
ROWS = {
    "gemm": """gpu,dtype,m,n,k,act_quant_us,clock_regime,source,latency_us
h100_sxm,bf16,64,1024,1024,,burst,vllm,9
h100_sxm,bf16,64,1024,1000,,sustained,vllm,10
h100_sxm,bf16,32,1024,1024,,burst,vidur_a100,11
h100_sxm,fp8_dynamic,64,2048,1024,2.5,burst,vllm,12
h100_sxm,fp8_block128,64,2048,1024,,burst,vllm,13
a100_sxm,fp8_dynamic,64,2048,1024,,burst,vllm,14
h100_sxm,int4,64,2048,1024,,burst,vllm,15
""",
    "attention": "gpu,phase,dtype,batch,seq_q,seq_kv,heads,kv_heads,head_dim,window,"
    """kernel_source,latency_us
h100_sxm,prefill_causal,bf16,2,512,512,32,8,128,0,vllm_fa3,20
h100_sxm,decode,bf16,8,1,1000,32,8,128,0,trtllm,21
h100_sxm,decode,bf16,8,1,1000,32,8,128,0,flashinfer,22
h100_sxm,decode,fp16,8,1,1000,32,8,128,0,,23
h100_sxm,encoder_full,bf16,2,512,512,32,8,128,0,cudnn,24
h100_sxm,decode,bf16,8,1,1000,32,8,128,4096,trtllm,25
b200_sxm,decode,fp16,8,1,1000,32,8,128,0,fa4,26
b200_sxm,decode,bf16,8,1,1000,32,8,128,0,,27
a100_sxm,decode,bf16,8,1,1000,32,8,128,0,,28
h100_sxm,decode,fp8_dynamic,8,1,1000,32,8,128,0,fa3,29
a100_sxm,prefill_causal,bf16,8,16,16,32,8,128,64,fa2,30
""",
    "collectives": """gpu,op,dtype,num_gpus,num_nodes,message_bytes,source,latency_us
h100_sxm,all_reduce,bf16,8,1,1048576,nccl-tests,40
h100_sxm,all_reduce,bf16,16,2,1048576,vidur,41
h100_sxm,alltoall,int8,8,1,1048576,nccl-tests,42
h100_sxm,scan,bf16,8,1,1048576,nccl-tests,43
""",
    "memory_bound": """gpu,op,dtype,rows,width,bytes_moved,latency_us
h100_sxm,rms_norm,bf16,64,4096,1048576,50
h100_sxm,quant_fp8_per_token,bf16->fp8_e4m3,64,4096,786432,51
h100_sxm,embedding,bf16,64,4096,1048576,52
h100_sxm,softmax,fp16,64,4096,1048576,53
h100_sxm,silu_and_mul,bf16,64,4096,1572864,54
h100_sxm,add,bf17,64,4096,1572864,55
""",
}


def test_rows_are_the_kernels_that_the_golden_table_has(tmp_path: Path) -> None:
    """Of each group its clocks, whether it is trained on and the share that is taken off; of each
    row its time and what was launched; then what is left out, and why."""
    for name, text in ROWS.items():
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")

    dataset = read_dataset(tmp_path)

    lines = []
    for group in dataset.groups:
        lines.append(
            f"{group.gpu_label} {group.table} {group.dtype} {group.phase_or_op}"
            f"{' sustained' * group.sustained}{' not trained on' * (not group.is_for_training)}"
            f" {group.parts_us} {group.is_model_shape} {group.shape % np.uint64(997)}"
        )
        for launches, time_us in zip(group.launches, group.latency_us.tolist(), strict=True):
            lines.append(f"  {time_us:g} µs: " + ", ".join(label(kernel) for kernel in launches))
    require_golden("table_rows.txt", [*lines, *dataset.left_out])
