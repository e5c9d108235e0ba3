"""The code reward: which block is graded, how results are compared, and the published reference solutions."""

import ast
import json
import math
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gspo.rewards.code import code_reward, extract_program, grade_row, row_problem
from gspo.rewards.code_compare import same_output, same_value
from gspo.rewards.sandbox import judge
from gspo.types import Prompt, Rollout

DATA = Path(os.environ["GSPO_DATA"])
SQUARE = [{"type": "call", "fn": "f", "args": [n], "output": n * n} for n in (3, -7)]
GOOD, BAD = "def f(x):\n    return x * x", "def f(x):\n    return x + x"


def fenced(code, language="python", mark="```"):
    return f"{mark}{language}\n{code}\n{mark}\n"


def reward(text, tests, finish="stop", prompt="", meta=None, **more):
    prompt = Prompt("p", prompt, (1,), tests, "test", "code", meta or {})
    one = np.zeros(1)
    return code_reward(prompt, Rollout(one, one, one, finish, 0, text), **more)


@pytest.mark.parametrize(
    ("response", "graded"),
    [
        (f"Solution:\n{fenced(GOOD)}\nUse it:\n{fenced('print(f(3))')}", GOOD),  # A: last block fails
        (f"{fenced(BAD)}Wait, that is wrong.\n{fenced(GOOD)}", GOOD),  # C: first block fails
        (f"{fenced(BAD + chr(10) + '# a long comment ' * 9)}Shorter:\n{fenced(GOOD)}", GOOD),  # C: longest fails
        (fenced(GOOD, ""), GOOD),  # D
        (fenced(GOOD, "python", "~~~"), GOOD),  # E
        (fenced(GOOD + "\n# ```", "py", "````"), GOOD + "\n# ```"),
        (fenced(GOOD).replace("\n", "\r\n"), GOOD),
        (fenced(GOOD, "Python title='solution.py'"), GOOD),
        ("1. First\n\n   " + fenced(GOOD).replace("\n", "\n   "), GOOD),  # in a list
        (fenced(GOOD) + fenced("f(3) = 9", "text") + fenced("$ python f.py", "bash"), GOOD),
        (fenced("f = lambda x: x * x"), "f = lambda x: x * x"),
        (fenced("def f(x:\n  return x * x"), "def f(x:\n  return x * x"),  # does not parse, still the one meant
        (fenced(GOOD) + fenced("class A:\n    def f(self, x): return 0"), GOOD),  # a method is not the entry point
        (f"I return x * x, so {GOOD}", None),  # F
        (f"Here:\n```python\n{GOOD}", None),  # G
        (f"{fenced(GOOD)}Better:\n```python\ndef f(x):", GOOD),  # the open fence is no block
        (f"<think>\n{fenced(GOOD)}</think>\nI am done.", None),  # H
        (f"<think>\n{fenced(BAD)}</think>\n{fenced(GOOD)}", GOOD),
        (fenced(""), None),
    ],
)
def test_which_block_is_graded_for_a_function(response, graded):
    """First, last and longest block are each wrong for some of these."""
    found = extract_program(response, "f")
    assert (found.strip() if found else None) == graded


def test_which_block_is_graded_for_a_script():
    """A usage example or expected output graded in place of the program that reads the input."""
    program, better = "n = int(input())\nprint(n)", "import sys\nprint(sys.stdin.read())"
    assert extract_program(fenced(program) + fenced("print('usage: run it')  # then input()")) == program + "\n"
    assert extract_program(fenced(program) + fenced(better) + fenced("4\n", "")) == better + "\n"
    assert extract_program(fenced("print(42)")) == "print(42)\n"
    assert extract_program(fenced("x") + "</think>" + fenced(program), opened=True) == program + "\n"
    assert extract_program(fenced(program), opened=True) is None


READERS = [
    "n = int(input())\nprint(n)",
    "import sys\nfor line in sys.stdin: print(line)",
    "from sys import stdin\nprint(stdin.read())",
    "print(open(0).read())",
    "print(open('/dev/stdin').read())",
    "import os\nprint(os.read(0, 99))",
    "import fileinput\nprint(*fileinput.input())",
    "read = input\nprint(read())",
    "print(*map(int, iter(input, '')))",
    "print(f'{input()}')",
    "print input()",
]
MENTIONS = [
    "print('reads input() from you')",
    'print("sys.stdin")',
    '"""Call input() first."""\nprint(3)',
    "print(3)  # input()",
    "text = '''\nn = input()\n'''\nprint(text)",
    "print(f'input() gives {3}')",
    "input_size = 3\nprint(input_size)",
    "print 'input() is read'",
    'x = (\n"""input()',
]


