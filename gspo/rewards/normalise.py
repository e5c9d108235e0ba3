"""One spelling for every way of writing the same answer: text in, LaTeX-like text out.

Nothing here changes a value; what can be read in two ways (`4,096`) is left to structure.py. Words and units come out
as `\\text{...}` tokens, everything else as plain LaTeX.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from gspo.rewards.answers import group_end, last_box
from gspo.rewards.spelling import DROPPED, FONTS, NAME, SHORT_WORDS, SPACES, SPELLINGS, SYMBOLS, TEXTS

THOUSANDS = re.compile(
    r"(?<![\d.,])(\d{1,3})((?:(?:\s*\{\s*,\s*\}\s*|\s*,\s*\\!\s*|\s*\\!\s*,?\s*|\s*\\[,;: ]\s*|~|[ '_])\d{3})+)(?!\d)"
)
TOKENS = re.compile(r"\\text\{[^{}]*\}|\\(?:begin|end)\{[^{}]*\}|\\mathbb\{[A-Z]\}|\\[A-Za-z]+|\\.")
CURRENCY = re.compile(r"^\$(?=[\d.,]+$)")
PLAIN = re.compile(r"-?[0-9]{1,300}(?:\.[0-9]{1,300})?")
"""Numbers that have one spelling already."""
LINE_BREAK, KEPT = "\x01", "\x00"


def from_unicode(text: str) -> str:
    """ASCII LaTeX for Unicode mathematics: roots, fractions, raised and lowered digits, full-width and other digits."""
    out: list[str] = []
    for ch in text:
        kind = unicodedata.decomposition(ch).split(" ")[0]
        if ch.isascii():
            out.append(ch)
        elif ch in SYMBOLS:
            out.append(SYMBOLS[ch])
        elif kind == "<fraction>":
            top, _, bottom = unicodedata.normalize("NFKC", ch).partition("⁄")
            out.append(f"\\frac{{{top}}}{{{bottom}}}" if bottom else top)
        elif kind in ("<super>", "<sub>") and ch not in "ªº":
            mark = "^" if kind == "<super>" else "_"
            plain = unicodedata.normalize("NFKC", ch).replace("−", "-")
            raised = out and out[-1].startswith(mark + "{")
            out[-1:] = [f"{out[-1][:-1]}{plain}}}"] if raised else [*out[-1:], f"{mark}{{{plain}}}"]
        elif unicodedata.category(ch) == "Nd":
            out.append(str(unicodedata.decimal(ch)))
        elif unicodedata.category(ch) not in ("Cf", "Co", "Cn"):
            out.append("".join(SYMBOLS.get(c, c) for c in unicodedata.normalize("NFKC", ch)))
    text = "".join(out)
    for root, index in (("√", ""), ("∛", "[3]"), ("∜", "[4]")):
        text = re.sub(rf"{root}\s*\(([^()]*)\)", rf"\\sqrt{index}{{\1}}", text)
        text = re.sub(rf"{root}\s*\{{", rf"\\sqrt{index}{{", text)
        text = re.sub(rf"{root}\s*(\d+(?:\.\d+)?|\\?[A-Za-z]+)", rf"\\sqrt{index}{{\1}}", text)
    return text


def thousands(text: str) -> str:
    """`4{,}096`, `10\\,000`, `1 000`: separators that can only separate thousands."""
    return THOUSANDS.sub(lambda m: m.group(1) + re.sub(r"\D", "", m.group(2)), text)


def argument(text: str, start: int) -> tuple[str, int]:
    """A macro's argument at `start` (a group, a macro or one character), and where it ends."""
    while start < len(text) and text[start] == " ":
        start += 1
    if text.startswith("{", start):
        end = group_end(text, start)
        return (text[start + 1 : end - 1], end) if end > 0 else (text[start + 1 :], len(text))
    macro = re.compile(r"\\(?:[A-Za-z]+|.)").match(text, start)
    end = macro.end() if macro else min(start + 1, len(text))
    return text[start:end], end


def braced(text: str) -> str:
    """`\\frac12`, `\\frac1{2}`, `\\sqrt2`, `\\binom52`, `x^10`, with their arguments in braces."""
    for name, count in (("frac", 2), ("binom", 2), ("sqrt", 1)):
        macro, position, out = re.compile(rf"\\{name}(?![A-Za-z])\s*(\[[^\]]*\])?"), 0, []
        while found := macro.search(text, position):
            out += [text[position : found.start()], f"\\{name}", found.group(1) or ""]
            position = found.end()
            for _ in range(count):
                part, position = argument(text, position)
                out.append(f"{{{braced(part.strip())}}}")
        text = "".join([*out, text[position:]])
    text = re.sub(r"\^\s*(-?)\s*(\d{2,}|-\d)(?![\d.])", r"^{\1\2}", text)
    text = re.sub(r"\^\s*\((-?\d+(?:/\d+)?)\)", r"^{\1}", text)
    return re.sub(r"\^\s*([A-Za-z0-9])", r"^{\1}", text)


