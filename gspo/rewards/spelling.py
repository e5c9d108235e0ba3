"""Tables of spellings: Unicode mathematics, LaTeX macros that say the same, and words that are no words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lamda mu nu xi pi rho sigma tau phi chi psi omega"
_CAPITALS = "gamma delta theta lamda xi pi sigma phi psi omega"
_MACROS = r"""
× times ✕ times ⋅ cdot · cdot ∙ cdot • cdot ÷ div ± pm ∓ mp ∞ infty ≤ le ≦ le ⩽ le ≥ ge ≧ ge ⩾ ge ≠ ne
≈ approx ≡ equiv ∈ in ∪ cup ∩ cap ∅ emptyset ∖ setminus ∫ int ∬ iint ∮ oint
∑ sum ∏ prod ∂ partial ∠ angle △ triangle ∆ Delta ∥ parallel
⊥ perp ¬ neg ⟨ langle ⟩ rangle 〈 langle 〉 rangle ⌊ lfloor ⌋ rfloor
⌈ lceil ⌉ rceil → to ∧ land ∨ lor … ldots ⋯ ldots ϕ phi ϵ epsilon
⇒ Rightarrow
"""
SYMBOLS = {
    **{unicodedata.lookup(f"GREEK SMALL LETTER {n}"): f"\\{n.replace('lamda', 'lambda')} " for n in _GREEK.split()},
    **{
        unicodedata.lookup(f"GREEK CAPITAL LETTER {n}"): f"\\{n.replace('lamda', 'lambda').capitalize()} "
        for n in _CAPITALS.split()
    },
    **{symbol: f"\\{name} " for symbol, name in zip(_MACROS.split()[::2], _MACROS.split()[1::2], strict=True)},
    **dict.fromkeys("−–—‒﹣－‐‑➖", "-"),
    **dict.fromkeys("⁄∕", "/"),
    **dict.fromkeys("°º˚", "^\\circ "),
    **dict.fromkeys("′’‘", "'"),
    **{"″": "''", "‴": "'''"},
    **dict.fromkeys("∗＊", "*"),
    **{letter: f"\\mathbb{{{name}}}" for letter, name in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
    **{
        "€": "\\text{euro}",
        "£": "\\text{pound}",
        "¥": "\\text{yen}",
        "¢": "\\text{cent}",
        "∣": "|",
        "“": '"',
        "”": '"',
    },
    **{"ℯ": "e", "𝑒": "e", "ⅈ": "i", "％": "\\%"},
}
"""One character -> LaTeX."""

END = r"(?![A-Za-z])"


def _macro(names: str) -> str:
    return rf"\\(?:{'|'.join(names.split())}){END}"


def _primes(found: re.Match[str]) -> str:
    return "'" * max(1, len(re.findall(r"\\prime|'", found.group(1) or "")))


_SPELLINGS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (_macro("leqslant leqq leq le"), r"\\le "),
    (_macro("geqslant geqq geq ge"), r"\\ge "),
    (_macro("neq ne") + r"|\\not\s*=|!=|<>|(?<==)/=", r"\\ne "),
    (_macro("lt"), "<"),
    (_macro("gt"), ">"),
    (_macro("simeq thickapprox doteq"), r"\\approx "),
    (rf"\\(in|equiv|approx|subset){END}\s*", r"\\\1 "),
    (r"<=|=<", r"\\le "),
    (r">=|=>", r"\\ge "),
    (r"==", "="),
    (_macro("varnothing empty O"), r"\\emptyset "),
    (_macro("dfrac tfrac cfrac nicefrac sfrac flatfrac"), r"\\frac"),
    (_macro("dbinom tbinom"), r"\\binom"),
    (_macro("lbrace"), r"\\{"),
    (_macro("rbrace"), r"\\}"),
    (_macro("lbrack"), "["),
    (_macro("rbrack"), "]"),
    (_macro("lvert rvert vert mid"), "|"),
    (_macro("bullet centerdot") + r"|\*(?!\*)(?<!\*\*)|" + _macro("ast star"), r"\\cdot "),
    (r"\*\*", "^"),
    (_macro("dots cdots dotsc dotsb dotso ldots") + r"|\.\.\.+", r"\\ldots "),
    (_macro("colon"), ":"),
    (_macro("R Reals reals"), r"\\mathbb{R}"),
    (r"\\mathbb\s+([A-Z])", r"\\mathbb{\1}"),
    (_macro("imath imaginaryI"), "i"),
    (r"\^\s*\{\s*\\(?:circ|degree)\s*\}|\^\s*\\(?:circ|degree)" + END + "|" + _macro("degree degrees"), r"^\\circ "),
    (_macro("smallsetminus backslash"), r"\\setminus "),
    (_macro("implies Rightarrow therefore"), r"\\Rightarrow "),
    (_macro("wedge land"), r"\\text{and}"),
    (_macro("vee lor"), r"\\text{or}"),
    (r"\s*\^\s*(?:\{((?:\s*(?:\\prime(?![A-Za-z])|'))+)\s*\}|\\prime(?![A-Za-z]))", _primes),
    (r"\\prime(?![A-Za-z])", "'"),
)
SPELLINGS = tuple((re.compile(pattern), to) for pattern, to in _SPELLINGS)
"""Macros and operators, applied in this order."""

_FONTS = (
    "mathbf mathit mathsf mathtt boldsymbol pmb bm mathcal mathscr mathfrak mathop mathord underline emph ensuremath "
    "boxed fbox vec"
)
FONTS = re.compile(rf"\\(?:{'|'.join(_FONTS.split())}|(?:text)?color\s*\{{\w+\}})\s*(?=\{{)")
"""Wrappers whose content alone counts."""
_TEXTS = r"text textbf textit textrm textnormal textsf texttt textup mbox hbox mathrm rm operatorname\*? operatorname"
TEXTS = re.compile(rf"\\(?:{'|'.join(_TEXTS.split())})\s*(?=\{{)")
"""Wrappers of words."""
_SIZES = "left right middle bigl bigr Bigl Bigr biggl biggr Biggl Biggr big Big bigg Bigg"
_SILENT = "displaystyle textstyle limits nolimits bf rm it sf tt strut hfill null protect centering"
DROPPED = re.compile(rf"\\(?:{'|'.join(_SIZES.split())}){END}\.?|\\(?:{'|'.join(_SILENT.split())}){END}")
_SPACES = "quad qquad enspace thinspace medspace thickspace space"
SPACES = re.compile(rf"\\(?:{'|'.join(_SPACES.split())}){END}|\\hspace\*?\{{[^}}]*\}}|\\phantom\{{[^}}]*\}}|\\[,;: ]|~")
NAMES = (
    "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc log ln exp pi infty theta alpha beta gamma delta "
    "lambda mu sigma omega phi"
)
"""Names that mean the same with and without their backslash."""
NAME = "|".join(NAMES.split())
SHORT_WORDS = frozenset(
    [
        "cm",
        "mm",
        "km",
        "kg",
        "mg",
        "ml",
        "ft",
        "in",
        "yd",
        "mi",
        "hr",
        "lb",
        "oz",
        "am",
        "pm",
        "no",
        "or",
        "and",
        "if",
        "is",
        "of",
        "to",
        "at",
        "per",
        "odd",
        "yes",
        "all",
        "day",
        "mph",
        "pct",
        "min",
        "sec",
    ]
)
"""Words of two or three small letters; any others are products of variables."""
