"""What a layout costs: memory by arithmetic, time from the prices of one block and its neighbours,
energy, and a checkpoint."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from neusight.integrations.layouts.block import BlockRecord, Part
from neusight.integrations.layouts.layout import Layout, ModelShape, StepLoad
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass
from neusight.predictors.physics.communication.contention import contention_of
from neusight.predictors.physics.communication.stragglers import num_hosts, slowest_share
from neusight.predictors.physics.power import energy_j
from neusight.predictors.predictor import Estimate

#: Bytes of a parameter that the ranks of a copy share: fp32 value and gradient, Adam's two moments.
_SHARED_BYTES = 16
#: Of a gathered parameter (bf16), of its gradient before it is reduced (bf16), and of the fp32 copy
#: that is reduced or summed up over micro-batches.
_GATHERED_BYTES, _GRADIENT_BYTES, _REDUCED_BYTES = 2, 2, 4
#: Blocks whose parameters are gathered at once: the one at work, and the next.
_GATHERED_BLOCKS = 2
#: Stages of a rank whose parameters the schedules of torch.distributed.pipelining keep gathered.
_GATHERED_STAGES = 3
#: Bytes of a gathered parameter that FSDP2 moves beside what links carry: its copy out of the
#: buffer that was gathered, its gradient into the buffer that is reduced (`split_with_sizes_copy`,
#: `chunk_cat`), or where gradients are not reduced yet into their sum; and of a rank's own share
#: the cast and the copy before a gather, and the sum of gradients after a reduction.
_COPY_OUT_BYTES, _COPY_IN_BYTES, _SUM_BYTES = 4, 6, 18
_OWN_GATHER_BYTES, _OWN_REDUCE_BYTES = 10, 12
#: Of a parameter that is kept on the host: its value (fp32) comes, its gradient goes.
_OFFLOADED_BYTES = 4
#: What the hosts' memory gives Adam there, 1e9 bytes per second of a host: half of two sockets'
#: eight channels of DDR5-4800. A prior.
_HOST_GBPS = 300.0
#: Bytes of fp32 that a fused AdamW moves for each parameter: value, gradient and two moments read,
#: three written.
_ADAM_BYTES = 28
#: Of the schedule ZBV each rank less one is idle for half of a micro-batch's gradients of
#: activations: so its order of work comes out, whatever forwards and gradients of weights take
#: (torch's ScheduleZBVZeroBubble, played for 4 and 8 ranks).
_ZBV_IDLE = 2.0
#: What a checkpoint holds of a parameter: fp32 value and two moments.
_SAVED_BYTES = 12

#: The allocator's blocks and rounding above what is in use, as a share. A prior: torchtitan's
#: published peaks are 3 to 8 % above what is allocated.
_RESERVED_MORE = 0.06
#: The context of CUDA and NCCL's buffers, bytes.
_CONTEXT_BYTES = 1.5e9


def needed_bytes(layout: Layout, shape: ModelShape, record: BlockRecord | None) -> float:
    """What a rank needs at most; without a record of its block, at least."""
    blocks = shape.num_blocks / layout.pipeline
    edge = _edge_parameters(layout, shape)
    own = blocks * shape.block_parameters / layout.tensor + edge
    used = 0.0 if layout.offload else own * _SHARED_BYTES / layout.sharers
    if layout.sharers > 1 or layout.replicate > 1 or layout.offload:
        block = sum(gather.parameters for gather in _gathers(layout, shape))
        all_of_it = blocks * block + edge
        whole = edge + _GATHERED_BLOCKS * block if layout.reshard else all_of_it
        held = all_of_it if not layout.reshard else edge + block
        used += whole * _GATHERED_BYTES + held * (_GRADIENT_BYTES + _REDUCED_BYTES)
    if record is not None:
        scale = layout.micro_batch / record.micro_batch
        alive = _alive(layout)
        each = record.input_bytes if layout.checkpoint else record.kept_bytes
        used += alive * blocks * each * scale
        used += record.kept_bytes * scale if layout.checkpoint else 0.0
        used += record.edge_bytes * scale
    return used * (1.0 + _RESERVED_MORE) + _CONTEXT_BYTES


def _edge_parameters(layout: Layout, shape: ModelShape) -> int:
    """Beside blocks, of the stage that has most of them: of a pipeline the first or the last."""
    are_apart = layout.pipeline > 1 and not layout.zero_bubble
    return shape.edge_parameters // layout.tensor // (2 if are_apart else 1)


class _Rounds(NamedTuple):
    """How often a step gathers a rank's parameters, and reduces its gradients."""

    gathers: float
    reduces: int


