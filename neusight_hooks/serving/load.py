"""The load of a server: when requests arrive, and how long they and their answers are."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from neusight.predictors.errors import OptionError

Arrivals = Literal["poisson", "gamma", "uniform", "closed"]


@dataclass(frozen=True)
class InferenceRequest:
    """One request: `input_tokens` enter, of which `cached_tokens` are in the prefix cache, and
    `output_tokens` are generated. Lower `priority` goes first. `next_turn` is what its user sends
    `think_s` after the answer."""

    index: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    priority: int = 0
    name: str = ""
    next_turn: InferenceRequest | None = None
    think_s: float = 0.0


@dataclass(frozen=True)
class Lengths:
    """A distribution of numbers of tokens, at least one.

    "fixed": `first`; "uniform": from `first` to `second`; "lognormal": median `first`, standard
    deviation `second` of the logarithm.
    """

    kind: Literal["fixed", "uniform", "lognormal"]
    first: float
    second: float = 0.0

    def drawn(self, count: int, random: np.random.Generator, *, most: int) -> list[int]:
        """So many of them, none above `most`."""
        if self.kind == "fixed":
            found = np.full(count, self.first)
        elif self.kind == "uniform":
            found = random.integers(int(self.first), int(self.second), count, endpoint=True)
        else:
            found = self.first * np.exp(self.second * random.standard_normal(count))
        return [int(min(most, max(1, round(float(x))))) for x in found]

    def __str__(self) -> str:
        if self.kind == "fixed":
            return f"{self.first:,.0f}"
        if self.kind == "uniform":
            return f"{self.first:,.0f} to {self.second:,.0f}"
        return f"lognormal, median {self.first:,.0f}, sigma {self.second:g}"


def parse_lengths(text: str, *, option: str) -> Lengths:
    """Tokens as "1024", "uniform:100-2000" or "lognormal:500,0.8"; OptionError for anything else.

    >>> print(parse_lengths("uniform:100-300", option="--input"))
    100 to 300
    """
    kind, colon, values = text.partition(":")
    try:
        if not colon:
            found = Lengths("fixed", int(text))
        elif kind == "uniform":
            low, _, high = values.partition("-")
            found = Lengths("uniform", int(low), int(high))
        elif kind == "lognormal":
            middle, _, sigma = values.partition(",")
            found = Lengths("lognormal", float(middle), float(sigma))
            if not math.isfinite(found.first * math.exp(found.second**2 / 2)):  # the mean
                raise ValueError
        else:
            raise ValueError
        if found.first < 1 or found.second < (found.first if kind == "uniform" else 0):
            raise ValueError
    except (ValueError, OverflowError):
        raise OptionError(
            f"{option} got {text!r}; it takes tokens, at least one: 1024, uniform:100-2000 or "
            "lognormal:500,0.8 (median and standard deviation of the logarithm)"
        ) from None
    return found


@dataclass(frozen=True)
class RequestClass:
    """Requests of one kind: `share` of all, their lengths and priority."""

    input: Lengths
    output: Lengths
    share: float = 1.0
    priority: int = 0
    name: str = ""


@dataclass(frozen=True)
class Load:
    """`num_requests` of some classes that arrive at `rate` a second.

    `arrivals`: "poisson"; "gamma" with a coefficient of variation of `burstiness` between
    arrivals; "uniform": at equal distances; "closed": `users` who each send the next request
    `think_s` after the answer to the last. A session has `turns`; each later turn repeats the text
    of those before it, of which `hit_rate` is found in the prefix cache.
    """

    classes: tuple[RequestClass, ...]
    num_requests: int
    arrivals: Arrivals = "poisson"
    rate: float = 1.0
    burstiness: float = 1.0
    users: int = 0
    think_s: float = 0.0
    turns: int = 1
    hit_rate: float = 0.0
    seed: int = 0

    def requests(self, *, most_tokens: int) -> list[InferenceRequest]:
        """The requests that arrive by themselves, in order; later turns hang on them. Equal loads
        give equal requests. Lognormal lengths are cut where a request would ask for more than
        `most_tokens` with its answer; OptionError where stated lengths do."""
        for one in self.classes:
            _require_short(one, most_tokens)
        random = np.random.default_rng(self.seed)
        closed = self.arrivals == "closed"
        sessions = self.users if closed else -(-self.num_requests // self.turns)
        times = [0.0] * sessions if closed else self._times(sessions, random)
        turns = [self.turns] * (sessions - 1) + [self.num_requests - self.turns * (sessions - 1)]
        if closed:
            each, more = divmod(self.num_requests, sessions)
            turns = [each + (at < more) for at in range(sessions)]
        shares = [one.share for one in self.classes]
        chosen = random.choice(len(shares), size=sessions, p=np.array(shares) / sum(shares))
        found: list[InferenceRequest] = []
        index = 0
        for session in range(sessions):
            drawn = list(self._turns(turns[session], self.classes[chosen[session]], random,
                                     most_tokens, is_new=closed))  # fmt: skip
            request: InferenceRequest | None = None
            for position in range(len(drawn) - 1, -1, -1):
                request = replace(
                    drawn[position],
                    index=index + position,
                    arrival_s=times[session],
                    next_turn=request,
                )
            index += len(drawn)
            if request is not None:
                found.append(request)
        return sorted(found, key=lambda one: (one.arrival_s, one.index))

    def _turns(
        self,
        count: int,
        kind: RequestClass,
        random: np.random.Generator,
        most: int,
        *,
        is_new: bool,
    ) -> Iterator[InferenceRequest]:
        """The requests of one user, one after the other; `is_new`: none repeats what was before."""
        inputs = kind.input.drawn(count, random, most=most)
        outputs = kind.output.drawn(count, random, most=most)
        before = 0
        for new, output in zip(inputs, outputs, strict=True):
            tokens = min(before + new, most - 1)
            output = min(output, most - tokens)
            cached = int(self.hit_rate * (tokens if is_new or not before else before))
            yield InferenceRequest(
                0, 0.0, tokens, output, min(cached, tokens - 1), kind.priority, kind.name,
                think_s=self.think_s,
            )  # fmt: skip
            before = 0 if is_new else tokens + output

    def _times(self, count: int, random: np.random.Generator) -> list[float]:
        """When sessions arrive: the first at zero."""
        mean_s = 1.0 / (self.rate / self.turns)
        if self.arrivals == "poisson":
            gaps = random.exponential(mean_s, count)
        elif self.arrivals == "gamma":
            shape = 1.0 / self.burstiness**2
            gaps = random.gamma(shape, mean_s / shape, count)
        else:
            gaps = np.full(count, mean_s)
        gaps[0] = 0.0
        return [float(x) for x in np.cumsum(gaps)]


def _require_short(one: RequestClass, most: int) -> None:
    """OptionError for lengths that are stated and can never be served."""
    longest = [item.second if item.kind == "uniform" else item.first
               for item in (one.input, one.output) if item.kind != "lognormal"]  # fmt: skip
    if sum(longest) > most:
        raise OptionError(
            f"requests of {one.input} tokens with {one.output} of answer are longer than the "
            f"{most:,} tokens that a request may have (--max-model-len, at most the model's "
            "positions and the KV cache): they can never be served"
        )


#: Columns of a file of requests, and those that may be left out.
_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
_OPTIONAL = ("cached_tokens", "priority", "class")


def read_requests(path: str | Path) -> list[InferenceRequest]:
    """Requests from a CSV with the columns arrival_s, input_tokens, output_tokens and, if wanted,
    cached_tokens, priority, class; OptionError names the line that is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # spreadsheets begin with a mark
        found = list(_requests(path, csv.DictReader(io.StringIO(text, newline=""))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise OptionError(f"{path} is not a CSV in UTF-8: {error}") from None
    if not found:
        raise OptionError(f"{path} has no requests: a line for each belongs below the names")
    return sorted(found, key=lambda one: (one.arrival_s, one.index))


def _requests(path: str | Path, reader: csv.DictReader[str]) -> Iterator[InferenceRequest]:
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise OptionError(
            f"{path} has no column {missing[0]}; a load has the columns "
            f"{', '.join(_COLUMNS)} and may have {', '.join(_OPTIONAL)}"
        )
    for number, row in enumerate(reader):
        if None in row:
            raise OptionError(f"{path}, line {reader.line_num}: more values than columns")
        yield _request(path, number, row, line=reader.line_num)


def _request(path: str | Path, number: int, row: dict[str, str], *, line: int) -> InferenceRequest:
    values: list[float] = []
    for name in (*_COLUMNS, "cached_tokens", "priority"):
        text = row.get(name) or ("" if name in _COLUMNS else "0")
        try:
            values.append(float(text))
        except ValueError:
            raise OptionError(f"{path}, line {line}: {name} is {text!r}, not a number") from None
    arrival_s, tokens, output, cached, priority = values
    if not math.isfinite(priority):
        raise OptionError(f"{path}, line {line}: priority is {priority:g}, not a whole number")
    if not (math.isfinite(arrival_s) and arrival_s >= 0):
        raise OptionError(f"{path}, line {line}: arrival_s is {arrival_s:g}; it is not below zero")
    _require_count(path, line, "input_tokens", tokens)
    _require_count(path, line, "output_tokens", output)
    if not 0 <= cached < tokens:
        raise OptionError(
            f"{path}, line {line}: cached_tokens is {cached:g}; at least one of {tokens:g} tokens "
            "must enter"
        )
    return InferenceRequest(
        number, arrival_s, int(tokens), int(output), int(cached), int(priority),
        row.get("class") or "",
    )  # fmt: skip


def _require_count(path: str | Path, line: int, name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 1 and value == int(value)):
        raise OptionError(f"{path}, line {line}: {name} is {value:g}; it is a whole number above 0")


def mean_tokens(requests: Sequence[InferenceRequest]) -> tuple[float, float]:
    """Mean tokens in and out.

    >>> mean_tokens([InferenceRequest(0, 0.0, 10, 4), InferenceRequest(1, 0.0, 20, 6)])
    (15.0, 5.0)
    """
    count = max(1, len(requests))
    return (
        sum(one.input_tokens for one in requests) / count,
        sum(one.output_tokens for one in requests) / count,
    )
