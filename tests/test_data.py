"""Query sets: what a row says, that files are checked to the field, and that a stream resumes exactly."""

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gspo.config import ModelSettings
from gspo.data import PromptStream, Row, Source, Stage, arithmetic, arithmetic_words, check, files, open_source
from gspo.pretrained import character_tokenizer

DATA = Path(os.environ["GSPO_DATA"])
PLAIN = ModelSettings(name="tiny", path="tiny", context=256, chat_template=False)
NUMBERS = dict(one=1, two=2, three=3, four=4, five=5, six=6, seven=7, eight=8, nine=9)  # noqa: C408


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer()


def seven(name: str = "seven", size: int = 7) -> Source:
    """A finite set whose rows 2 and 5 have the same text."""
    rows = [Row(f"{name}-{i}", "same text" if i in (2, 5) else f"text {i}", str(i)) for i in range(size)]
    return Source(name, rows.__getitem__, size)


def stream(stages, tokenizer, *, seed=0, model=PLAIN, limit=100) -> PromptStream:
    stages = [Stage(0, stages)] if isinstance(stages, Source) else stages
    return PromptStream(stages, tokenizer, model, seed=seed, max_prompt_tokens=limit)


def ids(prompts) -> list[str]:
    return [prompt.id for prompt in prompts]


def test_every_epoch_deals_each_prompt_once(tokenizer):
    """B43: 7 prompts, 2 a step, 3 epochs; a step across the border skips and repeats nothing, and epochs differ."""
    deal = stream(seven(), tokenizer)
    dealt = [one for step in range(10) for one in ids(deal.take(2, step))] + ids(deal.take(1, 10))
    epochs = [[one.partition("~")[0] for one in dealt[7 * k : 7 * k + 7]] for k in range(3)]
    everyone = {f"seven-{i}" for i in range(7)}
    assert [set(epoch) for epoch in epochs] == [everyone] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_resuming_continues_to_the_prompt(tokenizer):
    """B43: stop after 5 of 9 steps (inside epoch 2), go on from the saved JSON in a fresh stream: the same prompts."""
    whole = stream(seven(), tokenizer)
    straight = [ids(whole.take(2, step)) for step in range(9)]
    before = stream(seven(), tokenizer)
    first = [ids(before.take(2, step)) for step in range(5)]
    after = stream(seven(), tokenizer)
    after.restore(json.loads(json.dumps(before.state())))
    assert first + [ids(after.take(2, step)) for step in range(5, 9)] == straight


def test_a_position_in_another_set_is_refused(tokenizer):
    """B43: a changed seed or a changed data set must not silently give another order after resuming."""
    state = stream(seven(), tokenizer).state()
    for other in (
        stream(seven(), tokenizer, seed=1),
        stream(seven(size=6), tokenizer),
        stream(seven("six"), tokenizer),
    ):
        with pytest.raises(ValueError, match="position saved"):
            other.restore(state)


def test_seeds_give_other_orders(tokenizer):
    """The seed reaches the permutation; of 5040 orders five equal ones do not come by chance."""
    orders = {tuple(ids(stream(seven(), tokenizer, seed=seed).take(7, 0))) for seed in range(5)}
    assert len(orders) > 1


def test_ids_are_unique_in_a_step_and_texts_need_not_be(tokenizer):
    """Sampling is seeded by id: a problem dealt twice in a step needs two ids, two problems of one text stay two."""
    prompts = stream(seven(), tokenizer).take(10, 0)
    assert len(set(ids(prompts))) == 10
    assert {p.id for p in prompts[:7] if p.text == "same text"} == {"seven-2", "seven-5"}
    assert {one.partition("~")[2] for one in ids(prompts)} == {"", "2"}


def test_stages_switch_by_step_and_keep_their_place(tokenizer):
    """Paper 5.1: another query set from a step on; going back (a resumed run) finds each stage where it was."""
    stages = [Stage(0, seven("a")), Stage(3, seven("b"))]
    deal = stream(stages, tokenizer)
    early, late = deal.take(3, 2), deal.take(3, 3)
    assert {p.id[0] for p in early} == {"a"}
    assert {p.id[0] for p in late} == {"b"}
    assert [deal.stage(step) for step in (0, 2, 3, 99)] == [0, 0, 1, 1]
    fresh = stream(stages, tokenizer)
    fresh.restore(deal.state())
    assert set(ids(fresh.take(4, 2))) == {f"a-{i}" for i in range(7)} - set(ids(early))


