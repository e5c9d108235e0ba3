"""The mathematics verifier against the named cases, the outside oracle and answers meant to fool it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gspo.rewards.math import check_gold, math_reward, verify
from gspo.types import Prompt, Rollout

DATA = Path(os.environ.get("GSPO_DATA", "../shared/data"))
CASES = DATA / ".." / "cases"


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def mistakes(table: list[tuple[str, str, bool]], **options) -> list[tuple]:
    """Rows of (gold, response, expected) whose verdict is another one; a failed verifier is a mistake too."""
    out = []
    for gold, response, expected in table:
        judged = verify(gold, response, **options)
        if judged.verdict != ("ok" if expected else "wrong"):
            out.append((gold, response, expected, judged.verdict, judged.path, judged.reason))
    return out


@pytest.mark.parametrize("name", ["math_answers.jsonl", "math_answers_policy.jsonl"])
def test_named_cases(name):
    """Every row has its expected verdict: extraction, forms, bombs and policy."""
    table = [(row["gold"], row["response"], row["expected"]) for row in rows(CASES / name)]
    assert len(table) == {"math_answers.jsonl": 66, "math_answers_policy.jsonl": 11}[name]
    assert mistakes(table) == []


# Area (d) of cases/handed.md, in its order. Bare formulas there are answers as a response without a box gives them:
# wrong in boxed mode whatever they say, so the formula is boxed here. `\boxed 42` is in test_box_without_braces.
HANDED = [
    (r"$n\equiv 1 \pmod 5$", r"\boxed{n\equiv 3 \pmod 5}", False),
    (r"2x+5y-7=0", r"\boxed{3x+5y-7=0}", False),
    (r"2x+5y-7=0", r"3x+5y-7=0", False),
    (r"$2x+5y-7=0$", r"\boxed{4x+10y-14=0}", True),
    (r"$5 - \frac{2}{\mathrm{e}}$", r"\boxed{5 + \frac{2}{\mathrm{e}}}", False),
    (r"$4$", r"\boxed{4\sqrt(2)}", False),
    (r"\dfrac{9}{7}", r"\boxed{\dfrac{9}{7}}", True),
    (r"$\frac{5}{7}$", r"\boxed{\frac{5}{7}}", True),
    (r"$\frac{\sqrt{6}}{3}$", r"\boxed{\sqrt{\frac{2}{3}}}", True),
    (r"$42$", r"\fbox{42}", True),
    (r"$17$", r"\boxed{\text{17}}", True),
    (r"$17$", r"\boxed{\mathbf{17}}", True),
    (r"$\frac{3}{4}$", r"so we get \boxed{\frac{3}{4}", False),
    (r"$3$", "I don't know. 3", False),
    (r"$120$", "The total is 120.", False),
    (r"33", r"\boxed{033}", True),
    (r"033", r"\boxed{33}", True),
    (r"$33$", r"\boxed{33.0}", True),
    (r"$4096$", r"\boxed{4,096}", True),
    (r"$4096$", r"\boxed{4{,}096}", True),
    (r"$4096$", r"\boxed{4\,096}", True),
    (r"$4096$", r"\boxed{4\;096}", True),
    (r"$(4,96)$", r"\boxed{4,096}", False),
    (r"$4,96$", r"\boxed{4096}", False),
    (r"$\frac{7}{3}$", r"\boxed{2\frac{1}{3}}", True),
    (r"$\frac{2}{3}$", r"\boxed{2\frac{1}{3}}", False),
    (r"$0.25$", r"\boxed{25\%}", True),
    (r"$25\%$", r"\boxed{0.25}", True),
    (r"$40\%$", r"\boxed{40\%}", True),
    (r"$40\%$", r"\boxed{4\%}", False),
    (r"$60$", r"\boxed{60^\circ}", True),
    (r"$60^\circ$", r"\boxed{61^\circ}", False),
    (r"$15$", r"\boxed{15 \text{ cm}^2}", True),
    (r"$15$", r"\boxed{15\ \mathrm{km/h}}", True),
    (r"$15$", r"\boxed{\$15}", True),
    (r"$42$", r"\boxed{42.}", True),
    (r"$\{1,4\}$", r"\boxed{\{4,1\}}", True),
    (r"$1,2,3$", r"\boxed{1,2}", False),
    (r"$1,2,3$", r"\boxed{1, 2, 3, 4, 5}", False),
    (r"343 and 512", r"\boxed{512}", False),
    (r"$343 \text{ and } 512$", r"\boxed{512, 343}", True),
    (r"$\pm 5$", r"\boxed{5}", False),
    (r"$\pm 5$", r"\boxed{-5, 5}", True),
    (r"$(5,2)$", r"\boxed{(2,5)}", False),
    (r"$[2,7)$", r"\boxed{[2,7]}", False),
    (r"$2 \le x < 7$", r"\boxed{[2,7)}", True),
    (r"$[2,7)$", r"\boxed{2 \le x < 7}", True),
    (r"$(-\infty,-2)\cup(3,\infty)$", r"\boxed{(3,\infty)\cup(-\infty,-2)}", True),
    (r"$x=4$", r"\boxed{4}", True),
    (r"$x=5$", r"\boxed{y=5}", False),
    (r"$\emptyset$", r"\boxed{0}", False),
]


def test_area_d_of_the_handed_cases():
    """B21 to B24: no number fished out of a formula, every box form, separators, units, sets and intervals."""
    assert mistakes(HANDED) == []


def test_box_without_braces():
    """`\\boxed 42` is a box of the digit 4: no answer in boxed mode (the policy row), 42 in lenient mode (B22)."""
    assert verify("42", r"\boxed 42").path == "no answer"
    assert verify("42", r"\boxed 42", lenient=True).verdict == "ok"


def test_prompt_is_not_read():
    """B22: an example box in the prompt earns neither the reward nor the format part."""
    prompt = Prompt("p", r"put the answer in \boxed{}. Example: \boxed{8}", (1,), "8", "t")
    reward = math_reward(prompt, rollout("no idea"))
    assert (reward.value, reward.parts) == (0.0, {"correct": 0.0, "format": 0.0})


ONE_SPELLING = {
    "10000": [
        r"10,000",
        r"10\,000",
        r"10{,}000",
        r"10 000",
        r"10,\!000",
        r"1\times10^{4}",
        r"1e4",
        r"10^4",
        "１００００",
        "10000.0",
    ],
    r"\frac{1}{2}": [
        r"\dfrac12",
        r"\tfrac{1}{2}",
        "½",
        "1/2",
        ".5",
        "0.50",
        r"\frac{-1}{-2}",
        r"2^{-1}",
        r"50\%",
        r"{\frac{1}{2}}",
    ],
    r"-\frac{7}{2}": [
        "-3.5",
        "−3.5",
        r"-3\frac12",
        r"\frac{-7}{2}",
        r"\frac{7}{-2}",
        r"-\left(\frac{7}{2}\right)",
        "-7/2",
        "–3.5",
    ],
    r"\frac{1}{6}": [r"0.1\overline{6}", r"0.1666\ldots", r"\frac16", r"\frac{2}{12}", r"\frac{\frac12}{3}"],
    "1024": [r"2^{10}", r"2^10", r"4^5", "2¹⁰", r"32 \cdot 32", "32×32"],
    "120": [
        "5!",
        r"\binom{10}{3}",
        r"120 \text{ ways}",
        r"5 \times 4 \times 3 \times 2 \times 1",
        r"\textbf{120}",
        r"\mathrm{120}",
    ],
    r"\sqrt{8}": [r"2\sqrt2", r"2\sqrt{2}", "√8", "2√2", r"8^{1/2}", r"\frac{4}{\sqrt{2}}"],
    r"\frac{\pi}{4}": [r"\pi/4", r"\arctan 1", "π/4", r"0.25\pi", r"\tfrac{1}{4}\pi"],
    r"x^2+2x+1": ["(x+1)^2", "x²+2x+1", "1+2x+x^{2}", r"x\cdot x+2x+1"],
    r"3+4i": ["4i+3", r"3+4\mathrm{i}", r"\frac{25}{3-4i}"],
    r"\{1,2\}": [r"\{2,1\}", r"1, 2", r"2 \text{ and } 1", r"\left\{1,2,2\right\}", r"x=1 \text{ or } x=2", "1 or 2"],
    r"(3,\infty)": ["x>3", "3 < x", r"x \in (3, +\infty)", r"\left(3,\infty\right)", r"\{x \mid x > 3\}", "]3,∞["],
    r"(-\infty,5)\cup(5,\infty)": [r"x \ne 5", r"\mathbb{R}\setminus\{5\}", r"x<5 \text{ or } x>5"],
    r"[0,2]": [r"[0,1]\cup[1,2]", r"0\le x\le 2", r"2 \ge x \ge 0", r"x \ge 0 \text{ and } x \le 2"],
    r"(1,2)": [r"x=1, y=2", r"(x,y)=(1,2)", r"\langle 1,2\rangle", r"\left(1,\,2\right)", r"y=2, x=1", r"(1;2)"],
    r"\begin{pmatrix}1\\2\end{pmatrix}": [
        r"\begin{bmatrix}1\\2\end{bmatrix}",
        r"\begin{pmatrix}0.5+0.5\\2\end{pmatrix}",
    ],
    r"\text{Yes}": ["yes", r"\mathrm{Yes}", r"\text{Yes.}", "YES"],
    "B": ["(B)", r"\text{B}", r"\textbf{(B)}\ 42", "B) 42", "B. 42", r"\text{(B) } 42", r"\textbf{B}", "B: 42"],
    r"1011_2": ["1011", r"1011_{2}", r"1011_{\text{two}}", r"23_4"],
    "1:2": ["2:4", r"\frac{1}{2}", r"1 : 2"],
    r"2 \text{ hours}": [r"120 \text{ minutes}", "2", r"2\text{ hr}", r"2\ \mathrm{h}"],
    r"\$5.50": ["5.5", r"5.50 \text{ dollars}", r"550\text{ cents}", r"\$5.5"],
    r"50\%": ["50", "0.5", r"\frac12", r"50 \text{ percent}", "50%"],
    r"y=2x+1": ["2x+1", r"2x-y+1=0", r"y-1=2x", "y = 1+2x"],
    r"n\equiv 1 \pmod 5": [r"n \equiv 6 \pmod{5}", r"n\equiv -4 \pmod 5"],
    r"\infty": [r"+\infty", "∞"],
    r"\emptyset": [r"\varnothing", "∅", r"\{\}", r"\text{no solution}"],
    "1.5": ["1,5", "1.50", r"\frac{3}{2}", r"1\frac12"],
}


def test_one_answer_in_many_spellings():
    """Each spelling of the same value is right: what a text comparison or a naive parser rejects."""
    table = [(gold, f"So it is $\\boxed{{{form}}}$.", True) for gold, forms in ONE_SPELLING.items() for form in forms]
    assert mistakes(table) == []


OTHERS = {
    "42": [
        "41=42",
        "42, 43",
        "42 or 43",
        r"42 \text{ or } 43",
        "42.0001",
        "-42",
        r"4\,2\,0",
        r"\text{forty-two}",
        r"42x",
        r"42!",
        r"\{42,43\}",
        "42;43",
        "[41,43]",
        r"42\pm 1",
        r"\approx 43",
        r"42\frac{1}{2}",
        r"\frac{42}{0}",
        "42/1/2",
        "042 1",
    ],
    r"\frac13": [
        "0.333",
        "0.33",
        "0.3333333333333333",
        r"\int_0^1 x^2\,dx",
        r"\approx 0.33",
        "3",
        "33.3%",
        r"\lim_{x\to3}\frac1x",
    ],
    "55": [r"\sum_{k=1}^{10} k", "∑_{k=1}^{10} k", r"\gcd(55,110)", r"\max(3,55)", r"\prod_{k=1}^{2} x"],
    r"2\pi": ["6.28", "6.283185307179586", r"2", r"\pi", r"2\pi r"],
    "2^{-60}": ["2^{-61}", "0", r"\frac{1}{2^{61}}", "8.67e-19"],
    "10^{20}": [r"10^{20}+1", "100000000000000000001", r"10^{21}"],
    "AB": ["BA", "ab", "A", "AB+1"],
    "x": ["y", "X", "x+1", "-x", "2x"],
    r"2 \text{ hours}": [r"2 \text{ minutes}", r"2\text{ hours and } 5 \text{ minutes}", r"120\text{ hours}"],
    r"5 \text{ cm}": [r"5 \text{ m}", r"5 \text{ cm}^2", r"5\text{ kg}"],
    r"\$5": ["€5", r"5\text{ cents}"],
    "0.5": [r"0.5\%", "50"],
    r"17\%": [r"17^\circ", "1700"],
    "(1,2)": ["(2,1)", r"\{1,2\}", "(1,2,2)", "[1,2]", "(1,2]", "x=2,y=1", "12"],
    "1,2": ["1", "12", "1,2,3", "(2,1)", r"1 < x < 2"],
    r"\{1,2\}": [r"\{1\}", r"\{1,2,3\}", r"(1,2)"],
    r"\pm 3": ["3", "-3", r"\pm 4", "3, 4"],
    "[2,7)": ["[2,7]", "(2,7)", r"2<x<7", r"2\le x\le 7", "(2,7]", "[2,8)"],
    "x>3": [r"x \ge 3", "x<3", "y>3", "3", r"(-\infty,3)"],
    r"(-\infty,-2)\cup(3,\infty)": ["(-2,3)", r"(3,\infty)", r"x<-2"],
    r"\infty": [r"-\infty", r"\frac{1}{0}", "10^{100}"],
    "x=5": ["y=5", "2x=10", "x=6", "x>5"],
    "7": ["2x=14", "x=7,8", "x+1=8", "7=8"],
    "0": ["x^2-5x+6=0", r"\emptyset", "-1", r"\text{none}"],
    "B": ["C", "C) B", "A or B", "A, B", "ABCD", r"\textbf{(C)}\ 42", "b"],
    "1011_2": ["11", "1011_3", "1010", "1011.5"],
    "2:30": ["1:15", "2:31", "230", "30:2"],
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": [
        r"\begin{pmatrix}1&3\\2&4\end{pmatrix}",
        r"\begin{pmatrix}1&2\end{pmatrix}",
        r"1,2,3,4",
    ],
    "3+4i": ["3-4i", "3+4j", "7", "5"],
    r"\log_2 3": [r"\log_3 2", r"\ln 3", "1.585"],
    "|x|": ["x", "-x", r"\sqrt{x}"],
    "x^2+1": ["x^2", "(x+1)^2", "x^2-1", "X^2+1", "x^3+1", "y^2+1"],
    r"\text{Yes}": ["No", "Yes, No", r"\text{Not yes}", "1"],
    "1234": ["1.234", "12,34", "1, 234", "(1,234)"],
    "1.234": ["1,234"],
}


def test_near_misses_are_wrong():
    """Each of these is another answer: guesses, echoes of the problem, contradictions, rounding, order, units."""
    table = [(gold, f"So it is $\\boxed{{{form}}}$.", False) for gold, forms in OTHERS.items() for form in forms]
    assert mistakes(table) == []


GUESSES = {
    "5": [
        r"5\text{ or 12}",
        r"5\text{, 12, 13}",
        r"5\text{; 12}",
        r"5\ \text{or 12}",
        r"5\text{ or twelve}",
        r"5\text{, twelve}",
        r"5\mathrm{\ or\ 12}",
        r"5\text{ but maybe 12}",
        r"5\text{ otherwise 3}",
        r"5\text{ unless x=0}",
        r"5\text{ cm or 6 cm}",
        r"5\text{ to 12}",
        r"5\text{-12}",
        r"5\mbox{ when x>0}",
        r"\text{5 or 12}",
        "5 (or 12)",
        "5 otherwise 12",
        r"5\text{ (alternatively, 12)}",
        r"5\text{ apples, 12 pears}",
        r"5\text{ oder 12}",
        r"5\ (\text{or }12)",
    ],
    "12": [
        r"12\text{ (13 is also possible)}",
        r"12\text{ if x>0, else 13}",
        r"12\text{ or more}",
        r"12\text{ if } x>0",
        r"12\text{ and also 13}",
        r"12\text{ apples or pears}",
        "12_5",
        r"12_{\text{five}}",
    ],
    "x+1": [r"x+1\text{ or 2}", r"x+1\text{ or } 2", r"x+1\text{, 2}"],
    "A": [
        "(A),(B),(C)",
        "A) 5, B) 6, C) 7",
        "A. B. C. D.",
        "A) or B)",
        "A) B",
        "(A) or B",
        "(A)(B)",
        "(A)~(B)",
        "A: 5; B: 6",
        "A/B",
        r"\text{(A) or (B)}",
        r"\text{(A), (B)}",
        r"\text{A. or B.}",
        r"\text{A, B}",
        r"\text{A) 5 or B) 6}",
        r"\text{(A) is wrong, (B) is right}",
        r"\text{not (A)}",
        r"A\text{ or B}",
        r"\text{Option A or Option B}",
        r"\text{A-D}",
        r"A\to B",
        r"(A)\text{, }(B)",
        r"\text{(A) 5 (B) 6}",
        r"\textbf{(A)}\ \text{or}\ \textbf{(B)}",
        r"(A)\ 5,\ (B)\ 6",
    ],
    "B": [r"(B)\ \text{and}\ (C)", "(B), (C)", r"(B)\&(C)", r"(B)\ \text{and } C", r"(B)\ \text{(C)}"],
    r"(A)\ 5": [r"(A)\ 5,\ (B)\ 6", "(A) or (B)", r"(A)\ 6", r"(B)\ 5"],
    r"\text{A, B}": ["A", "(A)", "A, C", "A, B, C"],
    "7": ["7_8", r"7_{\text{eight}}", "7_{8}"],
    "101": ["101_2", "5_{10}", "101_3"],
    "2516_8": ["1358", "2516_{10}", "2516_7"],
}


def test_several_guesses_are_no_answer():
    """Guesses in a text behind the answer, letters side by side, and a base that nobody asked for."""
    table = [(gold, f"So it is $\\boxed{{{form}}}$.", False) for gold, forms in GUESSES.items() for form in forms]
    assert mistakes(table) == []


ONE_GUESS = {
    "5": [
        r"5\text{ apples}",
        r"5\text{ cm}^2",
        r"5\text{ square units}",
        r"5\text{ miles per hour}",
        r"5\ \text{m}^{3}",
        r"5\text{ sq. ft.}",
        r"5\text{ km/h}",
        r"5\text{ (units)}",
        r"5\text{ cm2}",
    ],
    "A": [
        "A.",
        r"(A)\ 5",
        r"(A)\ \{1,2\}",
        r"(A)\ (1,2)",
        r"(A)\ x+B",
        r"(A)\ 5\text{ or }6",
        r"\text{(A) Bob and Alice}",
        r"\text{(A) I and II}",
        r"\text{option A}",
    ],
    r"\text{A, B}": ["A,B", "(A), (B)", "B, A", r"\text{A and B}", r"(B)\text{ and }(A)"],
    r"2\text{ hours and 30 minutes}": [r"2\text{ hours and }30\text{ minutes}"],
    r"(-\infty,1)\text{ or }(2,\infty)": [r"(-\infty,1)\cup(2,\infty)", r"\text{x<1 or x>2}"],
    "5, 12": [r"5\text{ or 12}", r"\text{5 and 12}", r"5\text{, 12}"],
    "2516_8": ["2516", r"2516_{\text{eight}}", "2516_{8}", "1358_{10}"],
    "12": ["12_{10}"],
}


def test_words_behind_one_answer():
    """A unit, the content of a choice, a list where the gold is one: right."""
    table = [(gold, f"So it is $\\boxed{{{form}}}$.", True) for gold, forms in ONE_GUESS.items() for form in forms]
    assert mistakes(table) == []


PI = "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899"
ROOT2 = "1.41421356237309504880168872420969807856967187537694807317667973799073247846210704"
EQUAL = {
    "0": [
        r"\sin\pi",
        r"\cos\frac{\pi}{2}",
        r"\sin 180^\circ",
        r"\cos 90^\circ",
        r"\tan\pi",
        r"\ln 1",
        r"e^{i\pi}+1",
        r"\sqrt{2}\sqrt{3}-\sqrt{6}",
        r"(\sqrt2+\sqrt3)^2-5-2\sqrt6",
        r"\sin^2 x+\cos^2 x-1",
    ],
    r"\sin\pi": ["0"],
    r"\cos\frac{\pi}{2}": ["0", r"\sin\pi"],
    "|x|": [r"\sqrt{x^2}"],
    "|10-x|": ["|x-10|", r"\sqrt{(x-10)^2}"],
    "|x-3|+|x+3|": ["|3-x|+|-x-3|"],
    r"\sqrt{1000-x^2}": [r"\sqrt{(\sqrt{1000}-x)(\sqrt{1000}+x)}"],
    r"\cos 36^\circ": [r"\frac{1+\sqrt5}{4}"],
    r"\binom{2n}{n}": [r"\frac{(2n)!}{n!^2}"],
    r"\frac{n(n+1)}{2}": [r"\binom{n+1}{2}"],
    "f'": [r"f^{\prime}", r"f^\prime"],
    "f''(x)": [r"f^{\prime\prime}(x)", "f″(x)"],
    "x'+x": ["x+x'"],
    "y''+y=0": ["y+y''=0"],
    "x_1'": ["x'_1"],
    r"\int_0^1 x^2 dx": [r"\frac13", r"\int_0^1 x^2\,dx", r"\int_0^1 t^2 dt"],
    r"\int_0^1 \frac{1}{1+x^2}\,dx": [r"\frac{\pi}{4}"],
    r"\sum_{k=1}^3 k": ["6"],
    r"\sum_{k=1}^n k": [r"\frac{n(n+1)}{2}"],
    r"\sum_{k=1}^{\infty}\frac{1}{2^k}": ["1"],
    r"\sum_{k=1}^n a_k": [r"\sum_{k=1}^{n} a_{k}"],
    r"\prod_{k=1}^4 k": ["24"],
    r"\lim_{x\to0}\frac{\sin x}{x}": ["1"],
    r"\frac{d}{dx}x^2": ["2x"],
    r"\gcd(12,18)": ["6"],
}


def test_equal_values_of_different_form():
    """Zeros that a floating-point residue hides, pieces that agree everywhere, primes, and operations in the gold."""
    table = [(gold, f"So it is $\\boxed{{{form}}}$.", True) for gold, forms in EQUAL.items() for form in forms]
    assert mistakes(table) == []


UNEQUAL = {
    "0": [r"\sin 1", "10^{-60}", "e^{-1000}", r"\sin(10^{-40})", "x"],
    "1": ["1+e^{-1000}", "1+10^{-50}", r"\sqrt{1+e^{-1000}}"],
    "6": ["|x-3|+|x+3|", r"\sum_{k=1}^3 k"],
    "10-x": ["|x-10|"],
    "100-x": ["|x-100|", r"\sqrt{(x-100)^2}", "|100-x|"],
    "x+10": ["|x+10|", r"\sqrt{(x+10)^2}"],
    "x-1000": ["|x-1000|"],
    "2x": ["|x-50|+|x+50|"],
    "x": ["x+e^{-1000}", "x+10^{-60}", "x'", r"x^{\prime}", "x''", r"\lfloor x\rfloor"],
    r"\pi": [PI, PI[:52], PI[:62], rf"\frac{{{PI.replace('.', '')}}}{{1{'0' * 80}}}"],
    r"\frac{\pi}{2}": [rf"\frac{{{PI}}}{{2}}"],
    r"\pi r^2": [f"{PI}r^2"],
    r"\sqrt2": [ROOT2, ROOT2[:53]],
    r"\frac{\pi}{4}": [rf"\arctan(1.{'0' * 60}1)"],
    "5": ["5'", r"5^{\prime}", "5''", "5′", r"5\prime"],
    "x+1": ["(x+1)'"],
    "f": ["f'"],
    "f'": ["f", "f''"],
    "f'(x)=2x": ["f(x)=2x"],
    "y'=2x": ["y=2x"],
    "x'": ["x", "x''"],
    "x'+x": ["2x", "2x'"],
    "y''+y=0": ["y'+y=0"],
    r"\int_0^1 x^2 dx": [r"\frac12", r"\int_0^1 x^3 dx"],
    r"\sum_{k=1}^3 k": ["7", "5"],
    r"\sum_{k=1}^n a_k": ["n a_k", "na_n"],
    r"\sum_{k=1}^{n} f(k)": ["nf(k)"],
    r"\sum_{k=1}^{100000000} \frac{\sin k}{k^3+1}": ["1"],
    r"\frac{d}{dx}x^2": ["x^2"],
}


def test_unequal_values_that_look_alike():
    """Pieces that part far out, decimals however long, tiny differences, primes, operations not carried out."""
    table = [(gold, f"So it is $\\boxed{{{form}}}$.", False) for gold, forms in UNEQUAL.items() for form in forms]
    assert mistakes(table) == []


BOXES = [
    ("42", r"\boxed{\boxed{42}}", True),
    ("42", r"\boxed{x = \boxed{42}}", True),
    ("42", r"\boxed {42}", True),
    ("42", "<think>it may be \\boxed{42}", False),
    ("42", "it may be</think>\\boxed{42}", True),
    ("42", "<think>\\boxed{41}</think>\\boxed{42}", True),
    ("42", "\\boxed{42}<think>\\boxed{41}", True),
    ("42", "```\n\\boxed{41}\n```\nso \\boxed{42}", True),
    ("42", "\\boxed{42}\n```python\n\\boxed{41}\n```", True),
    ("42", "\\boxed{42}\n~~~\n\\boxed{41}\n", True),
    ("42", "```\n\\boxed{42}\n", False),
    ("42", r"\boxed{42} and \boxed{}", False),
    ("42", r"\boxed{4}\boxed{2}", False),
    ("12", r"\boxed{1} \boxed{2}", False),
    ("42", r"\boxed{42} then \boxed{43", True),
    ("42", r"\boxedtext{42}", False),
    (r"\{1\}", r"\boxed{\{1\}}", True),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{2}", False),
]


def test_which_box():
    """The last balanced box outside thinking and code alone, an empty one too."""
    assert mistakes(BOXES) == []


def test_truncated_response_has_no_answer():
    """A response cut at the length limit earns nothing, even with the right box in it."""
    judged = verify("42", r"\boxed{42}", truncated=True)
    assert (judged.verdict, judged.path) == ("wrong", "truncated")
    prompt = Prompt("p", "q", (1,), "42", "t")
    assert math_reward(prompt, rollout(r"\boxed{42}", "length"), format_weight=0.5).value == 0.0


def test_thought_opened_by_the_prompt():
    """A chat template that ends in `<think>`: a response that never closes it is all thought."""
    prompt = Prompt("p", "q<think>\n", (1,), "42", "t")
    assert math_reward(prompt, rollout(r"maybe \boxed{42}")).value == 0.0
    assert math_reward(prompt, rollout(r"maybe 41</think>\boxed{42}")).value == 1.0


def test_parts_stay_apart():
    """`correct` and `format` are reported each on its own; the value adds format only where asked."""
    prompt = Prompt("p", "q", (1,), "42", "t")
    wrong = math_reward(prompt, rollout(r"\boxed{41}"), format_weight=0.1)
    assert (wrong.value, wrong.parts) == (0.1, {"correct": 0.0, "format": 1.0})
    assert math_reward(prompt, rollout(r"\boxed{42}")).value == 1.0
    assert math_reward(prompt, rollout(r"\boxed{}"), format_weight=0.1).parts["format"] == 0.0


@pytest.mark.parametrize(
    "gold",
    ["", "  ", "$$", "see solution", "See the proof.", "None", "n/a", r"\boxed{}", r"\frac{1}{0}", "2=3", None, 5,
     r"nonsense \frac{", r"\frac{1}{}", r"\sqrt{}", "2x+", "x=", r"3\cdot", "x^", "{1,2", r"x^{99999}+1"],
)  # fmt: skip
def test_gold_that_is_no_answer_is_refused(gold):
    """B21: such a row is refused at load, and the verifier has failed whatever the response says, or does not say."""
    assert check_gold(gold) is not None
    if isinstance(gold, str):
        for response in (f"\\boxed{{{gold}}}", r"\boxed{1}", r"\boxed{x+7y}", r"\boxed{\text{no}}", "no box"):
            judged = verify(gold, response)
            assert (judged.verdict, judged.path) == ("verifier failed", "gold refused")


TEXTS = [
    "Friday", r"\text{even}", r"\text{None of these}", r"\text{October 30}", r"\text{Softball, Kickball}", "H_2O",
    r"0^+", "solution A", r"\text{no solution}", "$t(0,4]$", r"5'", r"30^\circ 15'", r"\triangle ABC", "]1,2[",
]  # fmt: skip


@pytest.mark.parametrize("gold", TEXTS)
def test_a_text_is_an_ordinary_gold(gold):
    """A word, or a formula beyond the grammar, is compared as a text: right or wrong, and never a failure."""
    answers = ["7", "x+7y", r"\text{odd}", r"\frac{", r"\sqrt{2}x", "(1,3)", "A"]
    table = [(gold, f"\\boxed{{{gold.strip('$')}}}", True), *((gold, f"\\boxed{{{a}}}", False) for a in answers)]
    assert mistakes(table) == []


@pytest.mark.parametrize("name", ["math500.jsonl", "aime24.jsonl", "aime25.jsonl", "olympiadbench_math_en.jsonl"])
def test_golds_of_the_benchmarks_are_read(name):
    """A benchmark's golds are not refused (one of OlympiadBench is a sentence), and each equals itself in a box."""
    golds = [str(row["answer"]) for row in rows(DATA / name)]
    refused = [gold for gold in golds if check_gold(gold)]
    assert len(refused) == (1 if "olympiad" in name else 0)
    assert mistakes([(gold, f"\\boxed{{{gold.strip('$')}}}", True) for gold in golds if gold not in refused]) == []


