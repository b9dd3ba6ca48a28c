"""torch's stores on the line between ranks, wrapped by torch's own C++ as well."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from neusight.fake_cuda.distributed.peers.key_store import KeyStore, key_store_classes
from neusight.fake_cuda.distributed.peers.link import SingleRankLink
from neusight.predictors.errors import UnansweredRankError


def test_torchs_own_prefix_store_works_on_it() -> None:
    store = KeyStore(SingleRankLink(0))
    wrapped: Any = vars(dist)["PrefixStore"]("inner", store)

    wrapped.set("a", "1")
    total = wrapped.add("n", 4)
    swapped = wrapped.compare_set("a", "1", "2")

    assert (total, swapped, wrapped.get("a")) == (4, b"2", b"2")
    assert wrapped.check(["a"])
    assert not wrapped.check(["b"])
    assert store.delete_key("inner/n")
    assert store.list_keys() == ["inner/a"]
    assert store.num_keys() == 1


def test_stores_of_one_place_are_one() -> None:
    classes = key_store_classes(SingleRankLink(0))
    first, same, other = (classes["TCPStore"]("localhost", port) for port in (1, 1, 2))
    file, same_file = (classes["FileStore"]("rendezvous", 2) for _ in range(2))
    file.set("a", "of the file")
    file.set_timeout(timedelta(seconds=3))

    first.multi_set(["a", "b"], ["1", b"2"])
    first.append("a", "x")

    assert same.multi_get(["a", "b"]) == [b"1x", b"2"]
    assert not other.check(["a"])
    assert first.clone().get("b") == b"2"
    assert (same_file.get("a"), file.timeout) == (b"of the file", timedelta(seconds=3))
    assert first.has_extended_api() and same_file.list_keys() == ["a"]


def test_a_key_that_is_missing_is_an_error_at_once() -> None:
    with pytest.raises(UnansweredRankError, match='the key "ready", which another process'):
        KeyStore(SingleRankLink(0), "file x").wait(["ready"])
