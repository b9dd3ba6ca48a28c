"""A server's steps, one after the other: what vLLM's scheduler puts into each, and its end."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from neusight.predictors.errors import OptionError
from neusight.serving.load import InferenceRequest

#: What a step can be limited by, in the order of a cost's parts.
BOUNDS = ("compute", "memory", "kv", "network", "host")


class Chunk(NamedTuple):
    """Tokens of one prompt that enter in a step, and all of it that is computed then."""

    tokens: int
    context: int


class StepBatch(NamedTuple):
    """What one step holds: `decodes` sequences that get `queries` tokens each, with `context`
    tokens together after it, and chunks of prompts; `sampled` sequences get a token at its end."""

    decodes: int
    context: int
    chunks: tuple[Chunk, ...] = ()
    sampled: int = 0
    queries: int = 1

    @property
    def tokens(self) -> int:
        """Tokens that enter."""
        return self.decodes * self.queries + sum(chunk.tokens for chunk in self.chunks)


class StepCost(NamedTuple):
    """Microseconds of a step, and what they are bound by: a position in `BOUNDS`. `gpu_us` is how
    long each GPU works, `stages_us` what each stage of a pipeline takes (empty: it is one)."""

    latency_us: float
    bound: int
    gpu_us: float
    stages_us: tuple[float, ...] = ()


class StepPricing(Protocol):
    """What a step costs."""

    def __call__(self, batch: StepBatch, /) -> StepCost:
        """The cost of that batch."""
        ...


@dataclass(frozen=True)
class SchedulerOptions:
    """vLLM's settings (v1): sequences and tokens of a step at most, blocks of the cache.

    `reserves_input`: a request starts only when its whole prompt fits into the free blocks.
    `watermark` is the share of blocks that a start leaves free. `drafts` tokens are proposed for
    each sequence and step, each accepted with `acceptance` if those before it are. Of the bytes of
    a token, layers that look `window` tokens back hold `window_share`; they keep no more tokens.
    `state_blocks` hold a sequence's state, however long it is.
    A pipeline of `stages` has as many batches under way.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    chunked_prefill: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    reserves_input: bool = True
    keeps_prefixes: bool = True
    drafts: int = 0
    acceptance: float = 0.0
    seed: int = 0
    window: int = 0
    window_share: float = 0.0
    stages: int = 1
    state_blocks: int = 0

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs * (1 + self.drafts):
            raise OptionError(
                f"a step takes {self.max_num_batched_tokens} tokens at most, fewer than the "
                f"{self.max_num_seqs} sequences need that may run; raise --max-num-batched-tokens "
                "or lower --max-num-seqs"
            )

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens.

        >>> SchedulerOptions(num_blocks=10).blocks_of(17)
        2
        """
        if not self.window_share:
            return -(-tokens // self.block_size) + self.state_blocks
        return int(self.blocks_of_each(np.array(tokens)))

    def blocks_of_each(self, tokens: np.ndarray) -> np.ndarray:
        """The same for several sequences."""
        blocks: np.ndarray = -(-tokens // self.block_size) + self.state_blocks
        if not self.window_share:
            return blocks
        most = -(-self.window // self.block_size) + 1 + self.state_blocks  # it begins inside one
        unseen = np.maximum(0, blocks - most)
        windowed: np.ndarray = blocks - (unseen * self.window_share).astype(np.int64)
        return windowed


class ServedRequest(NamedTuple):
    """What became of a request, in seconds of the server's clock."""

    request: InferenceRequest
    arrival_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    preemptions: int

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def latency_s(self) -> float:
        """From arrival to the last token."""
        return self.last_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time from a token to the next; None of a single one."""
        more = self.request.output_tokens - 1
        return (self.last_token_s - self.first_token_s) / more if more else None


class StepRecord(NamedTuple):
    """One step as it was: start and length, what the server held (`running` of all that is under
    way), and what waited. `lane` says which of a pipeline's batches it was."""

    start_s: float
    latency_s: float
    running: int
    waiting: int
    used_blocks: int
    prompt_tokens: int
    new_tokens: int
    preempted: int
    bound: int
    gpu_s: float
    lane: int = 0


