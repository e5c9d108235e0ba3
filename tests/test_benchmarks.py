"""The benchmarks: their files, the programs they run, the ratings they give, on the staged data."""

import base64
import json
import os
import pickle
import zlib
from pathlib import Path

import numpy as np
import pytest
from canned import SAMPLING, TINY, prompt, rollout
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from gspo import benchmarks, eval_config, evaluate, pretrained
from gspo.benchmarks import elo
from gspo.benchmarks.codeforces import unsuitable
from gspo.benchmarks.livecodebench import private_tests
from gspo.benchmarks.programs import whole_program
from gspo.binding import bind
from gspo.config import conf_dir, register
from gspo.data import files
from gspo.eval_config import benchmarks as names
from gspo.eval_config import read_benchmark
from gspo.material import readiness
from gspo.types import Prompt

DATA = Path(os.environ["GSPO_DATA"])


@pytest.mark.parametrize(
    ("name", "k", "size"),
    [("aime24", 32, 30), ("aime25", 32, 30), ("math500", 4, 500), ("gsm8k", 1, 1319), ("humaneval", 1, 164),
     ("mbpp", 1, 500), ("codeforces", 8, 330)],
)  # fmt: skip
def test_benchmarks_are_read(name, k, size):
    """Every file of conf/benchmark with staged data opens, with the paper's samples and the published sizes."""
    settings = read_benchmark(name)
    source = evaluate.check(settings)()
    assert (settings.k, source.size) == (k, size)
    assert len({source.row(i).id for i in range(size)}) == size


def test_every_benchmark_has_a_file():
    """The names of the specification; a misspelt one lists them."""
    wanted = {"aime24", "aime25", "math500", "gsm8k", "humaneval", "mbpp", "livecodebench", "codeforces", "arithmetic"}
    assert wanted <= set(names())
    with pytest.raises(ValueError, match="aime24, aime25"):
        read_benchmark("aime")


def test_held_out_arithmetic_is_none_of_training():
    """128 problems, the same in every run, from a generator that no training seed reaches; prompts in order."""
    opened = evaluate.open_benchmark(
        read_benchmark("arithmetic"), pretrained.load_tokenizer(pretrained.ASSETS / "qwen3_moe_tiny"), TINY, SAMPLING
    )
    assert [p.id for p in opened.prompts] == [f"arithmetic-{i}" for i in range(128)]
    texts = {p.text for p in opened.prompts}
    for seed in range(3):
        source = bind({"_target_": "gspo.data.arithmetic", "min_terms": 4, "max_terms": 7, "seed": seed}, "data")()
        assert [source.row(i).prompt for i in range(128)] != [p.text for p in opened.prompts]
        assert len(texts & {source.row(i).prompt for i in range(3200)}) <= 3


# -- programs ---------------------------------------------------------------------------------------------------------


def judged(row, response, finish="stop"):
    one = Prompt(row.id, row.prompt, (1,), row.reference, "test", "code", row.meta)
    return benchmarks.program_reward(one, rollout(response, finish))


def test_references_of_humaneval_and_mbpp_pass():
    """The published solutions, answered as a block and (HumanEval) as the bare rest of the body, are right; broken ones
    and truncated ones are not. Catches lost imports and helpers of the prompt, and asserts that never run."""
    source = evaluate.check(read_benchmark("humaneval"))()
    for number in (0, 38, 50):  # 38 and 50 need helpers that only the prompt holds
        row = source.row(number)
        solution = row.meta["canonical_solution"]
        head = row.meta["prelude"][row.meta["prelude"].index(f"def {row.meta['entry_point']}") :]
        answers = [f"Here:\n```python\n{head}{solution}\n```\nDone.", solution, f"```python\n{solution}```"]
        for answer in answers:
            assert judged(row, answer).verdict == "ok", answer
        assert judged(row, f"{solution}\n\nprint(undefined)\n").verdict == "ok"
        assert judged(row, "    return None\n").verdict == "wrong"
        assert judged(row, answers[0], finish="length").verdict == "wrong"
    source = evaluate.check(read_benchmark("mbpp"))()
    for number in (0, 7):
        row = source.row(number)
        assert "assert" in row.prompt
        use = f"print({row.meta['entry_point']})"
        answer = f"```python\n{row.meta['canonical_solution']}\n```\nFor example:\n```python\n{use}\n```"
        assert judged(row, answer).verdict == "ok", row.id
        broken = answer.replace("return", "return None and")
        assert judged(row, broken).verdict == "wrong", row.id


