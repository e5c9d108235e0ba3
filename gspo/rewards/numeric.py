"""Values of LaTeX expressions to 50 digits, to tell apart at once what is clearly different.

It only ever says "different": two readable expressions whose values differ at two points by more than rounding can
explain. Whether the rest are equal is decided elsewhere. Calls such as `f(x)` count as products, which is one f among
many: what is equal for every f stays equal.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from gspo.rewards.answers import group_end
from gspo.rewards.rational import MIXED, MOST_DEPTH, NUMBER, NotRational, TooBig, number

FAR = "1e-20"
"""Difference beyond which two values are different: relative, and absolute, since what cancels leaves a residue."""
POINTS = (("0.7391", "0.1237"), ("1.3807", "0.2741"), ("2.6179", "0.0913"))
"""Value of the first variable, and the step to the next, in alphabetical order."""
FUNCTIONS = (
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "ln",
    "exp",
)
"""Longer names first."""
CALLS = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
GREEK_NAMES = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega|Delta|Omega"
)
GREEK = re.compile(rf"\\({GREEK_NAMES})(?![A-Za-z])")
SUBSCRIPT = re.compile(r"\s*_\s*(?:\{([A-Za-z0-9,]+)\}|([A-Za-z0-9]))")


class Unreadable(ValueError):
    """Not an expression this reader is sure of."""


class _Reader:
    def __init__(self, text: str, context: Any, variables: dict[str, Any]) -> None:
        self.text, self.mp, self.variables, self.at, self.depth = text, context, variables, 0, 0

    def peek(self, *tokens: str) -> str:
        while self.text.startswith(" ", self.at):
            self.at += 1
        return next((t for t in tokens if self.text.startswith(t, self.at)), "")

    def eat(self, *tokens: str) -> str:
        token = self.peek(*tokens)
        self.at += len(token)
        return token

    def sum(self) -> Any:
        value = self.product()
        while sign := self.eat("+", "-"):
            term = self.product()
            value = value + term if sign == "+" else value - term
        return value

    def product(self, argument: bool = False) -> Any:
        """Factors; as a function's argument, only those that stand together without a sign or another function."""
        value, divided = self.factor(), False
        while True:
            operator = "" if argument else self.eat("\\cdot", "\\times", "/", "\\div")
            if not operator and not self._starts_factor(argument):
                return value
            if divided and not operator:
                raise Unreadable("1/2x")
            divided = operator in ("/", "\\div")
            factor = self.factor()
            value = value / factor if divided else value * factor

    def _starts_factor(self, argument: bool) -> bool:
        rest = self.peek("+", "-", "=", ")", "]", "}", "|", ",", "!")
        if rest or self.at >= len(self.text):
            return False
        if argument and (self.peek("(", "[") or any(self.peek(f"\\{f}") for f in (*FUNCTIONS, "log"))):
            return False
        if self.text[self.at].isdigit() and self.at and re.search(r"[\d.]\s*$", self.text[: self.at]):
            raise Unreadable("two numbers side by side")
        return True

    def factor(self) -> Any:
        sign = 1
        while token := self.eat("+", "-"):
            sign = -sign if token == "-" else sign
        value = self.atom()
        if self.eat("^\\circ"):
            value = value * self.mp.pi / 180
        elif self.eat("^"):
            value = self.power(value, self.group())
        if self.peek("!", "'", "^", "_"):
            raise Unreadable("a mark behind a factor")
        return sign * value

    def power(self, base: Any, exponent: Any) -> Any:
        if abs(exponent) > 5000:
            raise Unreadable("a large exponent")
        return self.mp.power(base, exponent)

    def group(self) -> Any:
        end = group_end(self.text, self.at) if self.peek("{") else -1
        if end < 0:
            raise Unreadable("braces expected")
        inner = _Reader(self.text[self.at + 1 : end - 1], self.mp, self.variables)
        inner.depth, self.at = self.depth + 1, end
        return inner.whole()

    def whole(self) -> Any:
        if self.depth > MOST_DEPTH:
            raise Unreadable("nested too deep")
        value = self.sum()
        self.peek()
        if self.at != len(self.text):
            raise Unreadable(f"{self.text[self.at :][:20]!r} is left over")
        return value

    def atom(self) -> Any:
        self.peek()
        if mixed := MIXED.match(self.text, self.at):
            whole, top, bottom = (int(x) for x in (mixed.group(1, 2, 3) if mixed.group(1) else mixed.group(4, 5, 6)))
            if top < bottom:
                self.at = mixed.end()
                return whole + self.mp.mpf(top) / bottom
        if found := NUMBER.match(self.text, self.at):
            self.at = found.end()
            exact = number(found)
            return self.mp.mpf(exact.numerator) / exact.denominator
        if self.eat("\\frac"):
            top = self.group()
            return top / self.group()
        if self.eat("\\sqrt"):
            index = self.mp.mpf(2)
            if self.eat("["):
                end = self.text.find("]", self.at)
                index, self.at = self.mp.mpf(int(self.text[self.at : end])), end + 1
            return self.power(self.group(), 1 / index)
        if name := next((f for f in FUNCTIONS if self.eat(f"\\{f}")), ""):
            return self.call(name)
        if self.eat("\\log"):
            if not self.eat("_"):
                raise Unreadable("a logarithm without base")
            base = self.group() if self.peek("{") else self.mp.mpf(int(self.text[self.at]))
            self.at += 0 if self.text[self.at - 1] == "}" else 1
            return self.mp.ln(self.argument()) / self.mp.ln(base)
        if self.eat("\\pi"):
            return +self.mp.pi
        for opening, closing in (("(", ")"), ("[", "]"), ("|", "|"), ("{", "}")):
            if self.eat(opening):
                self.depth += 1
                if self.depth > MOST_DEPTH:
                    raise Unreadable("nested too deep")
                value = self.sum()
                self.depth -= 1
                if not self.eat(closing):
                    raise Unreadable(f"{closing} expected")
                return abs(value) if opening == "|" else value
        return self.variable()

    def call(self, name: str) -> Any:
        exponent = self.group() if self.eat("^") else None
        if exponent is not None and self.mp.re(exponent) < 0:
            raise Unreadable("an inverse function")
        value = getattr(self.mp, CALLS.get(name, name))(self.argument())
        return value if exponent is None else self.power(value, exponent)

    def argument(self) -> Any:
        if self.peek("(", "[", "|", "{"):
            return self.atom()
        return self.product(argument=True)

    def variable(self) -> Any:
        found = GREEK.match(self.text, self.at) or re.compile(r"([A-Za-z])").match(self.text, self.at)
        if not found:
            raise Unreadable(f"{self.text[self.at :][:20]!r}")
        name, self.at = found.group(1), found.end()
        if subscript := SUBSCRIPT.match(self.text, self.at):
            name, self.at = f"{name}_{subscript.group(1) or subscript.group(2)}", subscript.end()
        elif name in "ei":
            return +self.mp.e if name == "e" else self.mp.mpc(0, 1)
        return self.variables[name]


