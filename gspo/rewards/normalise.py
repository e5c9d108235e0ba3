"""One spelling for every way of writing the same answer: text in, LaTeX-like text out.

Nothing here changes a value; what can be read in two ways (`4,096`) is left to the reader in exact.py.
Words and units come out as `\\text{...}` tokens, everything else as plain LaTeX.
"""

from __future__ import annotations

import re
import unicodedata

from gspo.rewards.answers import group_end, last_box

GREEK = {
    unicodedata.lookup(f"GREEK SMALL LETTER {name.upper()}"): f"\\{name.replace('lamda', 'lambda')} "
    for name in [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "zeta",
        "eta",
        "theta",
        "iota",
        "kappa",
        "lamda",
        "mu",
        "nu",
        "xi",
        "pi",
        "rho",
        "sigma",
        "tau",
        "phi",
        "chi",
        "psi",
        "omega",
    ]
}
SYMBOLS = GREEK | {
    "−": "-", "–": "-", "—": "-", "‒": "-", "﹣": "-", "－": "-", "‐": "-", "‑": "-", "➖": "-",
    "×": "\\times ", "✕": "\\times ", "⋅": "\\cdot ", "·": "\\cdot ", "∙": "\\cdot ", "•": "\\cdot ", "∗": "*",
    "÷": "\\div ", "⁄": "/", "∕": "/", "±": "\\pm ", "∓": "\\mp ", "∞": "\\infty ", "°": "^\\circ ", "º": "^\\circ ", "˚": "^\\circ ",
    "≤": "\\le ", "≦": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "≧": "\\ge ", "⩾": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "≡": "\\equiv ",
    "∈": "\\in ", "∪": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ", "∖": "\\setminus ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}",
    "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}", "∫": "\\int ", "∑": "\\sum ", "∏": "\\prod ", "∠": "\\angle ", "△": "\\triangle ",
    "⟨": "\\langle ", "⟩": "\\rangle ", "〈": "\\langle ", "〉": "\\rangle ", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ",
    "€": "\\text{euro}", "£": "\\text{pound}", "¥": "\\text{yen}", "¢": "\\text{cent}", "％": "\\%", "→": "\\to ", "∧": "\\land ", "∨": "\\lor ",
    "′": "'", "’": "'", "“": '"', "”": '"', "…": "\\ldots ", "⋯": "\\ldots ", "π": "\\pi ", "Δ": "\\Delta ", "Ω": "\\Omega ", "𝑒": "e", "ℯ": "e",
    "Σ": "\\Sigma ", "Π": "\\Pi ", "Φ": "\\Phi ", "ϕ": "\\phi ", "∣": "|", "∥": "\\parallel ", "⊥": "\\perp ", "¬": "\\neg ", "∆": "\\Delta ",
}  # fmt: skip
TABLE = str.maketrans(SYMBOLS)
FONTS = re.compile(
    r"\\(?:mathbf|mathit|mathsf|mathtt|boldsymbol|pmb|bm|mathcal|mathscr|mathfrak|mathop|mathord|underline|emph|ensuremath|displaystyle|"
    r"textcolor\{\w+\}|color\{\w+\}|boxed|fbox|vec|overrightarrow)\s*(?=\{)"
)
TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|textsf|texttt|textup|mbox|hbox|mathrm|rm|operatorname\*?|operatorname)\s*(?=\{)"
)
DROPPED = re.compile(
    r"\\(?:left|right|middle|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|big|Big|bigg|Bigg|displaystyle|textstyle|limits|nolimits|"
    r"bf|rm|it|sf|tt|strut|hfill|null|protect|centering)(?![A-Za-z])\.?"
)
SPACES = re.compile(
    r"\\(?:quad|qquad|enspace|thinspace|medspace|thickspace|space|hspace\*?\{[^}]*\}|hskip|phantom\{[^}]*\}|[,;: ])(?![A-Za-z](?<=\\[a-z]))|~"
)
NAMES = [
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
    "log",
    "ln",
    "exp",
    "pi",
    "infty",
    "sqrt",
    "theta",
    "alpha",
    "beta",
    "gamma",
    "delta",
    "lambda",
    "mu",
    "sigma",
    "omega",
    "phi",
]
RELATIONS = (
    (r"\\(?:leqslant|leqq|leq|le)(?![A-Za-z])", r"\\le "), (r"\\(?:geqslant|geqq|geq|ge)(?![A-Za-z])", r"\\ge "),
    (r"\\(?:neq|ne)(?![A-Za-z])|\\not\s*=", r"\\ne "), (r"\\lt(?![A-Za-z])", "<"), (r"\\gt(?![A-Za-z])", ">"),
    (r"\\(in|equiv|approx|subset)(?![A-Za-z])\s*", r"\\\1 "), (r"<=|=<", r"\\le "), (r">=|=>", r"\\ge "), (r"!=|<>|(?<==)/=", r"\\ne "), (r"==", "="), (r"\\(?:simeq|thickapprox|doteq)(?![A-Za-z])", r"\\approx "),
    (r"\\(?:varnothing|empty|O)(?![A-Za-z])", r"\\emptyset "), (r"\\(?:dfrac|tfrac|cfrac|nicefrac|sfrac|flatfrac)(?![A-Za-z])", r"\\frac"),
    (r"\\(?:dbinom|tbinom)(?![A-Za-z])", r"\\binom"), (r"\\lbrace(?![A-Za-z])", r"\\{"), (r"\\rbrace(?![A-Za-z])", r"\\}"),
    (r"\\lbrack(?![A-Za-z])", "["), (r"\\rbrack(?![A-Za-z])", "]"), (r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])", "|"),
    (r"\\(?:ast|star)(?![A-Za-z])", "*"), (r"\*\*", "^"), (r"\\(?:bullet|centerdot)(?![A-Za-z])", r"\\cdot "), (r"\*", r"\\cdot "),
    (r"\\(?:dots|cdots|dotsc|dotsb|dotso|ldots)(?![A-Za-z])|\.\.\.+", r"\\ldots "), (r"\\colon(?![A-Za-z])", ":"),
    (r"\\(?:R|Reals|reals)(?![A-Za-z])", r"\\mathbb{R}"), (r"\\mathbb\s+([A-Z])", r"\\mathbb{\1}"), (r"\\imaginaryI|\\imath(?![A-Za-z])", "i"),
    (r"\^\s*\{\s*\\(?:circ|degree)\s*\}|\^\s*\\(?:circ|degree)(?![A-Za-z])|\\(?:degree|degrees)(?![A-Za-z])", r"^\\circ "), (r"\\smallsetminus(?![A-Za-z])|\\backslash(?![A-Za-z])", r"\\setminus "),
    (r"\\(?:implies|Rightarrow|therefore)(?![A-Za-z])", r"\\Rightarrow "), (r"\\(?:wedge|land)(?![A-Za-z])", r"\\text{and}"), (r"\\(?:vee|lor)(?![A-Za-z])", r"\\text{or}"),
)  # fmt: skip
RELATIONS = tuple((re.compile(pattern), to) for pattern, to in RELATIONS)
GROUPED = re.compile(
    r"(?<![\d.,])(\d{1,3})((?:(?:\s*\{\s*,\s*\}\s*|\s*,\s*\\!\s*|\s*\\!\s*,?\s*|\s*\\[,;: ]\s*|~|[ '_])\d{3})+)(?![\d])"
)


