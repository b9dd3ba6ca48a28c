from neusight.recording.lists import flattened


def test_what_is_of_the_kind_is_found_in_lists_of_lists_in_order() -> None:
    assert flattened((1, [2, ("three", [4])], None, {5: 6}), int) == [1, 2, 4]
    assert flattened("one", str) == ["one"]
    assert flattened(None, int) == []