BOMBS = [
    r"9^{9^{9^{9}}}", r"((10^{10})!)!", r"(x+1)^{10^{10}}", r"10^{10^{100}}", r"\sqrt{10^{10^{10}}}", r"1000000!",
    r"(10^5)!", r"\sin(10^{10^{10}})", r"x^{x^{x^{x^{x}}}}", r"\binom{10^{9}}{10^{8}}", r"\frac{10^{99999}!}{2}",
    "9" * 100_000, "(" * 5000 + "1" + ")" * 5000, "{" * 3000 + "1" + "}" * 3000, "\\frac{1}{" * 500 + "1" + "}" * 500,
    "1+" * 3000 + "1", "x^{" * 300 + "1" + "}" * 300, "\\boxed{" * 400 + "1", "0.\\overline{" + "7" * 5000 + "}",
    "1e999999999", "2^{2^{2^{2^{2}}}}", r"2^{99999}x", r"\sqrt[10^9]{2}", r"3^{3^{3^{x}}}", "1," * 5000,
    "\\pm" * 60 + "1", "!" * 500, "5" + "!" * 40, "-" * 9000 + "1", "\\text{" * 800, "\\cdot" * 2000, "|" * 300 + "1",
    "\\sqrt{" * 200 + "2" + "}" * 200, "x_{" * 200,
]  # fmt: skip


