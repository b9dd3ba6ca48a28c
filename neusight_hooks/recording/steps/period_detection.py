"""Which turns of a program make one step: the shortest period of a sequence, found as it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import torch

Token = Hashable

#: Kinds of turns that are named one by one; more are counted.
_MOST_KINDS_SHOWN = 4

#: Ops recorded in search of a longer cycle before turns that repeat are taken for it (about a
#: second), and how many times the ops of the first turn at least: a rollout is followed by updates.
_MIN_LOOKAHEAD_OPS = 50_000
_LOOKAHEAD_FACTOR = 4
#: As many times as long where a rollout was seen: another one begins the next iteration, after
#: hundreds of updates (about 20 seconds).
_ROLLOUT_LOOKAHEAD_FACTOR = 20

#: Places from the end at which a repetition is looked for: what follows a loop is short.
_ENDS_TRIED = 8


class PeriodDetector:
    """Turns of one kind (optimizers that stepped, modules that returned), grouped into steps.

    `take` answers where steps end as soon as that is known: once the turns so far were made twice.
    `starts_differently` allows the first of them to be like no other, as first steps may be.

    >>> turns = PeriodDetector()
    >>> [turns.take(token, end) for end, token in enumerate("DGDGDG", start=1)]
    [[], [], [], [2, 4], [], [6]]
    """

    def __init__(self, *, starts_differently: bool = False) -> None:
        #: The turns of a step; empty while that is not known.
        self.pattern: tuple[Token, ...] = ()
        self._starts_differently = starts_differently
        self._tokens: list[Token] = []
        self._ends: list[int] = []
        self._borders = _Borders()
        self._later = _Borders(first=1)

    def __len__(self) -> int:
        """Turns that belong to no step yet."""
        return len(self._tokens)

    def take(self, token: Token, end: int, *, may_decide: bool = True) -> list[int]:
        """One more turn, which ends at position `end`: the ends of steps that are known now.
        Without `may_decide` none are, though turns repeat: they may be part of something longer."""
        self._tokens.append(token)
        self._ends.append(end)
        if self.pattern:
            return self._followed()
        self._borders.extend(self._tokens)
        self._later.extend(self._tokens)
        return self._decided() if may_decide else []

    def settle(self) -> list[int]:
        """As `take`, at the end: the last turns decide, if they repeat."""
        if self.pattern or not self._tokens:
            return []
        found = self._decided()
        first, period = (0, 0) if found else period_at_end(self._tokens)
        return self._group(first, period) if period else found

    def flush(self, *, is_cut_short: bool = False) -> list[int]:
        """The ends of steps if no turn follows for now; nothing is left. Where the last turns begin
        a step that `is_cut_short`, they end none."""
        found: list[int] = []
        if self._tokens and not self.pattern:
            count = len(self._tokens)
            first, period = 0, count - self._borders.last
            if count < 2 * period:
                at, at_end = period_at_end(self._tokens)
                # Nothing of the beginning came again, or less than what most turns repeat.
                if period == count or (at_end > 1 and 2 * at < count):
                    first, period = at, at_end
            found = self._group(first, period or count)
        if self._tokens and not is_cut_short:
            found = [*found, self._ends[-1]]
        self.clear()
        return found

    def clear(self) -> None:
        """Forgets the turns that belong to no step yet."""
        self._keep_from(len(self._tokens))

    def shift(self, count: int) -> None:
        """All positions are less by `count`: what lay before was taken away."""
        self._ends = [end - count for end in self._ends]

    def _keep_from(self, first: int) -> None:
        self._tokens, self._ends = self._tokens[first:], self._ends[first:]
        self._borders, self._later = _Borders(), _Borders(first=1)

    def _followed(self) -> list[int]:
        """The turn goes on with the pattern, or breaks it: then what was begun ends there."""
        tokens, ends, pattern = self._tokens, self._ends, self.pattern
        count = len(tokens)
        if tokens[-1] == pattern[count - 1]:
            if count < len(pattern):
                return []
            self.clear()
            return ends[-1:]
        odd = 1
        while odd < count and tuple(tokens[odd:]) != pattern[: count - odd]:
            odd += 1
        if odd < count:
            self._keep_from(odd)
            return [ends[odd - 1]]
        self.clear()
        found = ends[-2:-1]
        if tokens[-1] in pattern:  # one turn too many
            return [*found, ends[-1]]
        self.pattern = ()
        return found + self.take(tokens[-1], ends[-1])

    def _decided(self) -> list[int]:
        count = len(self._tokens)
        period = count - self._borders.last
        if count >= 2 * period:
            return self._group(0, period)
        if self._starts_differently and count > 2:
            period = count - 1 - self._later.last
            if count - 1 >= 2 * period:
                return self._group(0, period)
        return []

    def _group(self, first: int, period: int) -> list[int]:
        """Steps of `period` turns each from turn `first` on; each turn before is a step."""
        whole = first + (len(self._tokens) - first) // period * period
        found = self._ends[:first] + self._ends[first + period - 1 : whole : period]
        self.pattern = tuple(self._tokens[whole - period : whole])
        self._keep_from(whole)
        return found


class Lookahead:
    """How long a period is looked for in turns that may be part of something longer, in ops.

    >>> lookahead = Lookahead(least_ops=100)
    >>> lookahead.is_over(1, num_ops=10), lookahead.is_over(2, 80), lookahead.is_over(3, 120)
    (False, False, True)
    """

    def __init__(self, least_ops: int = _MIN_LOOKAHEAD_OPS) -> None:
        self._least_ops = least_ops
        self._begun = 0
        self._deadline = 0

    def begin(self, num_ops: int) -> None:
        """A step was cut off after so many ops."""
        self._begun = num_ops

    def is_over(self, num_step_ends: int, num_ops: int, *, is_longer: bool = False) -> bool:
        """Whether it is, so many turns and ops after; then it begins again. It `is_longer` where
        iterations begin with a rollout."""
        least = self._least_ops * (_ROLLOUT_LOOKAHEAD_FACTOR if is_longer else 1)
        if num_step_ends == 1:
            first = num_ops - self._begun
            self._deadline = num_ops + max(least, _LOOKAHEAD_FACTOR * first)
        if num_ops < self._deadline:
            return False
        self._deadline = num_ops + least
        return True


class _Borders:
    """For each beginning of a sequence, the longest part that it both starts and ends with: the
    failure function of Knuth, Morris and Pratt, extended in constant time on average."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._lengths: list[int] = []

    @property
    def last(self) -> int:
        """That of all of the sequence (from `first` on)."""
        return self._lengths[-1] if self._lengths else 0

    def extend(self, tokens: Sequence[Token]) -> None:
        """The sequence has one token more."""
        first, lengths = self._first, self._lengths
        if len(tokens) <= first:
            return
        if not lengths:
            lengths.append(0)
            return
        length = lengths[-1]
        while length and tokens[first + length] != tokens[-1]:
            length = lengths[length - 1]
        lengths.append(length + (tokens[first + length] == tokens[-1]))