def _unicode(text: str) -> str:
    """ASCII LaTeX for Unicode mathematics: roots, fractions, raised and lowered digits, full-width and other digits."""
    out: list[str] = []
    for ch in text:
        kind = unicodedata.decomposition(ch).split(" ")[0]
        if ch in SYMBOLS:
            out.append(SYMBOLS[ch])
        elif kind == "<fraction>" and "⁄" in (plain := unicodedata.normalize("NFKC", ch)):
            top, _, bottom = plain.partition("⁄")
            out.append(f"\\frac{{{top}}}{{{bottom}}}" if bottom else plain)
        elif kind in ("<super>", "<sub>") and ch not in "ªº™℠":
            mark = "^" if kind == "<super>" else "_"
            plain = unicodedata.normalize("NFKC", ch).replace("−", "-")
            if out and out[-1].startswith(mark + "{") and len(out[-1]) > 2:
                out[-1] = f"{out[-1][:-1]}{plain}}}"
            else:
                out.append(f"{mark}{{{plain}}}")
        elif unicodedata.category(ch) == "Nd":
            out.append(str(unicodedata.decimal(ch)))
        elif unicodedata.category(ch) in ("Cf", "Co", "Cn"):
            continue
        else:
            out.append(unicodedata.normalize("NFKC", ch).translate(TABLE))
    text = "".join(out)
    for root, index in (("√", ""), ("∛", "[3]"), ("∜", "[4]")):
        text = re.sub(rf"{root}\s*\(([^()]*)\)", rf"\\sqrt{index}{{\1}}", text)
        text = re.sub(rf"{root}\s*\{{", rf"\\sqrt{index}{{", text)
        text = re.sub(rf"{root}\s*(\d+(?:\.\d+)?|\\?[A-Za-z]+)", rf"\\sqrt{index}{{\1}}", text)
    return text