def test_the_sandbox_of_a_benchmark_is_tested_before_it_is_used():
    """run.json gets the self-test of the box that will judge; catches a benchmark whose reward hides it."""
    assert readiness(read_benchmark("humaneval").reward)["sandbox"]["works"]
    assert readiness(read_benchmark("aime24").reward) == {}


def test_preludes_stand_where_python_takes_them():
    """`from __future__` stays first; fences inside a program do not cut it."""
    one = prompt(kind="code", prelude="import math\n")
    text = "```python\nfrom __future__ import annotations\nprint(math.pi)\n```"
    assert whole_program(one, text) == "from __future__ import annotations\nimport math\n\n\nprint(math.pi)\n"
    fences = prompt(
        kind="code", reference=[{"type": "stdin", "input": "", "output": "```\nx\n```"}], prelude="x = 'x'\n"
    )
    answer = "~~~python\nprint('```')\nprint(x)\nprint('''```''')\n~~~"
    assert benchmarks.program_reward(fences, rollout(answer)).verdict == "ok"


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def lcb(path, **changes):
    """Two rows in the released schema: a program on stdin, and a method with starter code and packed private tests."""
    stdin = {
        "question_title": "Sum", "question_content": "Read two numbers, print their sum.", "platform": "atcoder",
        "question_id": "abc1_a", "contest_id": "abc1", "contest_date": "2025-02-28T00:00:00", "starter_code": "",
        "difficulty": "easy", "metadata": "{}",
        "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
        "private_test_cases": json.dumps([{"input": "5 6\n", "output": "11\n", "testtype": "stdin"}]),
    }  # fmt: skip
    method = stdin | {
        "question_id": "3000", "contest_date": "2024-10-01T10:00:00", "platform": "leetcode",
        "starter_code": "class Solution:\n    def pairs(self, nums: List[int], k: int) -> int:\n        ",
        "metadata": json.dumps({"func_name": "pairs"}),
        "public_test_cases": json.dumps([{"input": "[1, 2, 3]\n3", "output": "1", "testtype": "functional"}]),
        "private_test_cases": packed([{"input": "[1, 1, 1]\n2", "output": "3", "testtype": "functional"}]),
    }  # fmt: skip
    early = stdin | {"question_id": "early", "contest_date": "2024-09-30T23:59:59"}
    late = stdin | {"question_id": "late", "contest_date": "2025-03-01T00:00:00"}
    path.write_text("".join(json.dumps(row | changes) + "\n" for row in (stdin, method, early, late)))
    return path


def test_livecodebench_in_its_released_schema(tmp_path):
    """October 2024 to February 2025; public and packed private tests both judge; a method is called on an instance,
    with the imports that starter code relies on."""
    settings = read_benchmark("livecodebench")
    node = settings.data | {"paths": [str(lcb(tmp_path / "test5.jsonl"))]}
    source = bind(node, "data")()
    assert [source.row(i).id for i in range(source.size)] == ["abc1_a", "3000"]
    stdin, method = source.row(0), source.row(1)
    assert [len(row.reference) for row in (stdin, method)] == [2, 2]
    assert method.reference[1] == {"type": "call", "fn": "Solution.pairs", "args": [[1, 1, 1], 2], "output": 3}
    assert method.meta["prelude"].startswith("import")
    assert "class Solution:" in method.prompt
    assert "stdin" in stdin.prompt
    assert judged(stdin, "```python\na, b = map(int, input().split())\nprint(a + b)\n```").verdict == "ok"
    assert judged(stdin, "```python\ninput()\nprint(3)\n```").verdict == "wrong"
    right = (
        "class Solution:\n    def pairs(self, nums: List[int], k: int) -> int:\n        count = Counter(nums)\n"
        "        return sum(a + b == k for a, b in combinations(nums, 2)) + 0 * pow(2, 3, 5) * len(count)\n"
    )
    assert judged(method, f"```python\n{right}```").verdict == "ok"
    assert judged(method, f"```python\n{right.replace('combinations(nums, 2)', '[(1, 2)]')}```").verdict == "wrong"