def period_at_end(tokens: Sequence[Token], *, times: int = 2, length: int = 0) -> tuple[int, int]:
    """Where the shortest period begins with which a sequence ends, and that period: made `times`
    and over `length` tokens at least. It is 0 where there is none.

    >>> period_at_end("xyabababab"), period_at_end("xabc")
    ((2, 2), (0, 0))
    """
    count = len(tokens)
    matches = _matches(list(reversed(tokens)))
    for period in range(1, count // times + 1):
        if period + matches[period] >= max(times * period, length):
            return count - period - matches[period], period
    return 0, 0


def repetition(tokens: Sequence[Token], *, least: int) -> tuple[int, int, int]:
    """Where tokens repeat, up to an end that does not: first, period and stop. A period of 0 where
    they do not `least` times, over half of the sequence.

    >>> repetition("setup,abcabcabcabc.", least=4)
    (6, 3, 18)
    """
    counts = Counter(tokens)
    last = {token: at for at, token in enumerate(tokens) if counts[token] >= least}
    for stop in sorted((at + 1 for at in last.values()), reverse=True)[:_ENDS_TRIED]:
        first, period = period_at_end(tokens[:stop], times=least, length=(len(tokens) + 1) // 2)
        if period:
            return first, period, stop - (stop - first) % period
    return 0, 0, 0


def _matches(tokens: Sequence[Token]) -> list[int]:
    """How far the sequence from each token on is as at its beginning (the Z-function)."""
    count = len(tokens)
    found = [count] + [0] * (count - 1)
    left = right = 0
    for at in range(1, count):
        length = min(right - at, found[at - left]) if at < right else 0
        while at + length < count and tokens[length] == tokens[at + length]:
            length += 1
        found[at] = length
        if at + length > right:
            left, right = at, at + length
    return found


class StepEndNames:
    """Numbers for what takes turns, which do not change from run to run, and words for them."""

    def __init__(self) -> None:
        self._names: list[str] = []
        #: What each optimizer updates, in the ways to name it, the usual one first.
        self._updated: dict[int, tuple[str, ...]] = {}
        self._numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._shared: dict[str | int, int] = {}

    def of_optimizer(self, optimizer: torch.optim.Optimizer, updated: tuple[str, ...] = ()) -> int:
        """The number of an optimizer that stepped; `updated` are names of the modules it updates,
        the first of them shown that distinguishes optimizers that take turns."""
        number = self._number_of(optimizer)
        self._updated[number] = updated
        return number

    def of_module(self, module: torch.nn.Module) -> int:
        """The number of a module that was called; those without parameters are made again at will,
        and count by their class."""
        if next(module.parameters(), None) is None:
            return self.of_method(type(module).__qualname__)
        return self._number_of(module)

    def of_function(self, function: object, name: str) -> int:
        """The number of a compiled function that was called."""
        return self._number_of(function, name)

    def of_method(self, name: str) -> int:
        """The number of a method that was called."""
        return self._number_of_shared(name, name)

    def of_graph(self, graph: int) -> int:
        """The number of a CUDA graph that was launched."""
        return self._number_of_shared(graph, "a CUDA graph")

    def words(self, turns: Sequence[int], *, of: str) -> str:
        """One line: `of` is what a turn is, "step" or "call"."""
        updated = self._distinguishing(set(turns))
        runs = [(self._name_of(turn, updated), len(list(group))) for turn, group in groupby(turns)]
        if len(runs) > _MOST_KINDS_SHOWN:
            return f"{len(turns)} {of}s in turn, of {len(set(turns))} different ones"
        return ", then ".join(
            f"{'one' if count == 1 else count} {of}{'' if count == 1 else 's'} of {name}"
            for name, count in runs
        )

    def _distinguishing(self, kinds: set[int]) -> dict[int, str]:
        """What each of several optimizers updates, in the first way that names each differently."""
        if len(kinds) > 1:
            for names in zip_longest(
                *(self._updated.get(kind, ()) for kind in kinds), fillvalue=""
            ):
                if len(set(names)) == len(kinds):
                    return dict(zip(kinds, names, strict=True))
        return {}

    def _name_of(self, turn: int, updated: dict[int, str]) -> str:
        modules = updated.get(turn)
        return f"{self._names[turn]} of {modules}" if modules else self._names[turn]

    def _number_of(self, what: object, name: str = "") -> int:
        number = self._numbers.get(what)
        if number is None:
            number = self._numbers[what] = self._new(name or type(what).__name__)
        return number

    def _number_of_shared(self, key: str | int, name: str) -> int:
        number = self._shared.get(key)
        if number is None:
            number = self._shared[key] = self._new(name)
        return number

    def _new(self, name: str) -> int:
        self._names.append(name)
        return len(self._names) - 1