def _rounds(layout: Layout) -> _Rounds:
    """A pipeline reduces a stage's gradients once, after its last backward pass; its schedules keep
    three stages gathered, and of four gather half again for as many micro-batches as it has ranks
    (torch.distributed.pipelining: `perform_reduce_grad`, and `_add_unshard_reshard`, counted)."""
    times = layout.num_micro_batches
    if layout.reshard:
        return _Rounds(2 * times, 1 if layout.pipeline > 1 else times)
    again = times / layout.pipeline / 2 if layout.stages_a_rank > _GATHERED_STAGES else 0.0
    return _Rounds(1 + again, 1)


class _Gather(NamedTuple):
    """Parameters of a block that a rank gathers from so many ranks, which lie `stride` apart."""

    parameters: int
    ranks: int
    stride: int


def _gathers(layout: Layout, shape: ModelShape) -> list[_Gather]:
    """A block's parameters, those of experts apart where ranks hold different ones."""
    if layout.expert == 1:
        own = shape.block_parameters // layout.tensor
        return [_Gather(own, layout.sharers, layout.tensor)]
    common = shape.block_parameters - shape.expert_parameters
    return [
        _Gather(common, layout.shard, 1),
        _Gather(
            shape.expert_parameters // layout.expert, layout.shard // layout.expert, layout.expert
        ),
    ]


def least_bytes(layout: Layout, shape: ModelShape) -> float:
    """What a rank needs whatever its activations take."""
    return needed_bytes(layout, shape, None)


def _alive(layout: Layout) -> float:
    """Micro-batches whose activations the first stage holds at once, in stages as long as all of a
    rank's (1F1B; interleaved: Narayanan et al. 2021, section 2.2)."""
    if layout.pipeline == 1:
        return 1.0
    stages, more = layout.pipeline, 1.0
    if layout.stages_a_rank > 1:
        more = 1.0 + (stages - 1) / (stages * layout.stages_a_rank)
    return min(layout.num_micro_batches, stages) * more


@dataclass(frozen=True)
class BlockTimes:
    """µs of a block, and of what comes before the first and after the last, forward and backward;
    the share of a block's that is collectives of the ranks that share it; its matrix products
    forward; FLOPs of a block forward and backward, and of the others. Of what is computed again of
    a checkpointed block: all, the share of collectives, and FLOPs."""

    block: tuple[float, float]
    first: tuple[float, float]
    last: tuple[float, float]
    tensor_us: tuple[float, float]
    products_us: float
    block_flops: tuple[float, float]
    edge_flops: float
    again_us: float
    again_tensor_us: float
    again_flops: float