@pytest.mark.parametrize("mention", MENTIONS)
def test_a_text_that_mentions_input_reads_none(mention):
    """A string, docstring or comment after the solution that speaks of `input()` would be graded in its place."""
    for program in READERS:
        assert extract_program(fenced(program) + fenced(mention)) == program + "\n"
    assert extract_program(fenced(mention) + fenced(READERS[0]) + fenced("print(1)")) == READERS[0] + "\n"


def test_a_text_that_holds_a_definition_defines_nothing():
    """A function in a string of a block that does not parse would be graded in the solution's place."""
    text = "print '''\ndef f(x):\n    return 0\n'''"
    assert extract_program(fenced(GOOD) + fenced(text), "f") == GOOD + "\n"


@pytest.mark.parametrize(
    "tests",
    [[], [{"type": "bogus"}], [{}], ["x"], [{"type": "stdin", "input": "1"}],
     [{"type": "call", "fn": "f", "args": [1]}], [{"type": "assert", "code": "f(1) =="}],
     [{"type": "assert", "code": "f(1)"}], [*SQUARE, {"type": ["call"]}]],
)  # fmt: skip
def test_bad_tests_are_no_zero(tests):
    """B31: tests that could judge no program are the row's fault with code, without code and with cut-off code."""
    for text in (fenced(GOOD), "no code here"):
        for finish in ("stop", "length"):
            judged = reward(text, tests, finish)
            assert (judged.verdict, math.isnan(judged.value), "data error" in judged.reason) == (
                "verifier failed", True, True,
            )  # fmt: skip
        said = grade_row({"id": "a", "response": text, "tests": tests})
        assert (said["verdict"], said["reward"]) == ("infrastructure", None)


def test_a_dotted_entry_point_is_defined_by_its_class():
    """`Solution.f` looked for as a top-level function: the usage example after it would be graded."""
    code = "class Solution:\n    def f(self, x): return x * x"
    assert extract_program(fenced(code) + fenced("Solution().f(3)"), "Solution.f") == code + "\n"
    assert reward(fenced(code), [{"type": "call", "fn": "Solution.f", "args": [3], "output": 9}]).value == 1


@pytest.mark.parametrize(
    ("expected", "printed", "right"),
    [
        ("0.333333333333", "0.333333", True),
        ("0.333333333333", "0.33333", False),
        ("1000000007", "1000000008", False),
        ("12345678901234567890", "12345678901234567891", False),
        ("1 2 3\n", "1 2 3 \n\n", True),
        ("1 2", "12", False),
        ("1\n2", "1 2", False),
        ("YES", "Yes", False),
        ("1.5", "nan", False),
        ("1.5", "inf", False),
        ("nan", "nan", True),
        ("2.0", "2", True),
        ("2", "2.0", False),
        ("1e3 x", "1000.0 x", True),
        ("1000000.0", "1000000.9", True),  # relative
        ("1000000.0", "1000001.1", False),
        ("0.5", "٠.5", False),
        ("0.5", "0.5\n1", False),
    ],
)
def test_output_with_tolerance(expected, printed, right):
    """Integers compared as floats, blanks that matter or lines that do not: case B25."""
    assert same_output(expected, printed, 1e-6) is right


def test_output_without_tolerance_is_exact():
    """A tolerance that nobody asked for."""
    assert not same_output("0.333333333333", "0.333333")
    assert same_output("a\r\nb\n", "a\nb")
    assert not same_output(" a", "a")


