"""Codeforces problems (the CodeElo selection) that a comparison of outputs can judge.

The tests of the staged file are only the samples of the statements: passing them is far weaker than Codeforces' own
judging. Left out: interactive problems, statements with a lost picture, and, by their wording, problems with several
right outputs or a tolerance, for which comparing with one output is wrong.
"""

from __future__ import annotations

import logging
import re

from gspo.benchmarks.functions import changed, filled
from gspo.data.files import files
from gspo.data.source import Row, Source

log = logging.getLogger(__name__)

_TAGS = re.compile(r"\n+Tags:\n\[[^\n]*\](?=\n|\Z)")
_SEVERAL = re.compile(
    r"(?:print|output|find)\s+(?:\w+\s+){0,4}any\b(?! case)|any (?:one )?of (?:them|these)|any one of|"
    r"any (?:valid|correct|suitable) (?:answer|one|output|solution)|"
    r"(?:multiple|several|many) (?:(?:possible|valid|correct|suitable|optimal) )*(?:answers|solutions|outputs)|"
    r"(?:absolute|relative) error",
    re.IGNORECASE,
)


def codeforces(*, path: str, template: str, name: str = "codeforces") -> Source:
    """The file's problems (`prompt, tests, contest_id, index`) without what cannot be judged; tags are not shown.

    Raises ValueError as `gspo.data.files`.
    """
    source = files(path=path, name=name, kind="code")

    def change(row: Row) -> Row:
        return Row(row.id, filled(template, prompt=_TAGS.sub("", row.prompt)), row.reference, "code", row.meta)

    kept = changed(source, change, lambda row: unsuitable(row) is None, "tests that comparing outputs can judge")
    if kept.size != source.size:
        log.info("%s: %d of %d problems can be judged by comparing outputs", source.where, kept.size, source.size)
    return kept


def unsuitable(row: Row) -> str | None:
    """Why comparing outputs cannot judge a problem; None when it can."""
    if row.meta.get("interactive"):
        return "interactive"
    if "CDN_BASE_URL" in row.prompt:
        return "a lost picture"
    said = _SEVERAL.search(row.prompt)
    return f"several right outputs ({said.group(0)!r})" if said else None
