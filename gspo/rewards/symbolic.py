"""Equality of two LaTeX expressions, decided inside a worker process; the one file that uses math-verify's grammar.

Two expressions are equal when they have the same value at several exact rational points, to 45 significant digits.
No rounding, no case folding of symbols, no number fished out of a formula that did not parse.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

DIGITS = 60
CLOSE = 45
"""Significant digits in which two values must agree."""
POINTS = 5
WARM = r"""
\frac{x^{2}+1}{3}-\sqrt{2}; 2\cdot x_{1}+3\sin x; y=2x+\frac{1}{2}; 3\sqrt[3]{5}-\pi r^{2}; e^{x}\ln 2
f(x); \log_{2} 8+|x-1|; (a+b)(c-d)!; x^{-2}/4; 2^{n}\times 3; \cos(2\theta)+\arctan 2; \binom{n}{2}
\frac{3x-1}{x^{2}+2}; \sqrt{x^{2}+y^{2}}; (a-b)^{3}+\frac{1}{a}; 2\sin^{2} x; \tan(3x)
\frac{\sqrt{6}-\sqrt{2}}{4}; 3+2i; y=3x^{2}; -\frac{\pi}{3}; \sum_{k=0}^{n-1} a_{k}; F_{n}=3
"""
"""Expressions whose parse builds the grammar's tables."""


@lru_cache(maxsize=4096)
def parse(latex: str) -> Any:
    """A sympy object. Raises ValueError where the text is no mathematics."""
    import sympy
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    normal = NormalizationConfig(basic_latex=False, boxed="none")
    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    try:
        parsed = latex2sympy(latex, normalization_config=normal, conversion_config=config)
    except Exception as error:  # the grammar raises bare Exception
        raise ValueError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    if isinstance(parsed, list | tuple):
        raise ValueError("several expressions")
    if isinstance(parsed, sympy.Basic):
        parsed = parsed.replace(sympy.UnevaluatedExpr, lambda x: x)
        parsed = parsed.replace(lambda e: isinstance(e, sympy.Float), lambda e: sympy.Rational(str(e)))
        parsed = parsed.subs({s: sympy.I for s in parsed.free_symbols if str(s) == "i"})
        applied = sorted(parsed.atoms(sympy.core.function.AppliedUndef), key=str)
        parsed = parsed.xreplace({f: sympy.Symbol(f"<{f}>") for f in applied})
    return parsed


def _values(expression: Any, point: dict[Any, Any]) -> Any:
    """The number at `point`, to DIGITS digits; None where it is undefined."""
    import sympy

    value = expression.subs(point) if point else expression
    value = value.evalf(DIGITS, maxn=400)
    if value.has(sympy.nan, sympy.zoo) or not value.is_number or value.free_symbols:
        return None
    real, imaginary = value.as_real_imag()
    return (real, imaginary) if real.is_number and imaginary.is_number else None


def _same_number(a: Any, b: Any) -> bool:
    """(re, im) pairs agree to CLOSE digits, relative to the larger; below 1e-40 both count as zero."""
    import sympy

    size = max(abs(x) for x in (*a, *b))
    if size is sympy.oo or size is sympy.nan:
        return a == b
    gap = max(abs(a[0] - b[0]), abs(a[1] - b[1]))
    return bool(gap <= size * sympy.Float(10, DIGITS) ** -CLOSE)


def _points(symbols: list[Any], seed: int = 0) -> list[dict[Any, Any]]:
    import sympy

    draw = random.Random(seed)
    signs = [1, 1, -1, 1, -1, 1, -1, 1]
    return [
        {s: sympy.Rational(sign * draw.randint(101, 2999), draw.choice([997, 1009, 1013])) for s in symbols}
        for sign in signs
    ]


def _unevaluated(expression: Any) -> bool:
    import sympy

    return expression.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)


def _rebuilt(expression: Any) -> Any:
    """The same tree in sympy's canonical order of factors and terms."""
    return expression.func(*map(_rebuilt, expression.args)) if expression.args else expression