@pytest.mark.parametrize(
    ("expected", "returned", "right"),
    [
        ([0.1, 0.2], [0.1, 0.30000000000000004 - 0.1], True),
        ([1, 2], (1, 2), True),
        ([1, 2], {1, 2}, False),
        (1, True, False),
        (True, 1, False),
        (9, "9", False),
        (9, float("inf"), False),
        (9, 9.0, True),
        (9.0, 9, True),
        (10**20, 10**20 + 1, False),
        (1.0, 10**400, False),
        (float("nan"), float("nan"), True),
        ({"a": [1.0]}, {"a": (1.0 + 1e-9,)}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (None, 0, False),
        ("a", b"a", False),
        ([], None, False),
        ([[1], [2]], [[1], [2, 2]], False),
        ({1, 2}, [1, 2], False),
    ],
)
def test_returned_values(expected, returned, right):
    """Python's `==` where it is too kind (True == 1) or too strict (0.1 + 0.2)."""
    assert same_value(expected, returned) is right


def test_exact_is_exact():
    """A tolerance that a row has refused."""
    assert not same_value([0.3], [0.1 + 0.2], exact=True)


def test_reward_values_parts_and_paths():
    """A wrong program, no program and a failing judge told apart; NaN exactly when the verifier failed."""
    right, wrong = reward(fenced(GOOD), SQUARE), reward(fenced(BAD), SQUARE)
    assert (right.value, right.parts, right.verdict) == (1.0, {"correct": 1.0, "format": 1.0}, "ok")
    assert (wrong.value, wrong.parts, wrong.verdict) == (0.0, {"correct": 0.0, "format": 1.0}, "wrong")
    assert wrong.path.endswith(": fail")
    assert "returned 6, not 9" in wrong.reason
    none = reward("no idea", SQUARE)
    assert (none.value, none.parts, none.path) == (0.0, {"correct": 0.0, "format": 0.0}, "no code")
    cut = reward(fenced(GOOD), SQUARE, finish="length")
    assert (cut.value, cut.path, cut.reason) == (0.0, "no code", "truncated: no code")
    bad_row = reward(fenced(GOOD), [])
    assert math.isnan(bad_row.value)
    assert bad_row.verdict == "verifier failed"
    half = reward(fenced("def f(x):\n    return 9"), SQUARE, partial=True)
    assert (half.value, half.verdict) == (0.5, "wrong")


def test_entry_point_comes_from_the_row_or_its_tests():
    """An assert row without `fn` that loses its function."""
    tests = [{"type": "assert", "code": "assert candidate(3) == 9"}]
    assert reward(fenced(GOOD) + fenced("print(f(2))"), tests, meta={"entry_point": "f"}).value == 1
    text = fenced("def g(x): return -x") + fenced("def h(x): return x")
    assert reward(text, [{"type": "assert", "fn": "g", "code": "assert g(1) == -1"}]).value == 1


def test_any_thread_may_judge():
    """Signals or locks that work in the main thread only."""
    with ThreadPoolExecutor(8) as threads:
        values = list(threads.map(lambda n: reward(fenced(GOOD if n % 2 else BAD), SQUARE).value, range(40)))
    assert values == [float(n % 2) for n in range(40)]


def test_rows_of_a_file():
    """`gspo-grade reward=code`: verdict names, a null reward for the judge's own failures, rows it must refuse."""
    row = {"id": "a", "tests": SQUARE}
    said = grade_row(row | {"program": GOOD})
    assert (said["id"], said["verdict"], said["reward"]) == ("a", "pass", 1.0)
    assert set(said) == {"id", "verdict", "reward", "reason", "path"}
    assert grade_row(row | {"response": fenced(BAD)})["verdict"] == "fail"
    assert grade_row(row | {"response": "?"}) | {"reason": ""} == {
        "id": "a", "verdict": "fail", "reward": 0.0, "reason": "", "path": "no code",
    }  # fmt: skip
    broken = grade_row({"id": "b", "program": GOOD, "tests": [{}]})
    assert (broken["verdict"], broken["reward"]) == ("infrastructure", None)
    assert row_problem(row | {"program": GOOD}) is None
    assert "program" in (row_problem(row) or "")
    assert "tests" in (row_problem({"program": "", "tests": "x"}) or "")
    assert "finish" in (row_problem(row | {"program": GOOD, "finish": "eos"}) or "")


SPRAY = (
    "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, {!r})\n        except OSError: pass\n"
    "    return 0"
)
EQUAL = (
    "\n    def __eq__(s, o): return True\n    def __abs__(s): return 0\n    __hash__ = object.__hash__\n"
    "def f(x): return X(5)"
)
CHEATS = {
    "defines the test's built-ins": "def abs(x): return 0\ndef all(x): return True\ndef f(x): return 0",
    "raises what the test expects to see": "def f(x): raise AssertionError",
    "equal to everything": "class X:\n    def __init__(s, x): pass" + EQUAL,
    "an int that lies": "class X(int):" + EQUAL,
    "a list that lies": "class X(list):\n    def __iter__(s): return iter([9])\ndef f(x): return X()",
    "forges the end of the test": SPRAY.format(b'{"d":[["done","0"],["calls",1]]}\n'),
    "answers twice": SPRAY.format(b'{"d":[["n",1],["v",1]]}\n' * 9),
    "leaves in an exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): os._exit(0)",
}


@pytest.mark.parametrize("name", CHEATS)
def test_assert_tests_cannot_be_cheated(name):
    """Test code that shares a process with the solution passes most of these."""
    code = "assert abs(f(2) - 4) < 1e-6\nassert all([f(3) == 9, f(-7) == 49])\nassert f(4) == 16"
    said = judge(CHEATS[name], [{"type": "assert", "fn": "f", "code": code}])
    assert said.verdict in ("fail", "error"), said


def test_objects_of_the_solution_stay_in_its_process():
    """Test code that builds the solution's objects must work, and cannot be fooled by their `__eq__`."""
    program = (
        "class Node:\n    def __init__(self, v): self.v, self.next = v, None\n    def __eq__(self, o): return True\n"
        "def total(n): return 0 if n is None else n.v + total(n.next)\ndef numbers():\n    yield from (1, 2)\n"
        "def same(n): return n"
    )
    code = (
        "a = Node(1)\na.next = Node(2)\nassert total(a) == 3 and a.next.v == 2 and same(a) is a and same(int) is int\n"
    )
    code += "assert list(numbers()) == [1, 2]\n"
    assert judge(program, [{"type": "assert", "code": code}]).verdict == "pass"
    for wrong in ("assert same(a) == 7", "assert same(a) != a", "assert total(a) == 4"):
        assert judge(program, [{"type": "assert", "code": code + wrong}]).verdict == "fail"


def references():
    """(id, solution, tests) of HumanEval and MBPP."""
    for line in (DATA / "humaneval.jsonl").read_text().splitlines():
        row = json.loads(line)
        code = f"{row['test']}\ncheck({row['entry_point']})\n"
        tests = [{"type": "assert", "fn": row["entry_point"], "code": code}]
        yield row["id"], row["prompt"] + row["canonical_solution"], tests
    for line in (DATA / "mbpp.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row["id"], row["canonical_solution"], [{"type": "assert", "code": row["test"]}]


def judge_all(jobs, **more):
    with ThreadPoolExecutor(2) as threads:
        verdicts = threads.map(lambda job: judge(job[1], job[2], **more), jobs)
        return {job[0]: verdict for job, verdict in zip(jobs, verdicts, strict=True)}


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.long)])
def test_published_reference_solutions_pass(every):
    """A judge that fails right programs: 164 of 164, and 973 of 974 (mbpp-123 may compute for longer than its 6 s)."""
    said = judge_all([job for job in references() if job[0] != "mbpp-123"][::every])
    assert {name: v.reason for name, v in said.items() if v.verdict != "pass"} == {}