@dataclass(frozen=True)
class LayoutPrice:
    """A layout on a GPU: a step's time with its parts (µs), memory of the rank that needs most,
    energy, and the time to write a checkpoint. `corrected_us` is what its script takes longer, run
    whole (None: it was not)."""

    layout: Layout
    gpu: str
    step_us: float
    compute_us: float
    recomputed_us: float
    exposed_us: float
    bubble_us: float
    optimizer_us: float
    straggler_us: float
    mfu: float
    tokens_per_s: float
    memory_bytes: float
    capacity_bytes: float
    energy_j: float
    checkpoint_s: float
    loading_us: float = 0.0
    corrected_us: float | None = None

    def corrected(self, ratio: float) -> LayoutPrice:
        """As long as its script takes, which is so many times as long as this says."""
        ran_us = self.busy_us * ratio
        step_us = max(ran_us, self.step_us if self.loading_us else 0.0)
        longer = step_us / self.step_us
        return replace(
            self,
            step_us=step_us,
            mfu=self.mfu / longer,
            tokens_per_s=self.tokens_per_s / longer,
            energy_j=self.energy_j * longer,
            loading_us=step_us - ran_us,
            corrected_us=ran_us - self.busy_us,
        )

    @property
    def busy_us(self) -> float:
        """The step but for its wait for data."""
        return self.step_us - self.loading_us

    @property
    def correction(self) -> float:
        """By how much of the arithmetic's time a run differs; 0 where it was not run."""
        corrected_us = self.corrected_us or 0.0
        return corrected_us / (self.busy_us - corrected_us)

    @property
    def watts(self) -> float:
        """Average of a GPU."""
        return self.energy_j / self.layout.world_size / (self.step_us * 1e-6)

    @property
    def parts(self) -> dict[str, float]:
        """What the step's time is made of, µs."""
        return {
            "compute": self.compute_us - self.recomputed_us,
            "recomputation": self.recomputed_us,
            "exposed communication": self.exposed_us,
            "pipeline bubble": self.bubble_us,
            "optimizer": self.optimizer_us,
            "waiting for the slowest host": self.straggler_us,
            "waiting for data": self.loading_us,
            "found by running it whole": self.corrected_us or 0.0,
        }

    def gpu_hours(self, tokens: float = 1e9) -> float:
        """GPU-hours for that many tokens."""
        return tokens / self.tokens_per_s / 3600.0 * self.layout.world_size

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values."""
        return {
            **asdict(self),
            "watts": self.watts,
            "gpu_hours_per_billion_tokens": self.gpu_hours(),
        }


#: A part of a record, and whether in the backward pass.
_Place = tuple[Part, bool]
_FORWARD: _Place = ("block", False)
_BACKWARD: _Place = ("block", True)
_AGAIN: _Place = ("again", True)


class LayoutPricer:
    """Prices layouts of a model on one GPU, whose hosts hold `gpus_per_node`, by `predict`; each
    host's data loaders deliver `loaded_tokens_per_s`."""

    def __init__(
        self,
        shape: ModelShape,
        work: StepLoad,
        gpu: GPU,
        predict: Callable[[list[Kernel]], list[Estimate]],
        *,
        gpus_per_node: int,
        storage_gbps: float,
        loaded_tokens_per_s: float = math.inf,
    ) -> None:
        self.shape, self.work, self.gpu = shape, work, gpu
        self._predict = predict
        self._gpus_per_node = gpus_per_node
        self._storage_gbps = storage_gbps
        self._loaded_tokens_per_s = loaded_tokens_per_s
        self._collective_us = lru_cache(maxsize=None)(self._priced_collective)
        self._times: dict[int, BlockTimes] = {}

    def times(self, record: BlockRecord) -> BlockTimes:
        """The record's kernels, priced."""
        key = id(record)
        if key not in self._times:
            self._times[key] = self._priced(record)
        return self._times[key]

    def _priced(self, record: BlockRecord) -> BlockTimes:
        estimates = self._predict([kernel for _, _, kernel in record.kernels])
        sums: dict[_Place, float] = defaultdict(float)
        flops, tensor, products = sums.copy(), sums.copy(), sums.copy()
        for (part, is_backward, kernel), estimate in zip(record.kernels, estimates, strict=True):
            place = part, is_backward
            sums[place] += estimate.latency_us
            flops[place] += kernel.flops
            if estimate.bound == "communication":
                tensor[place] += estimate.latency_us
            if kernel.kernel_class is KernelClass.GEMM:
                products[place] += estimate.latency_us
        slower = max(1.0, record.host_us[0] / max(1e-9, sums[_FORWARD] + sums[_BACKWARD]))
        return BlockTimes(
            block=(sums[_FORWARD] * slower, sums[_BACKWARD] * slower),
            first=(sums["first", False], sums["first", True]),
            last=(sums["last", False], sums["last", True]),
            tensor_us=(tensor[_FORWARD], tensor[_BACKWARD]),
            products_us=products[_FORWARD] * slower,
            block_flops=(flops[_FORWARD], flops[_BACKWARD]),
            edge_flops=sum(flops[place] for place in flops if place[0] in ("first", "last")),
            again_us=sums[_AGAIN] * slower,
            again_tensor_us=tensor[_AGAIN],
            again_flops=flops[_AGAIN],
        )

    def price(self, layout: Layout, record: BlockRecord) -> LayoutPrice:
        """The step of the slowest stage."""
        times, blocks = self.times(record), self.shape.num_blocks / layout.pipeline
        forward, backward = times.block
        again, tensor_again = 0.0, 0.0
        if layout.checkpoint:
            again, tensor_again = times.again_us, times.again_tensor_us
        edges = self._edges_us(layout, times)
        own_us = blocks * (forward + backward + again) + edges
        steps = layout.num_micro_batches
        hidden_us, exposed_us = self._sharding_us(layout, times, blocks)
        sends_us = self._sends_us(layout, record)
        tensor_us = steps * blocks * (sum(times.tensor_us) + tensor_again)
        compute_us = steps * own_us - tensor_us + self._stretched_us(layout, hidden_us)
        copied_us = self._copied_us(layout, blocks)
        compute_us += copied_us
        exposed_us += tensor_us
        bubble_us = 0.0
        if layout.pipeline > 1:
            bubble_us = self._bubble_us(layout, times, own_us - edges + copied_us / steps, sends_us)
        optimizer_us = self._optimizer_us(layout)
        busy_us = compute_us + exposed_us + bubble_us + optimizer_us
        everyone = self._collective("all_reduce", 4, layout.world_size, 1)
        share = 0.0 if everyone is None else slowest_share(num_hosts(everyone, self.gpu))
        straggler_us = share * (busy_us - exposed_us)
        step_us = busy_us + straggler_us
        sequences = layout.num_micro_batches * layout.micro_batch * layout.shard * layout.replicate
        tokens = sequences * self.work.sequence / self._num_hosts(layout)
        loading_us = max(0.0, tokens / self._loaded_tokens_per_s * 1e6 - step_us)
        step_us += loading_us
        return self._found(
            layout, record, times, step_us,
            compute_us=compute_us, recomputed_us=steps * blocks * (again - tensor_again),
            exposed_us=exposed_us, bubble_us=bubble_us, optimizer_us=optimizer_us,
            straggler_us=straggler_us, loading_us=loading_us,
        )  # fmt: skip

    def _bubble_us(
        self, layout: Layout, times: BlockTimes, stage_us: float, sends_us: float
    ) -> float:
        """How long the slowest rank of a pipeline has nothing to do: while the others' stages,
        which take `stage_us` a micro-batch, begin and end. A micro-batch goes through all stages
        then, and no other hides what it takes from one to the next."""
        others, hops = layout.pipeline - 1, layout.pipeline * layout.stages_a_rank - 1
        if layout.zero_bubble:
            blocks, hops = self.shape.num_blocks / layout.pipeline, others
            return others * blocks * (times.block[1] - times.products_us) / _ZBV_IDLE + (
                2.0 * hops * sends_us
            )
        return others * stage_us / layout.stages_a_rank + 2.0 * hops * sends_us

    def _found(
        self,
        layout: Layout,
        record: BlockRecord,
        times: BlockTimes,
        step_us: float,
        **parts: float,
    ) -> LayoutPrice:
        model_flops = self.shape.num_blocks * sum(times.block_flops) + times.edge_flops
        again = self.shape.num_blocks * times.again_flops if layout.checkpoint else 0.0
        # A record is of one of the ranks that share a block, for one micro-batch.
        per_step = layout.num_micro_batches * layout.world_size // layout.pipeline
        peak = self.gpu.peak_flops("bf16", matrix=True) * layout.world_size
        seconds = step_us * 1e-6
        flops = per_step * (model_flops + again)
        idle_us = parts["bubble_us"] + parts["exposed_us"] + parts["loading_us"]
        busy_s = seconds - idle_us * 1e-6
        saved = self.shape.num_parameters * _SAVED_BYTES
        return LayoutPrice(
            layout=layout,
            gpu=self.gpu.name,
            step_us=step_us,
            mfu=per_step * model_flops / (peak * seconds),
            tokens_per_s=self.work.tokens / seconds,
            memory_bytes=needed_bytes(layout, self.shape, record),
            capacity_bytes=float(self.gpu.memory_bytes),
            energy_j=layout.world_size
            * energy_j(flops / layout.world_size, seconds, self.gpu, busy_s=busy_s),
            checkpoint_s=saved / self._num_hosts(layout) / (self._storage_gbps * 1e9),
            **parts,
        )

    def _num_hosts(self, layout: Layout) -> int:
        return max(1, layout.world_size // self._gpus_per_node)

    def _edges_us(self, layout: Layout, times: BlockTimes) -> float:
        """What comes beside the blocks on the stage that has most of it, a micro-batch."""
        first, last = sum(times.first), sum(times.last)
        are_apart = layout.pipeline > 1 and not layout.zero_bubble
        return max(first, last) if are_apart else first + last

    def _sharding_us(self, layout: Layout, times: BlockTimes, blocks: float) -> tuple[float, float]:
        """What FSDP's collectives take beside compute, and what of them compute does not hide."""
        forward, backward = times.block
        backward += times.again_us if layout.checkpoint else 0.0
        edge = _edge_parameters(layout, self.shape)
        gather = reduce = 0.0
        for parameters, ranks, stride in _gathers(layout, self.shape):
            gather += self._us("all_gather", parameters * _GATHERED_BYTES, ranks, stride)
            reduce += self._us("reduce_scatter", parameters * _REDUCED_BYTES, ranks, stride)
        if layout.offload:
            copied = self.shape.block_parameters / layout.tensor / layout.sharers * _OFFLOADED_BYTES
            gather, reduce = (us + self._copy_us(copied) for us in (gather, reduce))
        edge_gather, edge_reduce = (
            self._us(kind, edge * num_bytes, layout.sharers, layout.tensor)
            for kind, num_bytes in (
                ("all_gather", _GATHERED_BYTES),
                ("reduce_scatter", _REDUCED_BYTES),
            )
        )
        times_each = layout.num_micro_batches if layout.reshard else 1
        reduces_beside = 0.0 if layout.pipeline > 1 else reduce
        in_forward = max(0.0, gather - forward)
        gathers_again = gather if layout.reshard else 0.0
        in_backward = max(0.0, gathers_again + reduces_beside - backward)
        # Nothing hides the first and the last.
        exposed = times_each * (blocks * (in_forward + in_backward) + edge_gather + gather)
        hidden = times_each * blocks * (gather + gathers_again + reduces_beside)
        hidden -= times_each * blocks * (in_forward + in_backward)
        hidden += max(0.0, _rounds(layout).gathers - 2 * times_each) * blocks * gather
        if layout.pipeline > 1:
            # Beside the first stage's gradients those of the last are on the way, if not its only.
            edges = 2 if layout.stages_a_rank > 1 and not layout.zero_bubble else 1
            at_end = blocks * reduce + edges * edge_reduce
            room, exposed = 0.0, exposed + at_end
        else:
            at_end, room = 0.0, blocks * backward
            exposed += times_each * (edge_reduce + reduce)
        if layout.replicate > 1:
            block = self.shape.block_parameters / layout.tensor
            own = (blocks * block + edge) * _REDUCED_BYTES // layout.sharers
            stride = layout.tensor * layout.sharers
            sums = self._us("all_reduce", int(own), layout.replicate, stride)
            exposed += max(0.0, sums - room - at_end) + min(sums, room + at_end) / max(1.0, blocks)
            hidden += min(sums, room)
        return max(0.0, hidden), exposed

    def _copied_us(self, layout: Layout, blocks: float) -> float:
        """What FSDP2 takes to move parameters and gradients in and out of its buffers."""
        steps = layout.num_micro_batches
        edge = _edge_parameters(layout, self.shape)
        all_of_it = edge + blocks * sum(one.parameters for one in _gathers(layout, self.shape))
        own = (edge + blocks * self.shape.block_parameters / layout.tensor) / layout.sharers
        gathers, reduces = _rounds(layout)
        moved = gathers * (_COPY_OUT_BYTES * all_of_it + _OWN_GATHER_BYTES * own)
        moved += reduces * (_COPY_IN_BYTES * all_of_it + _OWN_REDUCE_BYTES * own)
        moved += (steps - reduces) * _SUM_BYTES * all_of_it
        return moved / self._bytes_a_us

    @property
    def _bytes_a_us(self) -> float:
        """What the GPU's memory reaches."""
        return self.gpu.bandwidth_gbps * self.gpu.bandwidth_utilization * 1e3

    def _stretched_us(self, layout: Layout, hidden_us: float) -> float:
        """What compute takes longer for the collectives beside it."""
        beside = self._collective(
            "all_gather",
            self.shape.block_parameters // layout.tensor * _GATHERED_BYTES,
            layout.sharers if layout.sharers > 1 else layout.replicate,
            layout.tensor,
        )
        if beside is None or not hidden_us:
            return 0.0
        left = contention_of(beside, self._collective_us(beside), self.gpu)
        return hidden_us * (1.0 - left.sms_left)

    def _sends_us(self, layout: Layout, record: BlockRecord) -> float:
        """One transfer between stages: a micro-batch's activations."""
        if layout.pipeline == 1:
            return 0.0
        stride = layout.tensor * layout.sharers * layout.replicate
        return self._us("send_recv", record.input_bytes, 2, stride)

    def _optimizer_us(self, layout: Layout) -> float:
        blocks = self.shape.num_blocks / layout.pipeline * self.shape.block_parameters
        own = (blocks + self.shape.edge_parameters) / layout.tensor / layout.sharers
        if layout.offload:
            in_host = min(layout.world_size, self._gpus_per_node)
            return own * in_host * _ADAM_BYTES / (_HOST_GBPS * 1e3)
        return own * _ADAM_BYTES / self._bytes_a_us

    # -- transfers

    def _copy_us(self, num_bytes: float) -> float:
        """From the host, or to it."""
        count = int(num_bytes / DTYPE_BYTES["float32"])
        return self._collective_us(
            Kernel.rows(
                KernelClass.COPY,
                "memcpy_h2d",
                1,
                count,
                dtype="float32",
                bytes_read=int(num_bytes),
                bytes_written=int(num_bytes),
                flops=0,
            )
        )

    def _us(self, kind: str, num_bytes: int, ranks: int, stride: int) -> float:
        found = self._collective(kind, num_bytes, ranks, stride)
        return 0.0 if found is None else self._collective_us(found)

    def _collective(self, kind: str, num_bytes: int, ranks: int, stride: int) -> Kernel | None:
        """One of a group whose neighbours lie so many ranks apart; None in a group of one."""
        if ranks <= 1 or num_bytes < 1:
            return None
        step = f"/{stride}" if stride > 1 else ""
        members = f"0..{(ranks - 1) * stride}{step}"
        return Kernel.collective(
            kind, int(num_bytes), ranks, ranks=members, gpus_per_node=self._gpus_per_node
        )

    def _priced_collective(self, collective: Kernel) -> float:
        [estimate] = self._predict([collective])
        return estimate.latency_us