def unwrapped(text: str, macro: re.Pattern[str], to: Callable[[str], str]) -> str:
    """Every `\\macro{content}` replaced by `to(content)`, inner ones first."""
    position, out = 0, []
    while found := macro.search(text, position):
        end = group_end(text, found.end())
        if end < 0:
            break
        out += [text[position : found.start()], to(unwrapped(text[found.end() + 1 : end - 1], macro, to))]
        position = end
    return "".join([*out, text[position:]])


def word(content: str) -> str:
    """What a `\\text{...}` holds: mathematics comes out bare, words keep the wrapper."""
    bare = re.sub(r"\s+", " ", content.replace("$", "").replace("~", " ")).strip()
    if re.fullmatch(r"(?:,\s*)?(?:and|or)(?:\s*,)?", bare, re.IGNORECASE):
        return f" \\text{{{bare.strip(', ').lower()}}} "
    if not bare or (not re.search(r"[A-Za-z]{2,}", bare) and re.search(r"^[-+.,;\d(]*\d|[=<>]|^[,; \d]*$", bare)):
        return f" {bare} "
    if len(pieces := re.split(r"\b(and|or)\b", bare, flags=re.IGNORECASE)) > 1:  # what they join stands apart
        return " ".join(map(word, pieces))
    if measured := re.fullmatch(r"(-?\d[\d.,]*) ([A-Za-z][A-Za-z .]*)", bare):
        return f" {measured.group(1)} \\text{{{measured.group(2)}}}"
    if re.fullmatch(r"[eidx]", bare):
        return bare
    if re.fullmatch(rf"\\?(?:{NAME})", bare):
        return "\\" + bare.lstrip("\\") + " "
    return f"\\text{{{bare}}}"


def bare_words(text: str) -> str:
    """Words outside `\\text{}`: function names get their backslash, other words the wrapper; `xy` stays a product."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found.group(0))
        return f"{KEPT}{len(kept) - 1}{KEPT}"

    text = TOKENS.sub(keep, text)
    text = re.sub(r"(?<![A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty ", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<![A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(rf"(?<![A-Za-z])({NAME})(?![A-Za-z])", r"\\\1 ", text)
    text = re.sub(r"(?<![A-Za-z\\])([A-Za-z]{2,}(?:[ '-]+[A-Za-z]{2,})*)(?![A-Za-z])", _bare_word, text)
    return re.sub(f"{KEPT}(\\d+){KEPT}", lambda m: kept[int(m.group(1))], text)


def _bare_word(found: re.Match[str]) -> str:
    words = found.group(1)
    if re.fullmatch(r"[a-z]{2,3}", words) and words not in SHORT_WORDS:
        return words
    pieces = re.split(r"\s*\b(and|or)\b\s*", words)
    if len(pieces) > 1:
        return "".join(f" \\text{{{piece}}} " for piece in pieces if piece)
    return f"\\text{{{words}}}"


def normalise(text: str) -> str:
    """The one spelling of an answer; of a text with a balanced box, of what the last one holds."""
    text = text.strip()
    if PLAIN.fullmatch(text):
        return text
    text = from_unicode(text)
    box = last_box(text)
    text = text if box is None else box
    if not re.search(r"\\begin", text):  # doubled backslashes, as a JSON text read twice has them
        text = re.sub(r"\\\\(?=[A-Za-z]{2,}|[{}%$,;!])", r"\\", text)
    text = text.replace("\\\\", LINE_BREAK)
    text = re.sub(r"\\[()\[\]]", " ", text.replace("\\$", "\\text{dollar}"))
    text = CURRENCY.sub(r"\\text{dollar}", text).replace("$", " ")
    text = re.sub(r"\\([&#_])", r"\1", text)
    text = thousands(text).replace("\\!", "")
    text = unwrapped(text, FONTS, lambda content: content)
    text = unwrapped(text, TEXTS, word)
    text = SPACES.sub(" ", DROPPED.sub("", text))
    for pattern, to in SPELLINGS:
        text = pattern.sub(to, text)
    text = braced(thousands(bare_words(text)))
    text = re.sub(r"\s+", " ", text.replace(LINE_BREAK, "\\\\")).strip()
    return re.sub(r"(?<=[\d})\]!a-z])\s*[.,;:]+$", "", text).strip()