def test_stages_of_a_data_node():
    """`data.stages` overrides keywords by step; its mistakes are named before anything loads."""
    node = {"_target_": "gspo.data.arithmetic", "min_terms": 3, "max_terms": 3}
    stages = open_source(node | {"stages": [{"step": 5, "min_terms": 6, "max_terms": 6}]}, seed=1)
    assert [stage.step for stage in stages] == [0, 5]
    assert [stage.source.row(0).meta["terms"] for stage in stages] == [3, 6]
    for bad, said in (
        ([{"step": 5, "max_term": 6}], r"data.stages\[0\].max_term=6"),
        ([{"max_terms": 6}], r"data.stages\[0\].step=None"),
        ([{"step": 5}, {"step": 5}], r"data.stages\[1\].step=5"),
        ([{"step": 5, "max_terms": 2}], "max_terms=2"),
        ([7], r"data.stages\[0\]=7"),
    ):
        with pytest.raises(ValueError, match=said):
            open_source(node | {"stages": bad}, seed=1)


@pytest.mark.parametrize("verbose", [False, True])
def test_chains_are_right(verbose, tokenizer):
    """Python's own arithmetic on the question gives the totals, the answer and every step of the solution."""
    source = arithmetic(seed=3, min_terms=2, max_terms=9, verbose=verbose)
    for i in range(300):
        row = source.row(i)
        question = row.prompt[:-1]
        totals = [eval_chain(question[: 1 + 2 * k]) for k in range(1, row.meta["terms"])]
        assert row.meta["totals"] == totals
        assert row.reference == str(totals[-1])
        steps, box = row.meta["solution"].split("\\boxed")
        assert box == f"{{{totals[-1]}}}"
        if verbose:
            written = [step.split("=") for step in steps.rstrip(";").split(";")]
            assert [eval_chain(left) for left, _ in written] == [int(right) for _, right in written] == totals
            assert "".join([written[0][0]] + [left[1:] for left, _ in written[1:]]) == question
        else:
            assert steps == question[0] + "".join(
                f"{question[1 + 2 * k : 3 + 2 * k]}={total}" for k, total in enumerate(totals)
            )
        tokens = len(tokenizer.encode(row.meta["solution"], add_special_tokens=False)) + 1
        assert tokens == (6 * row.meta["terms"] - 2 if verbose else 4 * row.meta["terms"] + 1)


def eval_chain(text: str) -> int:
    """`7+5-3` modulo 10, term by term."""
    total = int(text[0])
    for sign, digit in zip(text[1::2], text[2::2], strict=True):
        total += int(digit) if sign == "+" else -int(digit)
    return total % 10


def test_lengths_are_uniform():
    """data.min_terms .. max_terms: each length as often as the others (chi-square, 5 lengths, 99.9 % point 18.5)."""
    source = arithmetic(seed=0, min_terms=4, max_terms=8)
    counts = Counter(source.row(i).meta["terms"] for i in range(2000))
    assert set(counts) == {4, 5, 6, 7, 8}
    assert sum((n - 400) ** 2 / 400 for n in counts.values()) < 18.5


def test_generated_rows_depend_on_seed_and_number_only():
    """Row i is the same in whatever order it is asked for, and another seed gives other rows."""
    make = [lambda seed: arithmetic(seed=seed, min_terms=3, max_terms=6)]
    make.append(lambda seed: arithmetic_words(seed=seed, examples=0))
    for source in make:
        one, two = source(5), source(5)
        forwards = [one.row(i) for i in range(50)]
        assert forwards == [two.row(i) for i in reversed(range(50))][::-1]
        assert [row.prompt for row in forwards] != [source(6).row(i).prompt for i in range(50)]


def test_sums_in_words_are_right():
    """The two number words add up to the reference, in the examples too, whose answers are sums that hold."""
    source = arithmetic_words(seed=0, examples=8, prompt="What is {problem}?")
    for i in range(100):
        row = source.row(i)
        for asked, answer in (*row.turns, (row.prompt, row.reference)):
            total = sum(NUMBERS[word] for word in asked.rstrip("?").split() if word in NUMBERS)
            assert answer in (str(total), f"{answer.partition(' =')[0]} = \\boxed{{{total}}}")
            assert asked.startswith("What is ")
        assert all(sum(map(int, answer.split(" = ")[0].split(" + "))) < 19 for _, answer in row.turns)


