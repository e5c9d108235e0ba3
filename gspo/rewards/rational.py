"""Exact rational value of plain arithmetic in LaTeX; numbers too big to write down are refused, not worked out.

Reads integers, decimals (repeating ones too), scientific notation, fractions, mixed numbers, powers, factorials,
binomials and roots of perfect powers. Fractions only: no floats, no sympy.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from gspo.rewards.answers import group_end

MOST_BITS = 20_000
"""Longest numerator or denominator that is worked out."""
MOST_DIGITS = 1_000
MOST_DEPTH = 40
MOST_CHARACTERS = 4_000

NUMBER = re.compile(
    r"(\d+(?:\.(?!\.)\d*)?|\.\d+)(?:\s*\\overline\{(\d+)\}|\s*\\(?:dot|bar)\{(\d+)\}|\s*\\ldots)?(?:[eE]([-+]?\d+)(?![\d.]))?"
)
MIXED = re.compile(r"(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}|(\d+) (\d+)/(\d+)(?![\d.])")


class TooBig(ValueError):
    """The text names a number that nobody should work out."""


class NotRational(ValueError):
    """The text is not arithmetic on rational numbers, or divides by zero."""


def _bits(x: Fraction) -> int:
    return max(x.numerator.bit_length(), x.denominator.bit_length())


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return _root(_power(base, Fraction(exponent.numerator)), exponent.denominator)
    n = exponent.numerator
    if base in (0, 1, -1):
        if base == 0 and n <= 0:
            raise NotRational("0 to a power that is not positive")
        return base if n % 2 else base * base
    if _bits(base) * abs(n) > MOST_BITS:
        raise TooBig(f"a power of about 2^{_bits(base) * abs(n)}")
    return base**n


def _root(x: Fraction, degree: int) -> Fraction:
    if not 1 <= degree <= 64:
        raise NotRational("a root of that degree")
    if x < 0 and degree % 2 == 0:
        raise NotRational("an even root of a negative number")

    def whole(n: int) -> int:
        if degree == 2:
            guess = math.isqrt(n)
        else:
            low, high = 0, 1 << (n.bit_length() // degree + 1)
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if middle**degree <= n else (low, middle - 1)
            guess = low
        if guess**degree != n:
            raise NotRational("an irrational root")
        return guess

    sign = -1 if x < 0 else 1
    return sign * Fraction(whole(abs(x.numerator)), whole(x.denominator))


def _factorial(x: Fraction) -> Fraction:
    if x.denominator != 1 or x < 0:
        raise NotRational("a factorial of no natural number")
    if x > 2_000:
        raise TooBig("a factorial above 2000!")
    return Fraction(math.factorial(int(x)))


def _binomial(n: Fraction, k: Fraction) -> Fraction:
    if n.denominator != 1 or k.denominator != 1 or n < 0 or k < 0:
        raise NotRational("a binomial of no natural numbers")
    if min(k, n - k) > 2_000 or n > 10**9:
        raise TooBig("a binomial coefficient above C(4000, 2000)")
    return Fraction(math.comb(int(n), int(k)))


def number(found: re.Match[str]) -> Fraction:
    """The value of a NUMBER literal."""
    digits, block = found.group(1), found.group(2) or found.group(3)
    if len(digits) > MOST_DIGITS:
        raise TooBig(f"a literal of {len(digits)} digits")
    power = int(found.group(4) or 0) if len(found.group(4) or "") < 6 else MOST_BITS
    if abs(power) * 4 > MOST_BITS:
        raise TooBig("a decimal exponent above 5000")
    whole, _, part = digits.partition(".")
    value = Fraction(int(whole or 0))
    if part:
        value += Fraction(int(part), 10 ** len(part))
    if block:
        if "." not in digits:
            raise NotRational("a bar over an integer's digits")
        value += Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(part))
    elif found.group(0).rstrip().endswith("\\ldots"):
        value = _periodic(whole, part)
    return value * Fraction(10) ** power


def _periodic(whole: str, part: str) -> Fraction:
    """`0.333...`: a block shown at least three times goes on for ever. Raises NotRational for any other `...`."""
    repeat = re.fullmatch(r"(\d*?)(\d{1,12}?)\2{2,}", part)
    if repeat is None:
        raise NotRational("a decimal that goes on unknown")
    head, block = repeat.groups()
    return Fraction(int(whole + head), 10 ** len(head)) + Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(head))


class _Reader:
    """Recursive descent over one text; each method consumes from `at`."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def peek(self, *tokens: str) -> str:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1
        return next((t for t in tokens if self.text.startswith(t, self.at)), "")

    def eat(self, *tokens: str) -> str:
        token = self.peek(*tokens)
        self.at += len(token)
        return token

    def total(self) -> Fraction:
        value = self.product()
        while sign := self.eat("+", "-"):
            term = self.product()
            value = value + term if sign == "+" else value - term
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while True:
            if self.eat("\\cdot", "\\times", "*"):
                value *= self.factor()
            elif self.eat("/", "\\div"):
                divisor = self.factor()
                if divisor == 0:
                    raise NotRational("a division by zero")
                value /= divisor
            elif self.peek("(", "[", "{", "\\frac", "\\sqrt", "\\binom"):
                value *= self.factor()
            else:
                return value
            if _bits(value) > MOST_BITS:
                raise TooBig("a product of too many digits")

    def factor(self) -> Fraction:
        negative = False
        while sign := self.eat("+", "-"):
            negative ^= sign == "-"
        value = self.atom()
        while self.eat("!"):
            value = _factorial(value)
        if self.eat("^"):
            value = _power(value, self.group())
        while self.eat("!"):
            value = _factorial(value)
        return -value if negative else value

    def group(self) -> Fraction:
        """The value inside `{...}`."""
        self.peek()
        end = group_end(self.text, self.at) if self.peek("{") else -1
        if end < 0:
            raise NotRational("braces expected")
        inner, self.at = self.text[self.at + 1 : end - 1], end
        return rational(inner, self.depth + 1)

    def atom(self) -> Fraction:
        self.peek()
        mixed = MIXED.match(self.text, self.at)
        if mixed and not (self.at and self.text[self.at - 1].isdigit()):
            whole, top, bottom = mixed.group(1, 2, 3) if mixed.group(1) else mixed.group(4, 5, 6)
            if len(mixed.group(0)) < MOST_DIGITS and int(top) < int(bottom):
                self.at = mixed.end()
                return int(whole) + Fraction(int(top), int(bottom))
        if found := NUMBER.match(self.text, self.at):
            self.at = found.end()
            return number(found)
        if self.eat("\\frac"):
            top, bottom = self.group(), self.group()
            if bottom == 0:
                raise NotRational("a division by zero")
            return top / bottom
        if self.eat("\\binom"):
            return _binomial(self.group(), self.group())
        if self.eat("\\sqrt"):
            degree = Fraction(2)
            if self.eat("["):
                end = self.text.find("]", self.at)
                degree, self.at = rational(self.text[self.at : end], self.depth + 1), end + 1
            if degree.denominator != 1 or degree > 64:
                raise NotRational("a root of that degree")
            return _root(self.group(), int(degree))
        for opening, closing in (("(", ")"), ("[", "]"), ("|", "|"), ("{", "}")):
            if self.eat(opening):
                self.depth += 1
                if self.depth > MOST_DEPTH:
                    raise TooBig("brackets nested too deep")
                value = self.total()
                self.depth -= 1
                if not self.eat(closing):
                    raise NotRational(f"{closing} expected")
                return abs(value) if opening == "|" else value
        raise NotRational("no number")


def rational(text: str, depth: int = 0) -> Fraction:
    """The exact value. Raises NotRational where the text is not plain arithmetic, TooBig where nobody should try."""
    if depth > MOST_DEPTH:
        raise TooBig("braces nested too deep")
    if len(text) > MOST_CHARACTERS:
        raise TooBig(f"a text of {len(text)} characters")
    reader = _Reader(text)
    reader.depth = depth
    value = reader.total()
    reader.peek()
    if reader.at != len(text):
        raise NotRational(f"{text[reader.at :][:20]!r} is left over")
    return value
