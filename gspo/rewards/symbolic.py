"""Equality of two LaTeX expressions, decided inside a worker process; the one file that uses math-verify's grammar.

Two expressions are equal when they have the same value at several exact rational points, to 45 significant digits.
No rounding, no case folding of symbols, no number fished out of a formula that did not parse.
"""

from __future__ import annotations

import re
import signal
from functools import lru_cache
from typing import Any

from gspo.rewards import points

DIGITS = 60
CLOSE = 45
"""Significant digits in which two values must agree."""
ZERO_DIGITS, ZERO_DIGITS_SLOW = 1000, 150
"""Digits to which a difference must vanish to be zero; the second where it holds more than elementary functions."""
POINTS = 5
SECONDS = 1.0
"""CPU seconds for working out a sum, an integral, a limit, ... of a gold."""
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


def _vanishes(difference: Any) -> bool:
    """Whether a number that is zero to CLOSE digits is zero: a long decimal is not pi, and e^{-1000} is something."""
    import sympy

    if difference.is_Rational:
        return difference == 0
    roots = sympy.sin, sympy.cos, sympy.tan, sympy.exp, sympy.log, sympy.Abs, sympy.asin, sympy.acos, sympy.atan
    elementary = all(isinstance(f, roots) for f in difference.atoms(sympy.Function))
    value = difference.evalf(20, maxn=ZERO_DIGITS if elementary else ZERO_DIGITS_SLOW)
    # what cannot be told from zero comes out with a precision of a bit or two
    return all(part == 0 or (part.is_Float and part._prec < 8) for part in value.as_real_imag())


def _agree(a: Any, b: Any, point: dict[Any, Any], x: Any, y: Any, exactly: bool) -> bool:
    """Whether a and b, whose numbers at `point` are x and y, have the same value there."""
    import sympy

    tiny = max(abs(v) for v in (*x, *y)) < sympy.Float(10) ** -30
    if not tiny and not _same_number(x, y):
        return False
    return _vanishes(a.subs(point) - b.subs(point)) if tiny or exactly else True


def _unevaluated(expression: Any) -> bool:
    import sympy

    return expression.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)


class _Late(BaseException):
    """Work that took too long; no Exception, which the algebra system would swallow."""


def _late(*_: Any) -> None:
    raise _Late


@lru_cache(maxsize=1024)
def worked_out(expression: Any) -> Any:
    """Sums, integrals, limits, ... replaced by their values; the expression itself where that takes over SECONDS.

    Left alone are indefinite integrals, and terms like a_k or f(x) whose dependence on the running variable is hidden
    in their name.
    """
    import sympy

    if not isinstance(expression, sympy.Basic) or not _unevaluated(expression):
        return expression
    names = {str(s) for s in expression.atoms(sympy.Symbol)}
    for operation in expression.atoms(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative):
        if isinstance(operation, sympy.Integral) and any(len(limits.args) < 3 for limits in operation.limits):
            return expression
        limit = isinstance(operation, sympy.Limit)
        for running in [operation.args[1]] if limit else operation.variables:  # type: ignore[union-attr]
            hidden = re.compile(rf"(?<![A-Za-z]){re.escape(str(running))}(?![A-Za-z])")
            if any(hidden.search(name) for name in names - {str(running)}):
                return expression
    before = signal.signal(signal.SIGVTALRM, _late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return expression.doit()
    except (_Late, NotImplementedError, ValueError, TypeError, ArithmeticError, RecursionError):
        return expression
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _rebuilt(expression: Any) -> Any:
    """The same tree in sympy's canonical order of factors and terms."""
    return expression.func(*map(_rebuilt, expression.args)) if expression.args else expression


def same_expression(a: Any, b: Any) -> bool:
    """The same value wherever both are defined, at up to POINTS points of both signs and, for expressions of several
    pieces, beyond their numbers; undefined everywhere: unequal.
    """
    import sympy

    if a.has(sympy.nan, sympy.zoo) or b.has(sympy.nan, sympy.zoo):
        return False
    if a == b:
        return True
    if _unevaluated(a) or _unevaluated(b):
        return _rebuilt(a) == _rebuilt(b)  # could not be worked out: the same form or not equal
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    if not symbols:
        x, y = _values(a, {}), _values(b, {})
        if x is None or y is None:
            return False
        return _agree(a, b, {}, x, y, exactly=True)
    near, agreed = points.near(symbols), 0
    for number, point in enumerate([*near, *points.far(a, b, symbols)]):
        if agreed >= POINTS and number < len(near):
            continue
        x, y = _values(a, point), _values(b, point)
        if x is None and y is None:
            continue
        if x is None or y is None or not _agree(a, b, point, x, y, exactly=agreed == 0):
            negative = any(v < 0 for v in point.values())
            if negative and (x is None or y is None or x[1] != 0 or y[1] != 0 or _beyond_reals(a, b, point)):
                continue
            return False
        agreed += 1
    return agreed >= 3


def _beyond_reals(a: Any, b: Any, point: dict[Any, Any]) -> bool:
    """Whether a root or logarithm of a negative number stands somewhere in a or b at `point`."""
    import sympy

    roots = [p.base for p in a.atoms(sympy.Pow) | b.atoms(sympy.Pow) if p.exp.is_Rational and not p.exp.is_Integer]
    inner = [*roots, *(f.args[0] for f in a.atoms(sympy.log) | b.atoms(sympy.log))]
    return any(e.subs(point).evalf(15).is_negative for e in inner)


def _proportional(f: Any, g: Any, positive: bool) -> bool:
    """f = c g with a constant c != 0 (c > 0 where asked)."""
    symbols = sorted(f.free_symbols | g.free_symbols, key=str)
    if not symbols or f.free_symbols != g.free_symbols:
        return False
    ratio = f / g
    values = [v for v in (_values(ratio, p) for p in points.near(symbols)) if v is not None]
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
    a, b = worked_out(a), worked_out(b)
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
