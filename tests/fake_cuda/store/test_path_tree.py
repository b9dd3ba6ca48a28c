"""Paths by folder."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neusight.fake_cuda.store.path_tree import PathTree

paths = st.lists(st.sampled_from("abc"), max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(known=st.lists(paths, unique=True), popped=st.lists(paths, unique=True), on_query=paths)
def test_it_finds_what_a_look_at_every_path_finds(
    known: list[str], popped: list[str], on_query: str
) -> None:
    tree = PathTree[int]()
    for number, path in enumerate(known):
        tree[path] = number
    for path in popped:
        if path in tree:
            tree.pop(path)

    left = [path for path in known if path not in popped]
    below = [
        path for path in left if path == on_query or path.startswith(on_query.rstrip("/") + "/")
    ]
    above = [p for p in left if on_query == p or on_query.startswith(p.rstrip("/") + "/")]
    start = on_query.rstrip("/") + "/"
    names = {path[len(start) :].partition("/")[0] for path in left if path.startswith(start)}
    assert sorted(tree) == sorted(left)
    assert sorted(tree.at_or_below(on_query)) == sorted(below)
    assert tree.nearest(on_query) == max(above, key=len, default=None)
    assert sorted(tree.names_in(on_query)) == sorted(names - {""})