def test_earlier_turns_are_rendered_before_the_question(tokenizer):
    """Examples are turns of the conversation; without a template they are text before the prompt."""
    source = arithmetic_words(seed=0, examples=1)
    question = source.row(0).prompt
    chat = character_tokenizer()
    chat.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    chatting = ModelSettings(name="t", path="t", context=99)
    (templated,) = stream(source, chat, model=chatting).take(1, 0)
    shown = ("two plus one", "2 + 1 = \\boxed{3}")
    assert templated.text == f"<user>{shown[0]}<assistant>{shown[1]}<user>{question}<assistant>"
    (plain,) = stream(source, tokenizer).take(1, 0)
    assert plain.text == f"{shown[0]}\n{shown[1]}\n\n{question}"
    assert tokenizer.decode(plain.token_ids, skip_special_tokens=True) == plain.text


def test_a_rendered_template_gets_no_second_bos(tokenizer):
    """B46: the template prints BOS and the encoder adds one: the prompt starts with exactly one; so does plain text."""
    chat = character_tokenizer()
    chat.chat_template = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}>"
    source = Source("one", [Row("a", "1+1=", "2")].__getitem__, 1)
    templated = stream(source, chat, model=ModelSettings(name="t", path="t", context=99)).take(1, 0)[0]
    assert templated.text == "<bos>[1+1=]>"
    assert templated.token_ids.count(chat.bos_token_id) == 1
    assert templated.token_ids[0] == chat.bos_token_id
    assert len(templated.token_ids) == 1 + len("[1+1=]>")
    with_bos = Source("one", [Row("a", "<bos>1+1=", "2")].__getitem__, 1)
    for plain in (source, with_bos):
        assert stream(plain, tokenizer).take(1, 0)[0].token_ids[:2] == (1, tokenizer.convert_tokens_to_ids("1"))


def test_a_tokenizer_without_template_is_refused(tokenizer):
    """chat_template=true with a tokenizer that has none would send raw text to a chat model."""
    with pytest.raises(ValueError, match="chat_template=true"):
        stream(seven(), tokenizer, model=ModelSettings(name="t", path="t", context=99))


def test_long_prompts_are_refused_or_left_out(tokenizer):
    """A prompt that leaves no room for a response is found at the start, not at step 900; dropped only when asked."""
    rows = [Row("short", "1+1=", "2"), Row("long", "1" * 50, "3"), Row("fits", "1" * 9, "3")]
    with pytest.raises(ValueError, match=r"1 of 3 prompts have over 10 tokens \(longest: long with 51\)"):
        stream(Source("x", rows.__getitem__, 3), tokenizer, limit=10)
    kept = stream(Source("x", rows.__getitem__, 3, drop_long=True), tokenizer, limit=10)
    assert sorted(ids(kept.take(2, 0)) + ids(kept.take(2, 1))) == ["fits", "fits", "short", "short"]
    with pytest.raises(ValueError, match="no prompt of at most 3"):
        stream(Source("x", rows.__getitem__, 3, drop_long=True), tokenizer, limit=3)
    endless = arithmetic(seed=0, min_terms=9, max_terms=9)
    with pytest.raises(ValueError, match="arithmetic-0 has 19 tokens, 10 fit"):
        stream(endless, tokenizer, limit=10).take(1, 0)