class Bomb:
    """What a hostile file would hold: a pickle that runs a command when it is read."""

    def __reduce__(self):
        return os.mkdir, ("bomb",)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode(), "mkdir is refused"),
        (base64.b64encode(zlib.compress(pickle.dumps({"a": Path("x")}))).decode(), "is refused"),
        (base64.b64encode(zlib.compress(pickle.dumps([1, 2]))).decode(), "JSON as a text is needed"),
        (base64.b64encode(zlib.compress(b"no pickle")).decode(), "neither JSON nor packed"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-5]).decode(), "cut short"),
        ("!!", "neither JSON nor packed"),
        ('{"a": 1}', "a list of tests is needed"),
    ],
)
def test_private_tests_run_nothing(tmp_path, monkeypatch, held, said):
    """Whatever the pickle names is refused before it is imported, and the error names the place."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^here.*{said}"):
        private_tests(held, "here")
    assert not (tmp_path / "bomb").exists()
    assert private_tests(packed([{"a": 1}]), "here") == [{"a": 1}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metadata": "{"}, "abc1_a: field 'metadata' is not JSON"),
        ({"public_test_cases": None}, "field 'public_test_cases' is NoneType"),
        ({"public_test_cases": '[{"input": 1}]'}, "abc1_a: test 1: input, output"),
        ({"contest_date": "2023-01-01"}, "no contest_date from 2024-10 to 2025-02"),
    ],
)
def test_bad_livecodebench_rows_are_named(tmp_path, changes, said):
    """File, problem and field of what is wrong."""
    node = read_benchmark("livecodebench").data | {"paths": [str(lcb(tmp_path / "test5.jsonl", **changes))]}
    with pytest.raises(ValueError, match=said):
        bind(node, "data")()


def test_codeforces_problems_that_outputs_can_judge():
    """Interactive ones, lost pictures and several right outputs are left out; no tag is shown. The samples judge."""
    every = files(path="codeforces_codeelo.jsonl", kind="code")
    kept = evaluate.check(read_benchmark("codeforces"))()
    rows = [kept.row(i) for i in range(kept.size)]
    assert not [
        row.id for row in rows if "Tags:" in row.prompt or "CDN_BASE_URL" in row.prompt or row.meta["interactive"]
    ]
    left = {row.id: unsuitable(row) for row in map(every.row, range(every.size)) if unsuitable(row)}
    assert left.keys() == {every.row(i).id for i in range(every.size)} - {row.id for row in rows}
    assert left["codeforces-1971B"] is not None  # "print any of them"
    program = "for _ in range(int(input())):\n    print(*sorted(map(int, input().split())))\n"
    assert judged(rows[0], f"```python\n{program}```").verdict == "ok"
    assert judged(rows[0], f"```python\n{program.replace('sorted', 'list')}```").verdict == "wrong"


# -- ratings ----------------------------------------------------------------------------------------------------------


def test_rating_of_rank():
    """Closed forms: half-way past one opponent is his rating; among equals of rating R the rank 1 + n/4 is
    R + 400 log10(3); first of all is capped at 100 above the best, last at 0."""
    assert elo.rating_of_rank(1.5, [1500]) == pytest.approx(1500, abs=1e-3)
    assert elo.rating_of_rank(1 + 8 / 4, [1400] * 8) == pytest.approx(1400 + min(400 * np.log10(3), 100), abs=1e-3)
    assert elo.rating_of_rank(1 + 8 * 3 / 4, [1400] * 8) == pytest.approx(1400 - 400 * np.log10(3), abs=1e-3)
    assert elo.rating_of_rank(1, [800, 2300]) == pytest.approx(2400, abs=1e-3)
    assert elo.rating_of_rank(3, [800, 2300]) == pytest.approx(0, abs=1e-3)


def test_scores_count_attempts():
    """Points less 50 a failed attempt and never below 0; without points one a problem and 10 minutes an attempt."""
    problems = [{"index": "A", "points": 500}, {"index": "B", "points": 100}, {"index": "C", "points": 1500}]
    solved = {"A": [0, 0, 1], "B": [0, 0, 0, 1], "C": [0, 0], "Z": [1]}
    assert elo.score(problems, solved) == (400, 0)
    plain = [{"index": index} for index in "ABC"]
    assert elo.score(plain, solved) == (2, 50)


def test_codeforces_rating_from_standings(tmp_path):
    """Two contests from a file in the answers of Codeforces' interface; the rank is among all rows, ties before us."""
    rows = [{"points": p, "penalty": q} for p, q in ((900, 0), (500, 0), (400, 0), (100, 0))]
    changes = [{"oldRating": r} for r in (2000, 1500, 1500, 1000)]
    contest = {"standings": {"problems": [{"index": "A", "points": 500}], "rows": rows}, "rating_changes": changes}
    (tmp_path / "standings.json").write_text(json.dumps({"7": contest, "8": contest, "9": contest}))
    (tmp_path / "histogram.json").write_text(json.dumps({"1000": 60, "1400": 30, "3000": 10}))
    prompts = [prompt(f"{c}A", kind="code", contest_id=c, index="A") for c in (7, 8)]
    correct = [[0, 0, 1], [0, 0, 0]]
    found = elo.rating_columns(
        prompts, correct, standings=str(tmp_path / "standings.json"), histogram=str(tmp_path / "histogram.json")
    )
    ratings = [2000, 1500, 1500, 1000]

    def expected(r):
        return 1 + sum(1 / (1 + 10 ** ((r - other) / 400)) for other in ratings)

    first = 2 * found["codeforces_rating"] - elo.rating_of_rank(5, ratings)  # nothing solved: fifth of five
    assert expected(first) == pytest.approx(4, abs=1e-3)  # 400 points: 900, 500 and the equal 400 come before
    assert found["codeforces_contests"] == 2
    assert found["codeforces_percentile"] == 0
    assert elo.percentile(1400, {"1000": 60, "1400": 30, "3000": 10}) == 60
    with pytest.raises(ValueError, match="holds none of the contests 5"):
        elo.rating_columns([prompt(contest_id=5, index="A")], [[1]], standings=str(tmp_path / "standings.json"))
    with pytest.raises(ValueError, match="cannot be read"):
        elo.rating_columns(prompts, correct, standings=str(tmp_path / "none.json"))


