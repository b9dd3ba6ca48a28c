"""What a step of a server costs: the recorded kernels, priced again for what the step holds."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from neusight.inference.states import RecurrentLayer
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    AttentionSize,
    CollectiveSize,
    GemmSize,
    Kernel,
    KernelClass,
)
from neusight.predictors.physics.communication.collective import direct_us
from neusight.predictors.predictor import Predictor
from neusight.serving.fusion import cached_heads, engine_launches, with_attention
from neusight.serving.launches import (
    EXPERTS,
    SCAN,
    BatchTotals,
    FittedKernel,
    LaunchedKernel,
    RecordedPoint,
    aligned,
    fitted_kernels,
    for_each_sequence,
)
from neusight.serving.parallel import stages_of, tensor_parallel
from neusight.serving.quantization import Adapters, adapted, quantized
from neusight.serving.scheduler import BOUNDS, StepBatch, StepCost
from neusight.timeline.host import HostProfile

EngineName = Literal["eager", "compiled", "vllm"]

_COMPUTE, _MEMORY, _KV, _NETWORK, _HOST = range(len(BOUNDS))
_PARTS = {"compute": _COMPUTE, "memory": _MEMORY, "launch": _HOST, "communication": _NETWORK}


@dataclass(frozen=True)
class Engine:
    """What runs the model: its kernels, and the host's part of a step.

    `overlaps` says that the host prepares a step while the GPU runs the one before (vLLM's
    asynchronous scheduling).
    """

    name: EngineName = "vllm"
    overlaps: bool = True


#: Tokens of the batches for which vLLM captures a CUDA graph: 1, 2, 4, then by 8 to 256, by 16 to
#: 512 (vllm/config/compilation.py; the engine of data/llm_serving has these).
_GRAPH_SIZES: tuple[int, ...] = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
#: Above them prices are kept for every so many tokens.
_TOKEN_STEP = 8

#: Host time of a vLLM step, and of each sequence in it: schedule, block tables, inputs, sampled
#: tokens, detokenizing in another process. A prior: about a millisecond of a step with a few
#: sequences on a server of 2023 (vLLM's blog on V1, 2025-01-27, gives no figures by part).
_VLLM_STEP_US = 800.0
_VLLM_SEQUENCE_US = 8.0
#: What is left of it between two steps where the rest overlaps: the inputs' copy, the launch of the
#: graph, the sampler's start. A prior.
_VLLM_EXPOSED_US = 150.0
#: Host time of a home-made loop around a compiled or eager model, each step and sequence. A prior.
_LOOP_STEP_US = 100.0
_LOOP_SEQUENCE_US = 2.0

#: Kernels of a sampler beside those that pass over the logits: temperatures, penalties, gathers of
#: what was sampled (data/llm_layers: 25 us for a single sequence on RTX 4090).
_SAMPLER_SMALL_KERNELS = 10

#: How much of the reads of a query head beyond the first of its group leaves the L2, where a launch
#: for prompts and decodes together shares no keys between heads (FlashAttention-2 with pages):
#: decodes of 32 query and 8 key heads take 1.77 times as long beside a prompt (data/llm_layers, RTX
#: 4090, up to 64 sequences of 1024 tokens and more; 3.9 times with 128).
_UNSHARED_READS = 0.25
#: FlashAttention-3 packs the heads of a group in every launch.
_PACKS_SINCE = 9
#: Queries of a tile: a chunk that is shorter costs a whole one, and its keys are not split.
_TILE_Q = 128

#: vLLM's all-reduce between GPUs that NVLink joins: up to these bytes every rank reads all others'
#: (one shot), up to the limit in two halves (vllm/csrc/custom_all_reduce.cuh).
_CUSTOM_LIMIT = 2**23
_ONE_SHOT_BYTES = {2: _CUSTOM_LIMIT, 4: 2**19, 8: 2**18}

#: Nodes an octave at which attention is priced; between them it is interpolated.
_NODES = 8


class AttentionLayer(NamedTuple):
    """An attention of one layer over the cache; `window` is how far it looks (0: all)."""

    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: str
    variant: str
    window: int = 0

    @property
    def cached_elements(self) -> int:
        """Elements in the cache of each token. Where values are a part of the keys (latent
        attention), they are not kept again."""
        if self.kv_heads == 1 and self.head_dim > self.head_dim_v:
            return self.head_dim
        return self.kv_heads * (self.head_dim + self.head_dim_v)

    def cached_bytes(self, kv_dtype: str) -> int:
        """Bytes of a token in the cache, which is of that type ("": of the layer's own)."""
        return int(self.cached_elements * DTYPE_BYTES[kv_dtype or self.dtype])


@dataclass(frozen=True)
class StepProgram:
    """What a step launches as functions of the batch, each with how often: `kernels` for tokens,
    `attentions` for each layer's cache, `recurrences` for each layer's state.

    `host_us` is what the host takes for it eagerly (0: it was not recorded). `kv_bytes_per_token`,
    `vocabulary` and `weight_bytes` are those of one GPU.
    """

    kernels: tuple[tuple[FittedKernel, int], ...]
    attentions: tuple[tuple[AttentionLayer, int], ...]
    recurrences: tuple[tuple[RecurrentLayer, int], ...]
    kv_bytes_per_token: int
    weight_bytes: int
    vocabulary: int
    widest: int
    host_us: float = 0.0
    ranks: int = 1
    kv_dtype: str = ""

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Names of the kernels that no pattern knew."""
        names = (kernel.base.name for kernel, _ in self.kernels if kernel.is_unmatched)
        return tuple(dict.fromkeys(names))

    @property
    def window(self) -> int:
        """How far the layers look that do not look at everything, the farthest (0: none)."""
        return max((layer.window for layer, _ in self.attentions), default=0)

    @property
    def window_share(self) -> float:
        """Of the bytes of a token in the cache, what those layers hold."""
        held = sum(
            n * layer.cached_bytes(self.kv_dtype) for layer, n in self.attentions if layer.window
        )
        return held / self.kv_bytes_per_token if held else 0.0

    @property
    def state_bytes(self) -> int:
        """Bytes of a sequence's states, whatever its length."""
        return sum(count * layer.state_bytes for layer, count in self.recurrences)

    @property
    def num_launches(self) -> int:
        """Kernels of a step."""
        scans = sum(count * len(layer.of_sequences(1)) for layer, count in self.recurrences)
        return sum(n for _, n in self.kernels) + sum(n for _, n in self.attentions) + scans


def pipeline_programs(
    points: Sequence[RecordedPoint],
    *,
    engine: Engine,
    parameter_bytes: int,
    stages: int = 1,
    ranks: int = 1,
    expert_parallel: bool = False,
    quantization: str = "",
    kv_dtype: str = "",
    host_us: float = 0.0,
    windows: Sequence[int] = (),
    recurrences: Mapping[str, RecurrentLayer] | None = None,
    adapters: Adapters | None = None,
) -> tuple[StepProgram, ...]:
    """The steps of a model that was recorded at some points, as an engine runs them in each of
    `stages` on one of `ranks` GPUs, which share each expert or (`expert_parallel`) the experts.
    `windows` is how far each attention looks, in order (0: all); `recurrences` are the layers with
    a state, by module."""
    shared = {name: layer.shared(ranks) for name, layer in (recurrences or {}).items()}
    parts: list[list[RecordedPoint]] = [[] for _ in range(stages)]
    layers: list[AttentionLayer] = []
    before = after = adapter_bytes = 0
    for point in aligned(points):
        tokens = point.sequences * point.tokens
        cached: list[int] = []
        if engine.name == "eager":
            launches = with_attention(point.launches, sequences=point.sequences)
            cached = _cached_heads(launches)
        else:
            launches = engine_launches(
                point.launches,
                tokens=tokens,
                sequences=point.sequences,
                merges=engine.name == "vllm",
            )
        before = _weight_bytes(launches)
        if quantization:
            launches = quantized(launches, quantization)
        after = _weight_bytes(launches)
        launches = tensor_parallel(launches, ranks, expert_parallel=expert_parallel)
        without = _weight_bytes(launches)
        if adapters is not None:
            launches = adapted(launches, adapters)
        adapter_bytes = _weight_bytes(launches) - without
        layers = layers or _layers(launches, cached, ranks, windows)
        of_stages = stages_of(launches, stages, tokens=tokens) if stages > 1 else [launches]
        for part, launched in zip(parts, of_stages, strict=True):
            part.append(replace(point, launches=launched))
    others = (parameter_bytes - before) // ranks  # embedding, norms, biases
    weights = (parameter_bytes - before + after) // ranks + adapter_bytes - others
    all_products = sum(_weight_bytes(part[0].launches) for part in parts) or 1
    found: list[StepProgram] = []
    for at, part in enumerate(parts):
        num_layers = sum(isinstance(item.kernel.size, AttentionSize) for item in part[0].launches)
        own = weights * _weight_bytes(part[0].launches) // all_products
        if at == 0:
            own += others
            if stages > 1:
                ends = parts[-1][0].launches
                logits = next(
                    item for item in reversed(ends) if isinstance(item.kernel.size, GemmSize)
                )
                own += max(0, _weight_bytes([logits]) - others)  # if they are tied
        scans = [shared[item.module] for item in part[0].launches if item.kernel.name == SCAN]
        program = _of_stage(
            part, layers[:num_layers], scans, kv_dtype, own, engine=engine, is_last=at == stages - 1
        )
        layers = layers[num_layers:]
        found.append(replace(program, host_us=host_us / stages, ranks=ranks))
    return tuple(found)


def _of_stage(
    points: Sequence[RecordedPoint],
    layers: Sequence[AttentionLayer],
    scans: Sequence[RecurrentLayer],
    kv_dtype: str,
    weight_bytes: int,
    *,
    engine: Engine,
    is_last: bool,
) -> StepProgram:
    """What the stage's kernels say; the last one has the logits."""
    launches = points[0].launches
    fitted = list(fitted_kernels(points))
    products = [item.kernel.size for item in launches if isinstance(item.kernel.size, GemmSize)]
    words = products.pop().n if products and is_last else 0
    if words and engine.name == "vllm":
        fitted += _sampler(words)
    return StepProgram(
        kernels=tuple(Counter(fitted).items()),
        attentions=tuple(Counter(layers).items()),
        recurrences=tuple(Counter(scans).items()),
        kv_bytes_per_token=sum(layer.cached_bytes(kv_dtype) for layer in layers),
        weight_bytes=weight_bytes,
        vocabulary=words,
        widest=max((size.n + size.k for size in products), default=0),
        kv_dtype=kv_dtype,
    )


def _cached_heads(launches: Sequence[LaunchedKernel]) -> list[int]:
    """Heads of keys in the cache of each attention, as recorded."""
    found: list[int] = []
    start = 0
    for at, launch in enumerate(launches):
        if launch.kernel.kernel_class is KernelClass.ATTENTION:
            found.append(cached_heads(launch, launches[start:at]))
            start = at + 1
    return found


def _layers(
    launches: Sequence[LaunchedKernel], cached: Sequence[int], ranks: int, windows: Sequence[int]
) -> list[AttentionLayer]:
    found: list[AttentionLayer] = []
    for launch in launches:
        size = launch.kernel.size
        if isinstance(size, AttentionSize):
            at = len(found)
            kv_heads = max(1, cached[at] // ranks) if cached else size.kv_heads
            window = windows[at] if at < len(windows) else 0
            found.append(
                AttentionLayer(
                    size.heads,
                    kv_heads,
                    size.head_dim,
                    size.head_dim_v,
                    launch.kernel.dtype,
                    launch.kernel.variant,
                    window,
                )
            )
    return found


def _weight_bytes(launches: Sequence[LaunchedKernel]) -> int:
    """Bytes of the weights that the products read."""
    total = 0
    for launch in launches:
        kernel, size = launch.kernel, launch.kernel.size
        if isinstance(size, GemmSize) and (size.batch == 1 or kernel.name == EXPERTS):
            total += kernel.bytes_read - int(
                size.batch * size.m * size.k * DTYPE_BYTES[kernel.dtype]
            )
    return total


def _sampler(words: int) -> list[FittedKernel]:
    """The logits as float32, the choice of a token, and small kernels around them."""
    cast = Kernel.elementwise("copy", words, dtype="bfloat16", out_dtype="float32")
    choices = Kernel.rows(  # of two sequences: a row for each
        KernelClass.REDUCTION, "argmax", 2, words, dtype="float32",
        bytes_read=8 * words, bytes_written=16,
    )  # fmt: skip
    small = for_each_sequence(Kernel.elementwise("sampling", 1, dtype="float32"), 1)
    return [
        for_each_sequence(cast, 1),
        for_each_sequence(choices, 2),
        *[small] * _SAMPLER_SMALL_KERNELS,
    ]


#: Microseconds by bound, in the order of `BOUNDS`.
_Times = tuple[float, ...]


def _sum(one: _Times, other: _Times) -> _Times:
    return tuple(a + b for a, b in zip(one, other, strict=True))


class StepPrices:
    """Prices steps; each part once for what it depends on.

    Kernels follow the tokens of the batch (of a CUDA graph: those that it was captured for), the
    sequences, or what attention reads; attention is priced on a grid and interpolated.
    """

    def __init__(
        self,
        program: StepProgram,
        gpu: GPU,
        predictor: Predictor,
        host: HostProfile,
        engine: Engine,
    ) -> None:
        self.program = program
        self.gpu = gpu
        self.predictor = predictor
        self.host = host
        self.engine = engine
        self._by_tokens = [item for item in program.kernels if _key(item[0]) == "tokens"]
        self._by_sequences = [item for item in program.kernels if _key(item[0]) == "sequences"]
        self._by_context = [item for item in program.kernels if _key(item[0]) == "context"]
        self._token_times: dict[int, _Times] = {}
        self._sequence_times: dict[int, _Times] = {}
        self._context_times: dict[BatchTotals, _Times] = {}
        self._attention: dict[tuple[object, ...], float] = {}
        self._scans: dict[tuple[RecurrentLayer, int, bool], float] = {}
        self._gaps_us = program.num_launches * host.kernel_gap_us
        self._shares_heads = gpu.nvidia_major >= _PACKS_SINCE or gpu.vendor != "nvidia"

    def __call__(self, batch: StepBatch) -> StepCost:
        """Microseconds of the step and what bounds it."""
        us = [*self._kernels(batch)]
        us[_KV] = self._attention_us(batch) + self._scans_us(batch)
        us[_HOST] += self._gaps_us
        gpu_us = sum(us)
        latency_us = self._with_host(batch, gpu_us)
        waited_us = latency_us - gpu_us
        largest = max(range(len(us)), key=lambda at: us[at])
        return StepCost(latency_us, _HOST if waited_us > gpu_us else largest, gpu_us)

    def unmatched_share(self, batch: StepBatch) -> float:
        """What the kernels that no pattern knew take of the GPU's time in the step."""
        kernels = [item for item in self.program.kernels if item[0].is_unmatched]
        totals = BatchTotals(batch.sampled, batch.tokens, batch.context, batch.context)
        return sum(self._priced(kernels, totals)) / self(batch).gpu_us

    # -- the host ----------------------------------------------------------------------------------

    def _with_host(self, batch: StepBatch, gpu_us: float) -> float:
        sequences = batch.decodes + len(batch.chunks)
        if self.engine.name == "vllm":
            own_us = _VLLM_STEP_US + _VLLM_SEQUENCE_US * sequences
            if not self._is_graph(batch.tokens):
                gpu_us = max(gpu_us, self.program.num_launches * self.host.triton_us)
            if self.engine.overlaps:
                return max(gpu_us + _VLLM_EXPOSED_US, own_us)
            return gpu_us + own_us
        loop_us = _LOOP_STEP_US + _LOOP_SEQUENCE_US * sequences
        if self.engine.name == "compiled":
            launches = self.program.num_launches
            graph_us = self.host.graph_tree_us + launches * self.host.graph_kernel_us
            model_us = self.host.compiled_call_us + graph_us + self.host.graph_launch_us
        else:
            model_us = self.program.host_us
        return max(gpu_us, model_us) + loop_us

    def _is_graph(self, tokens: int) -> bool:
        return tokens <= _GRAPH_SIZES[-1]

    def _padded(self, tokens: int) -> int:
        """Tokens that the kernels run for."""
        if self.engine.name == "vllm" and self._is_graph(tokens):
            return _GRAPH_SIZES[bisect_left(_GRAPH_SIZES, tokens)]
        if tokens <= _GRAPH_SIZES[-1]:
            return tokens
        return -(-tokens // _TOKEN_STEP) * _TOKEN_STEP

    # -- kernels -----------------------------------------------------------------------------------

    def _kernels(self, batch: StepBatch) -> _Times:
        tokens = self._padded(max(1, batch.tokens))
        if tokens not in self._token_times:
            self._token_times[tokens] = self._priced(self._by_tokens, BatchTotals(1, tokens))
        times = self._token_times[tokens]
        sampled = batch.sampled + batch.decodes * (batch.queries - 1)
        if sampled:
            if sampled not in self._sequence_times:
                totals = BatchTotals(sampled, sampled)
                self._sequence_times[sampled] = self._priced(self._by_sequences, totals)
            times = _sum(times, self._sequence_times[sampled])
        return _sum(times, self._of_context(batch)) if self._by_context else times

    def _of_context(self, batch: StepBatch) -> _Times:
        """Kernels over all that is cached: masks, copies of the cache."""
        context = batch.context + sum(chunk.context for chunk in batch.chunks)
        pairs = batch.context * batch.queries
        pairs += sum(chunk.context * chunk.tokens for chunk in batch.chunks)
        sequences = batch.decodes + len(batch.chunks)
        totals = BatchTotals(sequences, batch.tokens, _rounded(context), _rounded(pairs))
        if totals not in self._context_times:
            self._context_times[totals] = self._priced(self._by_context, totals)
        return self._context_times[totals]

    def _priced(self, kernels: Sequence[tuple[FittedKernel, int]], totals: BatchTotals) -> _Times:
        launched = [(kernel.at(totals), count) for kernel, count in kernels]
        us = [0.0] * len(BOUNDS)
        for (kernel, count), estimate in zip(
            launched, self.predictor.predict([kernel for kernel, _ in launched], self.gpu),
            strict=True,
        ):  # fmt: skip
            time_us = estimate.latency_us
            if self.engine.name == "vllm" and isinstance(kernel.size, CollectiveSize):
                time_us = min(time_us, self._custom_us(kernel))
            us[_PARTS.get(estimate.bound, _MEMORY)] += count * time_us
        return tuple(us)

    def _custom_us(self, kernel: Kernel) -> float:
        """vLLM's own all-reduce; infinite where it does not run."""
        size = kernel.size
        assert isinstance(size, CollectiveSize)
        if kernel.name != "all_reduce" or size.num_bytes > _CUSTOM_LIMIT:
            return math.inf
        in_two = size.num_bytes > _ONE_SHOT_BYTES.get(size.world_size, 0)
        return direct_us(size, self.gpu, in_two=in_two)

    # -- attention ---------------------------------------------------------------------------------

    def _attention_us(self, batch: StepBatch) -> float:
        total = 0.0
        for layer, count in self.program.attentions:
            us = sum(self._chunk_us(layer, chunk) for chunk in batch.chunks)
            if batch.decodes:
                mean = batch.context / batch.decodes
                decode_us = self._decode_us(layer, batch.decodes, mean, batch.queries)
                if batch.chunks and not self._shares_heads and self.engine.name == "vllm":
                    group = layer.heads / layer.kv_heads
                    decode_us *= 1.0 + _UNSHARED_READS * (group - 1.0)
                us += decode_us
            total += us * count
        return total

    # -- states ------------------------------------------------------------------------------------

    def _scans_us(self, batch: StepBatch) -> float:
        """Of the tokens of prompts, and of each sequence, whose state is read and written."""
        tokens = sum(chunk.tokens for chunk in batch.chunks)
        total = 0.0
        for layer, count in self.program.recurrences:
            us = sum(
                self._scan_us(layer, sequences, of_tokens=False)
                for sequences in (batch.decodes, len(batch.chunks))
            )
            total += count * (us + self._scan_us(layer, tokens, of_tokens=True))
        return total

    def _scan_us(self, layer: RecurrentLayer, count: int, *, of_tokens: bool) -> float:
        if not count:
            return 0.0
        count = self._padded(count)
        key = (layer, count, of_tokens)
        if key not in self._scans:
            kernels = layer.of_tokens(count) if of_tokens else layer.of_sequences(count)
            estimates = self.predictor.predict(list(kernels), self.gpu)
            self._scans[key] = sum(estimate.latency_us for estimate in estimates)
        return self._scans[key]

    # -- attention over the cache ------------------------------------------------------------------

    def _decode_us(self, layer: AttentionLayer, count: int, context: float, queries: int) -> float:
        seen = min(context, layer.window) if layer.window else context
        return self._between(
            lambda n, kv: self._priced_attention(layer, n, queries, max(kv, queries)),
            count, max(1.0, seen),
        )  # fmt: skip

    def _chunk_us(self, layer: AttentionLayer, chunk: tuple[int, int]) -> float:
        tokens, context = chunk
        whole = max(tokens, _TILE_Q) if context > tokens else tokens
        seen = min(context, layer.window + tokens) if layer.window else context
        return self._between(
            lambda q, kv: self._priced_attention(layer, 1, q, max(q, kv)), whole, seen
        )

    def _between(self, price: Callable[[int, int], float], first: float, second: float) -> float:
        """The price between four nodes, as a power of each of both."""
        (a, b, x), (c, d, y) = _nodes(first), _nodes(second)
        low = price(a, c) if y == 0 else price(a, c) ** (1 - y) * price(a, d) ** y
        if x == 0:
            return low
        high = price(b, c) if y == 0 else price(b, c) ** (1 - y) * price(b, d) ** y
        return float(low ** (1 - x) * high**x)

    def _priced_attention(
        self, layer: AttentionLayer, sequences: int, queries: int, context: int
    ) -> float:
        """The price of a node, found with those behind it: a batch costs little more than one."""
        key = (layer, sequences, queries, context)
        if key not in self._attention:
            place = math.ceil(math.log2(context) * _NODES)
            wanted = [context, *(_node(place + at) for at in range(1, 2 * _NODES))]
            wanted = [kv for kv in dict.fromkeys(wanted) if kv >= queries]
            kernels = [self._attention_kernel(layer, sequences, queries, kv) for kv in wanted]
            estimates = self.predictor.predict(kernels, self.gpu)
            for kv, estimate in zip(wanted, estimates, strict=True):
                self._attention.setdefault((layer, sequences, queries, kv), estimate.latency_us)
        return self._attention[key]

    def _attention_kernel(
        self, layer: AttentionLayer, sequences: int, queries: int, context: int
    ) -> Kernel:
        name = "flash_attention"
        if self.engine.name == "vllm":
            if self.gpu.nvidia_major >= _PACKS_SINCE:
                name = "flash_attention_3"
        else:
            name = layer.variant or name
        kernel = Kernel.attention(
            sequences, layer.heads, layer.kv_heads, queries, context, layer.head_dim,
            causal=queries > 1, dtype=layer.dtype, head_dim_v=layer.head_dim_v,
            name=name,  # type: ignore[arg-type]  # a variant of attention
        )  # fmt: skip
        tokens = sequences * context
        plain = tokens * layer.kv_heads * (layer.head_dim + layer.head_dim_v)
        plain_bytes = plain * DTYPE_BYTES[layer.dtype]
        kept = tokens * layer.cached_bytes(self.program.kv_dtype)
        return replace(kernel, bytes_read=kernel.bytes_read - int(plain_bytes - kept))


@dataclass(frozen=True)
class PipelinePrices:
    """Prices steps that pass the stages of a pipeline, one after the other; the engine prepares
    each once, before the first."""

    stages: tuple[StepPrices, ...]

    def __call__(self, batch: StepBatch) -> StepCost:
        """Microseconds of the step in all stages and in each."""
        costs = [stage(batch) for stage in self.stages]
        stages_us = (costs[0].latency_us, *(cost.gpu_us for cost in costs[1:]))
        longest = max(costs, key=lambda cost: cost.gpu_us)
        gpu_us = sum(cost.gpu_us for cost in costs) / len(costs)
        return StepCost(sum(stages_us), longest.bound, gpu_us, stages_us)


def _key(kernel: FittedKernel) -> str:
    sequences, tokens, context = kernel.depends_on
    if context or kernel.repeats:
        return "context"
    return "sequences" if sequences and not tokens else "tokens"


def _rounded(value: float) -> float:
    """To one of the nodes: what grows a little in each step is priced once."""
    return float(_node(round(math.log2(value) * _NODES))) if value >= 1 else 0.0


def _node(at: int) -> int:
    return max(1, round(math.pow(2.0, at / _NODES)))


def _nodes(value: float) -> tuple[int, int, float]:
    """The nodes below and above, and how far between them it lies, in logarithms. Small whole
    numbers are nodes."""
    if value <= _NODES:
        low = max(1, int(value))
        return low, low + 1, max(0.0, value - low)
    place = math.log2(value) * _NODES
    low = math.floor(place)
    below, above = _node(low), _node(low + 1)
    if below == above or value <= below:
        return below, above, 0.0
    return below, above, min(1.0, math.log(value / below) / math.log(above / below))
