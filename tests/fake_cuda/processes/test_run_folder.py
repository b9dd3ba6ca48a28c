"""What processes of one forecast leave in their folder for each other."""

from __future__ import annotations

import os
from pathlib import Path

from neusight.fake_cuda.processes.run_folder import ProcessResult, RunFolder, StartedProcess


def test_it_keeps_what_became_of_each_process(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    first, second, third = (StartedProcess((0, n), f"work{n}", f"a.py:{n}") for n in range(3))
    for process in (first, second, third):
        folder.record_started(process)
    begun = [folder.begin(process) for process in (first, first, second)]
    (one, _), (same_shell, _), (silent, _) = begun
    result = ProcessResult(one, num_ops=3, is_steady=True, seconds=2.0)
    folder.put(result)
    folder.put_failure(same_shell, "it ended with status 1")
    folder.put_failure(same_shell, "what is known later")
    for _, descriptor in begun:
        os.close(descriptor)

    assert (one, same_shell.number, silent) == (first, (0, 0, 0), second)
    assert folder.steady() == {(0, 0): (3, 2.0)}
    assert folder.results() == [result]
    assert folder.failures() == [(same_shell, "it ended with status 1")]
    assert (folder.others(), folder.lost()) == ([third], [second])
    assert dict(folder.living()) == {}
    assert folder.result_time(second.number) == 0 < folder.result_time(first.number)


def test_processes_wait_and_end_by_it(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "run"))
    is_over = folder.may_go_on((0, 0))
    folder.put(ProcessResult(StartedProcess((0, 0), "late")))
    folder.put_failure(StartedProcess((0, 0), "late"), "no folder any more")
    (tmp_path / "run").mkdir()
    folder.put_session(b"session")
    before = folder.may_go_on((0, 0)), folder.is_stopped, folder.results(), folder.failures()
    folder.let_go_on((0, 0))
    folder.stop()

    assert is_over and before == (False, False, [], [])
    assert (folder.may_go_on((0, 0)), folder.may_go_on((0, 1)), folder.is_stopped) == (
        True, False, True,
    )  # fmt: skip
    assert folder.session() == b"session"
    assert StartedProcess.from_text(StartedProcess((0, 2), "a", "b").as_text) == (
        StartedProcess((0, 2), "a", "b")
    )