def test_the_estimate_from_problem_ratings_has_another_name():
    """Half of problems rated 1500 solved is 1500, a fraction 10/11 is 1900; never called a Codeforces rating, and
    absent without ratings or when everything was solved."""
    assert elo.problem_rating_estimate([1500] * 4, [1, 0, 1, 0]) == pytest.approx(1500, abs=1e-3)
    assert elo.problem_rating_estimate([1500] * 11, [1] * 10 + [0]) == pytest.approx(1900, abs=1e-3)
    assert elo.problem_rating_estimate([1500, 1600], [1, 1]) is None
    rated = [prompt(str(i), rating=1500) for i in range(2)]
    assert set(elo.rating_columns(rated, [[1, 0], [0, 1]])) == {"problem_rating_estimate", "rated_problems"}
    assert elo.rating_columns([prompt()], [[1, 0]]) == {}


# -- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    [f"benchmark={name}" for name in names()]
    + [f"model={path.stem}" for path in sorted((conf_dir() / "model").glob("*.yaml"))],
)
def test_every_benchmark_and_model_composes(override):
    """conf/eval.yaml takes whatever keys a model file brings; a benchmark composed by Hydra is the one that
    `eval.benchmark` names; its functions take their keywords."""
    register()
    eval_config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("eval", overrides=["run.dir=somewhere", override])
    settings = OmegaConf.to_object(config)
    assert isinstance(settings, eval_config.EvalConfig)
    evaluate.check(settings.benchmark)
    assert settings.benchmark == read_benchmark(settings.benchmark.name)
