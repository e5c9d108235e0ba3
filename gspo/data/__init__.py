"""Query sets: numbered rows (generated, or from files and the hub) and the seeded, resumable stream of prompts.

A file of conf/data names a function by `_target_`; it returns a `Source`. `open_source` binds it, once a stage when the
query set changes during training, and `PromptStream` deals its prompts out.
"""

from gspo.data.files import files
from gspo.data.generated import arithmetic, arithmetic_words
from gspo.data.programs import tiny_programs
from gspo.data.source import Row, Source
from gspo.data.stream import PromptStream, Stage, check, open_source

__all__ = [
    "PromptStream",
    "Row",
    "Source",
    "Stage",
    "arithmetic",
    "arithmetic_words",
    "check",
    "files",
    "open_source",
    "tiny_programs",
]
