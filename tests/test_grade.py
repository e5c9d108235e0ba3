"""`gspo-grade`: what stands at the output already, and inputs that are no text."""

import json
import os

import pytest

from gspo.grade import grade, judge_of

MATH = judge_of({"_target_": "gspo.rewards.math.math_reward"})


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"id": 1, "gold": "1", "response": r"\boxed{1}"}) + "\n")
    return path


def test_other_things_at_the_output_stay(tmp_path, rows):
    """A directory, a device, a file of something else and a place that cannot be are refused before anything is judged;
    earlier verdicts are replaced."""
    (tmp_path / "notes.txt").write_text("mine\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        ("notes.txt", "holds something other than verdicts"),
        ("folder", "is a directory"),
        ("pipe", "is no ordinary file"),
        ("in.jsonl/out.jsonl", "cannot be written"),
        ("in.jsonl", "would overwrite the input"),
    ):
        with pytest.raises(ValueError, match=rf"output={tmp_path / name}: .*{why}"):
            grade(*MATH, rows, tmp_path / name)
    assert (tmp_path / "notes.txt").read_text() == "mine\n"
    assert (tmp_path / "pipe").is_fifo()
    for _ in range(2):
        assert grade(*MATH, rows, tmp_path / "out.jsonl") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "in.jsonl", "notes.txt", "out.jsonl", "pipe"]


def test_a_line_that_is_no_text_is_named(tmp_path, rows):
    """Bytes that are not UTF-8: file and line, no traceback."""
    with rows.open("ab") as file:
        file.write(b'{"id": 2, "gold": "\xff", "response": ""}\n')
    with pytest.raises(ValueError, match=r"in\.jsonl:2: not UTF-8"):
        grade(*MATH, rows, tmp_path / "out.jsonl")


def test_a_reward_that_grades_no_files_is_refused():
    """Rewards by step have no rows of a file."""
    with pytest.raises(ValueError, match=r"judges no files \(accepted: reward=math, reward=code\)"):
        judge_of({"_target_": "gspo.rewards.steps.steps_reward"})