def test_bombs_are_wrong_at_once():
    """Numbers nobody can write down, and texts that break parsers, are wrong answers: no hang, no failure, no crash."""
    import time

    slow = []
    for bomb in BOMBS:
        begun = time.monotonic()
        judged = verify("7", f"\\boxed{{{bomb}}}")
        seconds = time.monotonic() - begun
        if judged.verdict != "wrong" or seconds > 3.0:
            slow.append((bomb[:40], judged.verdict, judged.reason[:80], round(seconds, 2)))
    assert slow == []


JOINED = "several boxes: the last one alone counts"
JOINED_GOLD = "several boxes in the gold: the last one alone counts"
ROUNDED = "a rounded decimal for an exact gold"
CHAIN = "a chain of equalities that contradicts itself is no answer"
COMMA = "a decimal comma in the gold reads as a list of two numbers"
BROKEN = "a formula broken over lines is still a formula"
ORACLE = {
    **dict.fromkeys((6, 17), COMMA),
    **dict.fromkeys((126, 133, 139), ROUNDED),
    **dict.fromkeys((35, 98, 100, 101, 114, 115), CHAIN),
    **dict.fromkeys((183, 202, 232, 233, 234, 236, 238, 239, 243, 244, 245, 246), JOINED),
    **dict.fromkeys((182, 203, 220, 247, 265), JOINED_GOLD),
    **dict.fromkeys((31, 32), BROKEN),
    60: "the gold is a page of prose without an answer, and is refused",
    109: "the gold says 1 = 0 and is refused",
    172: "the last box holds an intermediate result, the answer stands outside it",
    187: "an inequality answers an interval: both directions hold",
    193: "an annulus of complex numbers is no part of the real line",
    214: "the gold's box is not closed",
    258: "1 + 1/e is not 1 - 1/e (the library's known fault)",
    264: "f(x) and f(y) are different (the library's loose mode)",
}
"""Rows of the oracle where the policy here differs from the library, and why."""


def test_oracle_of_math_verify():
    """The 268 rows of the library's own tests, in lenient mode (most have no box): it disagrees in listed rows only."""
    table = rows(DATA / "math_verify_oracle.jsonl")
    assert len(table) == 268
    disagree = set()
    for row in table:
        expected = bool(row["expected"] if "expected" in row else row["result"])
        if (verify(row["gold"], row["pred"], lenient=True).verdict == "ok") != expected:
            disagree.add(int(row["id"].removeprefix("mathverify-")))
    assert disagree == set(ORACLE)


def rollout(text: str, finish="stop") -> Rollout:
    return Rollout(np.zeros(1, np.int64), np.ones(1, bool), np.zeros(1, np.float32), finish, 0, text)