def test_formats_agree(tmp_path):
    """JSON lines, gzipped and parquet give the same rows; other fields become meta."""
    import pyarrow
    import pyarrow.parquet

    records = [{"id": f"r{i}", "prompt": f"q{i}", "answer": str(i), "level": i} for i in range(5)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    expected = [Row(f"r{i}", f"Q: q{i}", str(i), "math", {"level": i}) for i in range(5)]
    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet"):
        source = files(path=str(tmp_path / name), template="Q: {prompt}")
        assert [source.row(i) for i in range(source.size or 0)] == expected


GOOD = {"id": "a", "prompt": "q", "answer": "1"}
FAULTS = [
    ([GOOD, {"id": "b", "prompt": "q"}], "2: field 'answer' is missing"),
    ([GOOD, GOOD | {"id": "b", "answer": ""}], "2: field 'answer' is empty"),
    ([GOOD | {"answer": None}], "1: field 'answer' is missing"),
    ([GOOD | {"answer": ["1"]}], "1: field 'answer' is list"),
    ([GOOD | {"answer": True}], "1: field 'answer' is bool"),
    ([GOOD | {"prompt": 7}], "1: field 'prompt' is int"),
    ([GOOD | {"prompt": "  "}], "1: field 'prompt' is empty"),
    ([GOOD | {"answer": "see solution"}], "1: field 'answer': the gold answer 'see solution' is no answer"),
    ([GOOD, GOOD | {"id": "b", "answer": "nonsense \\frac{"}], "2: field 'answer': .* braces do not balance"),
    ([GOOD | {"answer": "\\frac{1}{}"}], "1: field 'answer': .* lacks an operand"),
    ([GOOD | {"answer": "2x+"}], "1: field 'answer': .* lacks an operand"),
    ([GOOD | {"answer": "2x+5="}], "1: field 'answer': .* cannot be read"),
    ([GOOD | {"answer": "\\boxed{}"}], "1: field 'answer': .* the answer is empty"),
    ([GOOD, GOOD], "2: field 'id' is 'a', as on line 1"),
    ([GOOD | {"id": ["a"]}], r"1: field 'id' is \['a'\]"),
    ([[1, 2]], "1: a JSON object is needed, not list"),
    ([], "holds no problem"),
    (b'{"id": "a", "prompt": "q", "answer": "1"}\n{"id": "b", "prom', "2: not JSON"),
    (b'{"id": "a", "prompt": "\xff", "answer": "1"}\n', "1: not UTF-8: byte 0xff"),
]


@pytest.mark.parametrize(("rows", "said"), FAULTS, ids=[said for _, said in FAULTS])
def test_faults_name_file_line_and_field(rows, said, tmp_path):
    """One line that says where to look; a fault that slips through costs a run."""
    file = tmp_path / "set.jsonl"
    file.write_bytes(rows if isinstance(rows, bytes) else "".join(json.dumps(row) + "\n" for row in rows).encode())
    with pytest.raises(ValueError, match=said) as error:
        files(path=str(file))
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_answers_are_numbers_texts_or_left_out(tmp_path, caplog):
    """0 is an answer; null and blank ones are left out only when asked, and counted."""
    file = tmp_path / "set.jsonl"
    answers = ["0", 0, 2.5, None, " ", "see solution", r"\frac{1"]
    file.write_text("".join(json.dumps({"prompt": "q", "answer": a}) + "\n" for a in answers))
    source = files(path=str(file), drop_unanswered=True)
    assert [(source.row(i).id, source.row(i).reference) for i in range(source.size or 0)] == [
        ("1", "0"),
        ("2", "0"),
        ("3", "2.5"),
    ]
    assert "4 rows without an answer are left out (line 4, 5, 6, 7)" in caplog.text
    with pytest.raises(ValueError, match="4: field 'answer' is missing"):
        files(path=str(file))


def test_broken_containers_are_named(tmp_path):
    """A cut gzip file, a parquet file that is none, an unknown suffix, a folder: the path, not a traceback."""
    whole = gzip.compress(json.dumps(GOOD).encode() * 50)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-12])
    (tmp_path / "no.parquet").write_bytes(b"PAR0")
    (tmp_path / "x.csv").write_text("a,b")
    for name, said in (
        ("cut.jsonl.gz", "not a whole gzip file"),
        ("no.parquet", "not a parquet file"),
        ("x.csv", "jsonl"),
        (".", "no file"),
    ):
        with pytest.raises(ValueError, match=said):
            files(path=str(tmp_path / name))