class _Names(dict):
    """Collects the names an expression asks for."""

    def __init__(self, one: Any) -> None:
        super().__init__()
        self.one = one

    def __missing__(self, name: str) -> Any:
        self[name] = self.one
        return self.one


_lock = threading.Lock()
_context: Any = None


def _values(texts: tuple[str, str]) -> list[tuple[Any, Any]]:
    """Both values at each point. Raises Unreadable."""
    global _context
    if _context is None:
        from mpmath import MPContext

        _context = MPContext()
        _context.dps = 50
    names = _Names(_context.mpf("1.5"))
    for text in texts:
        if "\\frac{d}{d" in text:
            raise Unreadable("a derivative")
        _Reader(text, _context, names).whole()
    values = []
    for first, step in POINTS if names else POINTS[:1]:
        point = {n: _context.mpf(first) + i * _context.mpf(step) for i, n in enumerate(sorted(names))}
        values.append(tuple(_Reader(text, _context, point).whole() for text in texts))
    return values


def clearly_different(gold: str, answer: str) -> bool:
    """Whether two expressions certainly have different values; False where it cannot tell."""
    with _lock:  # the arithmetic context is shared
        try:
            values = _values((gold, answer))
            far = _context.mpf(FAR)
            apart = [
                abs(x - y) > far * max(1, abs(x), abs(y))
                for x, y in values
                if _context.isfinite(x) and _context.isfinite(y)
            ]
        except (ArithmeticError, ValueError, NotRational, TooBig, RecursionError):
            return False
    return len(apart) == len(values) and all(apart)