def break_a_line(source, seed):
    """The source with the value of one statement, drawn by the seed, lost; and that line."""
    tree, found = ast.parse(source), []
    for node in ast.walk(tree):
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for place, line in enumerate(body if isinstance(body, list) else []):
                text = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
                if isinstance(line, ast.Assign | ast.AugAssign | ast.Return | ast.Expr) and not text:
                    found.append((line.lineno, body, place))
    number, body, place = random.Random(seed).choice(sorted(found, key=lambda item: item[0]))
    line, nothing = body[place], ast.Constant(None)
    if isinstance(line, ast.AugAssign):
        body[place] = ast.Assign([line.target], nothing, lineno=number)
    elif isinstance(line, ast.Expr):
        body[place] = ast.Pass()
    else:
        line.value = nothing
    return ast.unparse(ast.fix_missing_locations(tree)), source.splitlines()[number - 1].strip()


@pytest.mark.long
def test_reference_solutions_with_a_broken_line_fail():
    """A judge that passes wrong programs: at least 95 % fail; the survivors are lines that the tests do not reach."""
    jobs = [(name, *break_a_line(solution, name), tests) for name, solution, tests in references()]
    said = judge_all([(name, program, tests) for name, program, _, tests in jobs], time_limit=2.0)
    assert not [verdict.reason for verdict in said.values() if verdict.verdict == "infrastructure"]
    survivors = [(name, line) for name, _, line, _ in jobs if said[name].verdict == "pass"]
    print(f"{len(jobs) - len(survivors)} of {len(jobs)} fail; survivors:", *survivors, sep="\n")
    assert len(survivors) <= 0.05 * len(jobs), survivors