@dataclass(frozen=True)
class ServerRun:
    """All that a server did: requests in the order of their end, steps, and the times between two
    tokens of a sequence with how often each occurred."""

    served: tuple[ServedRequest, ...]
    steps: tuple[StepRecord, ...]
    gaps_s: tuple[tuple[float, int], ...]
    num_blocks: int

    @property
    def end_s(self) -> float:
        """When the last step ended."""
        return max((step.start_s + step.latency_s for step in self.steps), default=0.0)


@dataclass(eq=False)
class _Sequence:
    """A request inside the server."""

    request: InferenceRequest
    arrival_s: float
    emitted: int = 0
    computed: int = 0
    blocks: int = 0
    scheduled_s: float = -1.0
    first_token_s: float = -1.0
    last_token_s: float = -1.0
    preemptions: int = 0

    @property
    def tokens(self) -> int:
        """Those that must be computed before the next can be chosen."""
        return self.request.input_tokens + self.emitted

    @property
    def rank(self) -> tuple[int, float, int]:
        """The order under priorities."""
        return self.request.priority, self.arrival_s, self.request.index


class _Blocks:
    """The blocks of the cache. Freed ones keep their content until they are used again, the one
    that was freed first before others; a sequence's last blocks are freed first."""

    def __init__(self, options: SchedulerOptions) -> None:
        self.free = options.num_blocks
        self.keeps = options.keeps_prefixes
        self._kept: dict[int, int] = {}
        self._order: deque[tuple[int, int]] = deque([(-1, options.num_blocks)])

    def take(self, count: int) -> None:
        """Uses so many free blocks."""
        self.free -= count
        while count:
            owner, size = self._order.popleft()
            size = size if owner < 0 else self._kept.get(owner, 0)
            used = min(size, count)
            count -= used
            if owner >= 0:
                self._kept[owner] = size - used
                if size == used:
                    del self._kept[owner]
            if size > used:
                self._order.appendleft((owner, size - used))

    def give_back(self, count: int, owner: int = -1) -> None:
        """Frees blocks; those of an `owner` (a request that will come again) can be found again."""
        self.free += count
        if owner >= 0 and self.keeps:
            self._kept[owner] = count
            self._order.append((owner, count))
        else:
            self._order.append((-1, count))

    def found_again(self, owner: int) -> int:
        """Takes back what is left of an owner's blocks; how many."""
        count = self._kept.pop(owner, 0)
        if count:
            self._order = deque(item for item in self._order if item[0] != owner)
            self.free -= count
        return count

    def kept(self, owner: int) -> int:
        """How many of an owner's blocks are left."""
        return self._kept.get(owner, 0)


class _Queue:
    """Requests that have not started or were preempted, in order."""

    def __init__(self, *, by_priority: bool) -> None:
        self._heap: list[tuple[tuple[float, ...], int, _Sequence]] = []
        self._by_priority = by_priority
        self._count = 0
        self._front = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: _Sequence, *, first: bool = False) -> None:
        """Adds one at the end, or before all others."""
        self._count += 1
        self._front -= first
        place = float(self._front if first else self._count)
        key: tuple[float, ...] = sequence.rank if self._by_priority else (place,)
        heapq.heappush(self._heap, (key, self._count, sequence))

    def first(self) -> _Sequence:
        """The one whose turn it is."""
        return self._heap[0][2]

    def pop(self) -> _Sequence:
        """Takes it out."""
        return heapq.heappop(self._heap)[2]


def simulate(
    requests: Sequence[InferenceRequest], options: SchedulerOptions, price: StepPricing
) -> ServerRun:
    """Serves all requests by continuous batching. OptionError for one that can never be served,
    with the limit that binds.

    >>> price = lambda batch: StepCost(1000.0 * batch.tokens, 1, 0.0)
    >>> run = simulate([InferenceRequest(0, 0.0, 3, 2)], SchedulerOptions(num_blocks=4), price)
    >>> run.served[0].ttft_s, run.end_s
    (0.003, 0.004)
    """
    for request in requests:
        require_servable(request, options)
    return _BatchingServer(options, price, requests).run()