def same_expression(a: Any, b: Any) -> bool:
    """The same value wherever both are defined, at up to POINTS points of both signs; undefined everywhere: unequal."""
    import sympy

    if a.has(sympy.nan, sympy.zoo) or b.has(sympy.nan, sympy.zoo):
        return False
    if a == b:
        return True
    if _unevaluated(a) or _unevaluated(b):
        return _rebuilt(a) == _rebuilt(b)  # never worked out: the same form or not equal
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    if not symbols:
        x, y = _values(a, {}), _values(b, {})
        if x is None or y is None:
            return False
        if _same_number(x, y):
            return True
        if max(abs(v) for v in (*x, *y)) < sympy.Float(10) ** -30:
            return bool(sympy.simplify(a - b) == 0)
        return False
    agreed = 0
    for point in _points(symbols):
        x, y = _values(a, point), _values(b, point)
        if x is None and y is None:
            continue
        if x is None or y is None or not _same_number(x, y):
            negative = any(v < 0 for v in point.values())
            if negative and (x is None or y is None or x[1] != 0 or y[1] != 0):
                continue
            return False
        agreed += 1
        if agreed == POINTS:
            break
    return agreed >= 3


def _proportional(f: Any, g: Any, positive: bool) -> bool:
    """f = c g with a constant c != 0 (c > 0 where asked)."""
    symbols = sorted(f.free_symbols | g.free_symbols, key=str)
    if not symbols or f.free_symbols != g.free_symbols:
        return False
    ratio = f / g
    values = [v for v in (_values(ratio, p) for p in _points(symbols)) if v is not None]
    if len(values) < 3 or not all(_same_number(values[0], v) for v in values[1:]):
        return False
    real = values[0][0]
    return bool(real > 0) if positive else bool(abs(real) > 0 or abs(values[0][1]) > 0)


def same_relation(a: Any, b: Any) -> bool:
    """Equations (and <, <=, !=) with proportional differences of their sides; a common denominator is cleared first."""
    import sympy

    if isinstance(a, sympy.Gt | sympy.Ge):
        a = a.reversed
    if isinstance(b, sympy.Gt | sympy.Ge):
        b = b.reversed
    if type(a) is not type(b):
        return False
    if _unevaluated(a) or _unevaluated(b):
        return (_rebuilt(a.lhs), _rebuilt(a.rhs)) == (_rebuilt(b.lhs), _rebuilt(b.rhs))
    f, g = a.lhs - a.rhs, b.lhs - b.rhs
    symmetric = isinstance(a, sympy.Eq | sympy.Ne)
    if _proportional(f, g, positive=not symmetric):
        return True
    if not symmetric:
        return False
    return _proportional(sympy.fraction(sympy.together(f))[0], sympy.fraction(sympy.together(g))[0], positive=False)


def same(a: Any, b: Any) -> bool:
    import sympy
    from sympy.core.relational import Relational

    if isinstance(a, sympy.MatrixBase | sympy.MatrixExpr) or isinstance(b, sympy.MatrixBase | sympy.MatrixExpr):
        a, b = (x.doit() if isinstance(x, sympy.MatrixExpr) else x for x in (a, b))
        both = isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase) and a.shape == b.shape
        return bool(both and all(same_expression(x, y) for x, y in zip(a, b, strict=True)))  # type: ignore[arg-type]
    if isinstance(a, Relational) and isinstance(b, Relational):
        return same_relation(a, b)
    if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
        return same_expression(a, b)
    return bool(a == b)


def judge(gold: str, answer: str | None) -> dict[str, Any]:
    """`{"equal": bool}`, or `{"gold_error": why}`, or `{"answer_error": why}`; `answer` None: only parse the gold."""
    try:
        right = parse(gold)
    except ValueError as error:
        return {"gold_error": str(error)}
    if answer is None:
        return {"equal": True}
    try:
        given = parse(answer)
    except ValueError as error:
        return {"answer_error": str(error)}
    return {"equal": same(right, given)}


def warm() -> None:
    """Build the grammar's tables, without which a first parse takes 0.3 s."""
    for latex in WARM.strip().replace("\n", ";").split(";"):
        judge(latex, latex + "+1")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One request of the parent: `{"gold", "answer"}`."""
    return judge(request["gold"], request["answer"])