def test_code_rows(tmp_path):
    """Tests keep their kind, input-output pairs are stdin tests, a text is one assert; what a test lacks is named."""
    file = tmp_path / "set.jsonl"
    pair = {"input": "1\n", "output": "2\n"}
    call = {"type": "call", "fn": "f", "args": [1], "expected": 2}
    rows = [
        {"id": "a", "prompt": "p", "tests": [pair, call]},
        {"id": "b", "prompt": "p", "test": "assert f(1) == 2", "entry_point": "f"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = files(path=str(file), kind="code")
    assert source.row(0).reference == [{"type": "stdin"} | pair, call]
    assert source.row(1).reference == [{"type": "assert", "code": "assert f(1) == 2"}]
    assert (source.row(1).kind, source.row(1).meta) == ("code", {"entry_point": "f"})
    for tests, said in (
        ([], "a list of tests with at least one"),
        ([{"input": "1"}], r"'tests\[0\].output' is missing"),
        ([pair, {"type": "call", "fn": 3, "args": []}], r"'tests\[1\].fn' is int"),
        ([{"type": "exec"}], "accepted: stdin, call, assert"),
    ):
        file.write_text(json.dumps({"id": "a", "prompt": "p", "tests": tests}))
        with pytest.raises(ValueError, match=said):
            files(path=str(file), kind="code")


def conf(name: str, **more) -> dict:
    from omegaconf import OmegaConf

    from gspo.config import conf_dir

    node = OmegaConf.to_container(OmegaConf.load(conf_dir() / "data" / f"{name}.yaml"))
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()} | more


def test_gsm8k_from_both_forms(tmp_path, monkeypatch):
    """The staged file has 7,473 rows; a row as the hub has it (question, answer after ####) gives the same prompt."""
    ((_, source),) = [(s.step, s.source) for s in open_source(conf("gsm8k"), seed=0)]
    assert source.size == 7473
    raw = {"question": source.row(0).prompt.split("\n")[0], "answer": "so 1,000 and\n#### 1,072"}
    (tmp_path / "gsm8k_train.jsonl.gz").write_bytes(gzip.compress(json.dumps(raw).encode()))
    monkeypatch.setenv("GSPO_DATA", str(tmp_path))
    hub_form = open_source(conf("gsm8k"), seed=0)[0].source.row(0)
    assert hub_form.reference == "1072"
    assert hub_form.prompt == source.row(0).prompt
    assert source.row(0).prompt.endswith("\\boxed{}.")


def test_code_sets_of_the_staged_folder_are_read():
    """CodeContests' and HumanEval's own layouts need no conversion."""
    contests = files(path="code_contests_test.jsonl.gz", kind="code")
    assert (contests.size, {test["type"] for i in range(165) for test in contests.row(i).reference}) == (165, {"stdin"})
    assert files(path="humaneval.jsonl", kind="code").row(0).meta["entry_point"] == "has_close_elements"


def test_missing_data_says_what_to_do(tmp_path, monkeypatch):
    """No file: with GSPO_DATA the folder that was looked in; without it and without a network (told, or found out at
    once and in silence), both ways out."""
    monkeypatch.setenv("GSPO_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=f"no file {tmp_path}/math_train.jsonl.gz.*unset GSPO_DATA"):
        check(conf("math"))
    code = f"from gspo.data import check; check({conf('gsm8k')!r})"
    environment = {k: v for k, v in os.environ.items() if k != "GSPO_DATA"}
    for more in ({"HF_HUB_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}):
        full = environment | {"HF_HOME": str(tmp_path), **more}
        done = subprocess.run([sys.executable, "-c", code], env=full, cwd=tmp_path, capture_output=True, text=True)
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith(
            "ValueError: data.path=gsm8k_train.jsonl.gz: no such file, and openai/gsm8k is not to be had"
        )
        assert "set GSPO_DATA" in last
        assert "Retry" not in done.stderr


def test_checks_need_no_torch():
    """`check` runs before anything heavy: it must not import torch, transformers or datasets."""
    code = (
        "import sys; from gspo import data, pretrained\n"
        f"data.check({conf('gsm8k')!r}); data.check({conf('arithmetic')!r})\n"
        "pretrained.check('gspo:qwen3_moe_tiny')\n"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_keys_and_wrong_types_are_refused():
    """data.min_term=3 must not be ignored, data.min_terms=abc not reach a random generator."""
    for more, said in (
        ({"min_term": 3}, "data.min_term=3"),
        ({"min_terms": "abc"}, "data.min_terms=abc"),
        ({"min_terms": 1}, "data.min_terms=1"),
        ({"min_terms": 9}, "data.max_terms=7"),
        ({"_target_": "gspo.data.nothing"}, "gspo.data.nothing"),
    ):
        with pytest.raises(ValueError, match=said):
            check(conf("arithmetic", **more))
    with pytest.raises(ValueError, match=r"os\.getcwd: gives str, not a Source"):
        check({"_target_": "os.getcwd"})