def _argument(text: str, start: int) -> tuple[str, int]:
    """A macro's argument at `start`: a group, a macro or one character; and where it ends."""
    while start < len(text) and text[start] == " ":
        start += 1
    if start >= len(text):
        return "", start
    if text[start] == "{":
        end = group_end(text, start)
        return (text[start + 1 : end - 1], end) if end > 0 else (text[start + 1 :], len(text))
    if text[start] == "\\":
        macro = re.compile(r"\\(?:[A-Za-z]+|.)").match(text, start)
        end = macro.end() if macro else len(text)
        return text[start:end], end
    return text[start], start + 1


def _braces(text: str) -> str:
    """`\\frac12`, `\\frac1{2}`, `\\sqrt2`, `\\binom52`, `x^10`, with their arguments in braces."""
    for name, count in (("frac", 2), ("binom", 2), ("sqrt", 1)):
        macro, position, out = re.compile(rf"\\{name}(?![A-Za-z])\s*(\[[^\]]*\])?"), 0, []
        while found := macro.search(text, position):
            out += [text[position : found.start()], f"\\{name}", found.group(1) or ""]
            end = found.end()
            for _ in range(count):
                argument, end = _argument(text, end)
                out.append(f"{{{_braces(argument.strip())}}}")
            position = end
        text = "".join([*out, text[position:]])
    text = re.sub(r"\^\s*(-?)\s*(\d{2,}|-\d)(?![\d.])", r"^{\1\2}", text)
    return re.sub(r"\^\s*([A-Za-z0-9])", r"^{\1}", text)


def _unwrap(text: str, macro: re.Pattern[str], to: str) -> str:
    """Replace `\\macro{content}` by `to` with the content put in for `@`."""
    position, out = 0, []
    while found := macro.search(text, position):
        end = group_end(text, found.end())
        if end < 0:
            break
        inner = _unwrap(text[found.end() + 1 : end - 1], macro, to)
        out += [text[position : found.start()], to.replace("@", inner) if to == "@" else _word(inner)]
        position = end
    return "".join([*out, text[position:]])


def _word(inner: str) -> str:
    """What a `\\text{...}` holds: mathematics comes out bare, words keep the wrapper."""
    bare = re.sub(r"\s+", " ", inner.replace("$", "").replace("~", " ")).strip()
    if re.fullmatch(r"(?:,\s*)?(?:and|or|und|oder)(?:\s*,)?", bare, re.I):
        return f" \\text{{{bare.strip(', ').lower()}}} "
    if not bare:
        return " "
    if not re.search(r"[A-Za-z]{2,}", bare) and re.search(r"[\d=<>+]", bare):
        return f" {bare} "
    if re.fullmatch(r"[eidx]", bare):
        return bare
    if re.fullmatch(r"[A-Za-z]?\s*\\?(?:" + "|".join(NAMES) + ")", bare):
        return f"\\{bare.lstrip(chr(92))} "
    return f"\\text{{{bare}}}"


