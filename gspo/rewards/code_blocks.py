"""What a block of Python does, by its syntax tree: strings and comments that speak of it do not count."""

from __future__ import annotations

import ast
import io
import re
import tokenize

UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)
READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0\b|\bfileinput\b|\bos\s*\.\s*read\s*\(\s*0\b")
"""How a program that does not parse seems to read its input."""
FILES = (0, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
"""Standard input by another name."""


def defines(block: str, name: str) -> bool:
    """Whether the block binds the name at its top level (by its tokens if it does not parse)."""
    try:
        tree = ast.parse(block)
    except UNPARSED:
        pattern = rf"^(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(name)}\b"
        return re.search(pattern, without_strings(block), re.MULTILINE) is not None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return True
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return True
    return False


def reads_input(block: str) -> bool:
    """Whether the block uses `input`, `stdin`, `fileinput`, or opens or reads descriptor 0."""
    try:
        tree = ast.parse(block)
    except UNPARSED:
        return READS.search(without_strings(block)) is not None
    return any(map(_reads, ast.walk(tree)))


def _reads(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("input", "stdin", "fileinput") and isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Attribute):
        return node.attr == "stdin"
    if isinstance(node, ast.Call) and node.args:
        called, first = node.func, node.args[0]
        name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        return name in ("open", "read", "fdopen", "Path") and isinstance(first, ast.Constant) and first.value in FILES
    return False


def without_strings(block: str) -> str:
    """The block with every string and comment blanked out, as far as it can be split into tokens."""
    lines = block.splitlines(keepends=True)

    def blank(start: tuple[int, int], end: tuple[int, int]) -> None:
        for row in range(start[0] - 1, min(end[0], len(lines))):
            line = lines[row]
            left, right = start[1] if row == start[0] - 1 else 0, end[1] if row == end[0] - 1 else len(line)
            lines[row] = line[:left] + re.sub(r"[^\n]", " ", line[left:right]) + line[right:]

    try:
        for token in tokenize.generate_tokens(io.StringIO(block).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                blank(token.start, token.end)
    except tokenize.TokenError as error:
        if "string" in str(error.args[0]):  # never closed: all that follows belongs to it
            blank(error.args[1], (len(lines) + 1, 0))
    except SyntaxError:
        return "".join(lines)
    return "".join(lines)