def require_servable(request: InferenceRequest, options: SchedulerOptions) -> None:
    """OptionError where the request, or a later turn of it, can never be served."""
    if request.next_turn is not None:
        require_servable(request.next_turn, options)
    whole = request.input_tokens + request.output_tokens
    if whole > options.max_model_len:
        raise OptionError(
            f"request {request.index} has {request.input_tokens:,} tokens and asks for "
            f"{request.output_tokens:,}: more than the {options.max_model_len:,} of "
            "--max-model-len; it can never be served"
        )
    if options.blocks_of(whole) > options.num_blocks:
        raise OptionError(
            f"request {request.index} needs {options.blocks_of(whole):,} blocks of the KV cache, "
            f"which has {options.num_blocks:,} ({options.num_blocks * options.block_size:,} "
            "tokens): it can never be served. Use more GPUs (--tp), a larger GPU, fewer bits "
            "(--quantization, --kv-cache-dtype fp8) or shorter requests."
        )
    if not options.chunked_prefill and request.input_tokens > options.max_num_batched_tokens:
        raise OptionError(
            f"request {request.index} has {request.input_tokens:,} tokens, a step takes "
            f"{options.max_num_batched_tokens:,} and prompts are not cut: it can never be served. "
            "Raise --max-num-batched-tokens or leave chunked prefill on."
        )


class ServerState:
    """What arrives at a server, and what it did so far."""

    def __init__(
        self, options: SchedulerOptions, price: StepPricing, requests: Sequence[InferenceRequest]
    ) -> None:
        self.options = options
        self.price = price
        self.arriving = [(one.arrival_s, one.index, one) for one in requests]
        heapq.heapify(self.arriving)
        self.served: list[ServedRequest] = []
        self.steps: list[StepRecord] = []
        self.gaps: Counter[float] = Counter()

    def arrived(self, now_s: float) -> Iterator[tuple[float, InferenceRequest]]:
        """Takes the requests that came until now, each with its time."""
        while self.arriving and self.arriving[0][0] <= now_s:
            time_s, _, request = heapq.heappop(self.arriving)
            yield time_s, request

    def finish(self, served: ServedRequest) -> None:
        """A request has its answer; its user may send the next."""
        self.served.append(served)
        turn = served.request.next_turn
        if turn is not None:
            time_s = served.last_token_s + served.request.think_s
            heapq.heappush(self.arriving, (time_s, turn.index, turn))

    def result(self) -> ServerRun:
        """All that it did."""
        steps = sorted(self.steps, key=lambda step: step.start_s)
        gaps = tuple(sorted(self.gaps.items()))
        return ServerRun(tuple(self.served), tuple(steps), gaps, self.options.num_blocks)


class _BatchingServer(ServerState):
    """A server between steps: what waits and is cached, and the batches under way, one for each
    stage of its pipeline."""

    def __init__(
        self, options: SchedulerOptions, price: StepPricing, requests: Sequence[InferenceRequest]
    ) -> None:
        super().__init__(options, price, requests)
        self.waiting = _Queue(by_priority=options.policy == "priority")
        self.blocks = _Blocks(options)
        self.lanes = [_Lane(self, number) for number in range(options.stages)]
        self.stages_free_s = [0.0] * options.stages
        self.random = np.random.default_rng(options.seed)

    @property
    def num_running(self) -> int:
        """Sequences that have started and not ended, of all batches."""
        return sum(lane.num_running for lane in self.lanes)

    def run(self) -> ServerRun:
        """Every step as vLLM's scheduler fills it."""
        while True:
            lane = min(self.lanes, key=lambda one: (one.now_s, one.is_idle, one.number))
            lane.complete()
            for time_s, request in self.arrived(lane.now_s):
                self.waiting.add(_Sequence(request, time_s))
            lane.is_idle = not lane.step()
            if lane.is_idle:
                events = [one.now_s for one in self.lanes if not one.is_idle]
                events += [self.arriving[0][0]] if self.arriving else []
                if not events:
                    break
                lane.now_s = max(lane.now_s, min(events))
        return self.result()

    def through_stages(self, start_s: float, cost: StepCost) -> float:
        """When a batch that is scheduled then has passed every stage, after those before it."""
        for at, us in enumerate(cost.stages_us or (cost.latency_us,)):
            start_s = max(start_s, self.stages_free_s[at]) + us * 1e-6
            self.stages_free_s[at] = start_s
        return start_s