def _bare_words(text: str) -> str:
    """Words outside `\\text{}`: function names get their backslash, other words the wrapper; `xy` stays a product."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found.group(0))
        return f"\x00{len(kept) - 1}\x00"

    text = re.sub(
        r"\\text\{[^{}]*\}|\\(?:begin|end|operatorname)\{[^{}]*\}|\\[A-Za-z]+(?:\{[a-z]+\}(?=\{))?|\\.", keep, text
    )
    text = re.sub(r"(?<![A-Za-z])(infinity|inf|Infinity|oo)(?![A-Za-z])", r"\\infty ", text)
    text = re.sub(r"(?<![A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![A-Za-z])(" + "|".join(NAMES) + r")(?![A-Za-z])", r"\\\1 ", text)
    text = re.sub(r"(?<![A-Za-z\\\x00])([A-Za-z]{2,}(?:[ '-]+[A-Za-z]{2,})*)(?![A-Za-z])", _maybe_word, text)
    for _ in range(2):
        text = re.sub("\x00(\\d+)\x00", lambda m: kept[int(m.group(1))], text)
    return text


UNIT_LETTERS = {
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
}


def _maybe_word(found: re.Match[str]) -> str:
    word = found.group(1)
    if (
        re.fullmatch(r"[a-z]{2,3}", word)
        and word not in UNIT_LETTERS
        and word not in ("odd", "yes", "all", "day", "mph", "pct", "min", "sec")
    ):
        return word
    pieces = re.split(r"\s*\b(and|or)\b\s*", word)
    if len(pieces) > 1:
        return "".join(f" \\text{{{piece}}} " for piece in pieces if piece)
    return f"\\text{{{word}}}"


def _groups_of_three(text: str) -> str:
    """`4{,}096`, `10\\,000`, `1 000`: separators that can only separate thousands."""
    return GROUPED.sub(lambda m: m.group(1) + re.sub(r"\D", "", m.group(2)), text)


def normalise(text: str) -> str:
    """The one spelling. Idempotent on what it returns."""
    text = _unicode(text.strip())
    box = last_box(text)
    if box is not None:
        text = box
    text = (
        re.sub(r"\\\\(?=[A-Za-z]{2,}|[{}%$,;!])", r"\\", text)
        if not re.search(r"\\begin|\\\\\s*\\(?!\w)", text)
        else text
    )
    text = text.replace("\\\\", "\x01")
    text = (
        text.replace("\\$", "\\text{dollar}")
        .replace("\\(", "")
        .replace("\\)", "")
        .replace("\\[", "")
        .replace("\\]", "")
    )
    text = re.sub(r"^\$(?=[\d.,]+$)", r"\\text{dollar}", text)
    text = text.replace("$", " ").replace("\\&", "&").replace("\\#", "#").replace("\\_", "_")
    text = re.sub(r"\\text\{dollar\}\s*\\text\{dollar\}", r"\\text{dollar}", text)
    text = _groups_of_three(text)
    text = text.replace("\\!", "")
    text = FONTS.sub("", text) if False else _unwrap(text, FONTS, "@")
    text = _unwrap(text, TEXT, "text")
    text = SPACES.sub(" ", DROPPED.sub("", text))
    for pattern, to in RELATIONS:
        text = pattern.sub(to, text)
    text = _bare_words(text)
    text = _braces(_groups_of_three(text))
    text = re.sub(r"\s+", " ", text.replace("\x01", "\\\\")).strip()
    text = re.sub(r"(?<=[\d})\]!a-z])\s*[.,;:]+$", "", text)
    return text.strip()