class _Lane:
    """The sequences that step together. Those that decode are numpy arrays beside their list, in
    the order in which they started: a step costs a few array operations whatever it holds."""

    def __init__(self, server: _BatchingServer, number: int) -> None:
        self.server = server
        self.number = number
        self.options = server.options
        self.blocks = server.blocks
        self.now_s = 0.0
        self.is_idle = False
        self.decoding: list[_Sequence] = []
        self.context = np.zeros(0, dtype=np.int64)
        self.left = np.zeros(0, dtype=np.int64)
        self.held = np.zeros(0, dtype=np.int64)
        self.partial: _Sequence | None = None
        self.prefills: list[tuple[_Sequence, int]] = []
        self.under_way: StepRecord | None = None

    @property
    def num_running(self) -> int:
        """Sequences that have started and not ended."""
        return len(self.decoding) + len(self.prefills) + (self.partial is not None)

    def step(self) -> bool:
        """Fills a batch and moves to its end; whether there was anything to do."""
        queries = 1 + self.options.drafts
        preempted = self._grow(queries)
        num_decodes = len(self.decoding)
        budget = self.options.max_num_batched_tokens - num_decodes * queries
        prefills: list[tuple[_Sequence, int]] = []
        if self.partial is not None:
            chunk = min(self.partial.tokens - self.partial.computed, budget)
            if chunk and self._hold(self.partial, self.partial.computed + chunk):
                prefills.append((self.partial, chunk))
                budget -= chunk
            elif chunk:
                self._preempt_partial()
                preempted += 1
        if not preempted:
            self._start(budget, prefills)
        if not num_decodes and not prefills:
            return False
        context = int(self.context.sum()) + num_decodes * queries
        done = [one for one, chunk in prefills if one.computed + chunk == one.tokens]
        chunks = tuple(Chunk(chunk, one.computed + chunk) for one, chunk in prefills)
        batch = StepBatch(num_decodes, context, chunks, num_decodes + len(done), queries)
        cost = self.server.price(batch)
        start_s, self.now_s = self.now_s, self.server.through_stages(self.now_s, cost)
        self.prefills = prefills
        if prefills:  # the first of them, if there was one
            self.partial = None
        self.under_way = StepRecord(
            start_s,
            self.now_s - start_s,
            self.server.num_running,
            len(self.server.waiting),
            self.options.num_blocks - self.blocks.free,
            sum(chunk for _, chunk in prefills),
            len(done),
            preempted,
            cost.bound,
            cost.gpu_us * 1e-6,
            self.number,
        )
        return True

    def complete(self) -> None:
        """What the batch that was under way has computed."""
        step, self.under_way = self.under_way, None
        if step is None:
            return
        new = step.new_tokens + self._decoded(step.latency_s)
        prefills, self.prefills = self.prefills, []
        for one, chunk in prefills:
            one.computed += chunk
            if one.computed < one.tokens:
                self.partial = one
            else:
                self._emit_first(one)
        self.server.steps.append(step._replace(new_tokens=new))

    def _grow(self, queries: int) -> int:
        """Gives each decoding sequence the blocks of its next tokens; preempts where there are too
        few, the sequence that started last first (under priorities the least important). Returns
        how many were preempted."""
        count = 0
        while self.decoding:
            needed = np.maximum(0, self.options.blocks_of_each(self.context + queries) - self.held)
            total = int(needed.sum())
            if total <= self.blocks.free:
                if total:
                    self.blocks.take(total)
                    self.held += needed
                break
            self._preempt()
            count += 1
        return count

    def _preempt(self) -> None:
        if self.options.policy == "priority":
            at = max(range(len(self.decoding)), key=lambda item: self.decoding[item].rank)
            worst = self.decoding[at]
            if self.partial is not None and self.partial.rank > worst.rank:
                return self._preempt_partial()
        elif self.partial is not None:
            return self._preempt_partial()
        else:
            at = len(self.decoding) - 1
        one = self.decoding[at]
        one.blocks = int(self.held[at])
        self._remove([at])
        self._put_back(one)
        return None

    def _preempt_partial(self) -> None:
        assert self.partial is not None
        self._put_back(self.partial)
        self.partial = None

    def _put_back(self, one: _Sequence) -> None:
        """Its blocks are freed and it is computed again when its turn comes."""
        self.blocks.give_back(one.blocks, one.request.index)
        one.blocks = one.computed = 0
        one.preemptions += 1
        self.server.waiting.add(one, first=True)

    def _hold(self, one: _Sequence, tokens: int) -> bool:
        """Whether there are blocks for so many of its tokens; it holds them then."""
        more = self.options.blocks_of(tokens) - one.blocks
        if more > self.blocks.free:
            return False
        if more > 0:
            self.blocks.take(more)
            one.blocks += more
        return True

    def _start(self, budget: int, prefills: list[tuple[_Sequence, int]]) -> None:
        """Requests from the queue while tokens, sequences and blocks are left."""
        others = self.server.num_running - self.num_running
        most = self.options.max_num_seqs - others - len(self.decoding)
        while self.server.waiting and budget > 0:
            if len(prefills) >= most:
                return
            one = self.server.waiting.first()
            reused = min(self.blocks.kept(one.request.index), (one.tokens - 1) //
                         self.options.block_size)  # fmt: skip
            cached = max(reused * self.options.block_size, self._prefix(one))
            chunk = one.tokens - cached
            if chunk > budget:
                if not self.options.chunked_prefill:
                    return
                chunk = budget
            wanted = one.tokens if self.options.reserves_input else cached + chunk
            if self.options.blocks_of(wanted) > self.blocks.free:
                return
            self.server.waiting.pop()
            one.blocks = self.blocks.found_again(one.request.index)
            one.computed = cached
            self._hold(one, cached + chunk)
            if one.scheduled_s < 0:
                one.scheduled_s = self.now_s
            prefills.append((one, chunk))
            budget -= chunk

    def _prefix(self, one: _Sequence) -> int:
        """Tokens of whole blocks that the request is stated to find in the prefix cache. They fill
        blocks of its own: what several share is counted for each."""
        if not self.options.keeps_prefixes:
            return 0
        size = self.options.block_size
        return one.request.cached_tokens // size * size

    def _decoded(self, latency_s: float) -> int:
        """Every decoding sequence has its tokens; how many."""
        count = len(self.decoding)
        if not count:
            return 0
        if self.options.drafts:
            chances = self.server.random.random((count, self.options.drafts))
            drawn = chances < self.options.acceptance
            tokens = np.minimum(1 + np.cumprod(drawn, axis=1).sum(axis=1), self.left)
            new = int(tokens.sum())
            self.context += tokens
            self.left -= tokens
        else:
            new = count
            self.context += 1
            self.left -= 1
        self.server.gaps[latency_s] += count
        finished = np.flatnonzero(self.left <= 0)
        if finished.size:
            ends = [int(at) for at in finished]
            for at in ends:
                one = self.decoding[at]
                one.blocks = int(self.held[at])
                self._finish(one)
            self._remove(ends)
        return new

    def _emit_first(self, one: _Sequence) -> None:
        """The prompt is computed: a token is there, the first or, after a preemption, the next."""
        if one.first_token_s < 0:
            one.first_token_s = self.now_s
        else:
            self.server.gaps[self.now_s - one.last_token_s] += 1
        one.last_token_s = self.now_s
        one.emitted += 1
        if one.emitted >= one.request.output_tokens:
            self._finish(one)
            return
        self.decoding.append(one)
        self.context = np.append(self.context, one.computed)
        self.left = np.append(self.left, one.request.output_tokens - one.emitted)
        self.held = np.append(self.held, one.blocks)

    def _remove(self, positions: list[int]) -> None:
        for at in reversed(positions):
            one = self.decoding.pop(at)
            one.emitted = one.request.output_tokens - max(0, int(self.left[at]))
            one.last_token_s = self.now_s
        self.context = np.delete(self.context, positions)
        self.left = np.delete(self.left, positions)
        self.held = np.delete(self.held, positions)

    def _finish(self, one: _Sequence) -> None:
        self.blocks.give_back(one.blocks)
        one.blocks = 0
        self.server.finish(
            ServedRequest(
                one.request,
                one.arrival_s,
                one.scheduled_s,
                one.first_token_s,
                self.now_s,
                one.preemptions,
            )
        )
