"""Runs inside a box: both ends of a call. The solution's end answers requests; the test's end has stubs that send them.

One request and one answer a line, tagged JSON. Objects that are not plain values stay in the solution's process; the
test's end may hold them, pass them back, read them as a list, call them and use their attributes, but never compares
them.
"""

import builtins
import os
import sys

import tagged  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _lines(fd, read=os.read):
    buffer = b""
    while data := read(fd, 1 << 20):
        *lines, buffer = (buffer + data).split(b"\n")
        yield from lines


def _write(fd, text, write=os.write):
    view = memoryview(text.encode() + b"\n")
    while view:
        view = view[write(fd, view) :]


def answer_calls(module, requests, results, encode=tagged.encode, decode=tagged.decode):
    """Call what each request names until there are no more requests.

    Request {"n", "op", "of": object index or None for the module, "name", "args", "kw", "objects": whether others than
    plain values may be kept here}; answer {"n", "v": value} or {"n", "x": [exception type, text]}.
    """
    objects, places = [], {}

    def keep(value):
        if id(value) not in places:
            places[id(value)] = len(objects)
            objects.append(value)
        return places[id(value)]

    for line in _lines(requests):
        request = decode(line, lambda index, name: objects[index])
        try:
            start = module if request["of"] is None else objects[request["of"]]
            value = _do(start, request)
            answer = encode({"n": request["n"], "v": value}, keep if request["objects"] else None)
        except BaseException as error:
            answer = encode({"n": request["n"], "x": [type(error).__name__, _text(error)]})
        _write(results, answer)


def _do(start, request):
    op, name, args = request["op"], request["name"], request["args"]
    if op == "list":
        return list(start)
    if op == "get":
        return getattr(start, name)
    if op == "set":
        return setattr(start, name, *args)
    found = start
    for part in name.split(".") if name else ():
        if isinstance(found, type):
            found = found()
        try:
            found = getattr(found, part)
        except AttributeError:
            if found is start:
                raise NameError(f"name {part!r} is not defined") from None
            raise
    return found(*args, **request["kw"])


def _text(error):
    try:
        return str(error)[:300]
    except BaseException:
        return ""


class _Channel:
    def __init__(self, requests, results):
        self.lines, self.results = _lines(requests), results
        self.calls, self.raised, self.remotes = 0, False, {}

    def _remote(self, index, name):
        return self.remotes.setdefault(index, _Remote(self, index, name))

    def ask(self, op, of, name, args=(), kw=()):
        """The solution's answer; raises what the solution raised, as the built-in exception of that name."""
        self.calls += 1
        request = {"n": self.calls, "op": op, "of": of, "name": name, "args": list(args), "kw": dict(kw)}
        request["objects"] = True
        _write(self.results, tagged.encode(request, _index_of))
        answer = tagged.decode(next(self.lines), self._remote)
        if "x" not in answer:
            return answer["v"]
        self.raised = True
        name, text = answer["x"]
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                raise kind(text)
            except TypeError:  # built-in exceptions that want more arguments
                raise RuntimeError(f"{name}: {text}") from None
        raise RuntimeError(f"{name}: {text}")


class _Stub:
    """A function of the solution."""

    def __init__(self, channel, name):
        self.__channel, self.__name = channel, name

    def __call__(self, *args, **kw):
        return self.__channel.ask("call", None, self.__name, args, kw)


class _Remote:
    """An object that stays in the solution's process; equal to nothing but itself."""

    def __init__(self, channel, index, name):
        self.__dict__.update(_channel=channel, _index=index, _name=name)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._channel.ask("get", self._index, name)

    def __setattr__(self, name, value):
        self._channel.ask("set", self._index, name, (value,))

    def __call__(self, *args, **kw):
        return self._channel.ask("call", self._index, "", args, kw)

    def __iter__(self):
        return iter(self._channel.ask("list", self._index, ""))


def _index_of(value):
    if type(value) is not _Remote:
        raise TypeError(f"a test cannot pass a {type(value).__name__} to the solution")
    return value._index


def run_test(code, head, requests, results):
    """Run trusted test code with stubs for `head["names"]`; say how it went: {"done": nonce} only when it ran through.

    Otherwise {"failed": text} for a failed assertion or {"raised": text}; always with the number of `calls` and whether
    the solution `raised`.
    """
    channel = _Channel(requests, results)
    space: dict[str, Any] = {name: _Stub(channel, path) for name, path in head["names"].items()}
    space |= {name: __import__(name) for name in head["modules"]}
    if "random" in sys.modules:
        sys.modules["random"].seed(0)  # the same test each time
    space["__name__"] = "__main__"
    try:
        exec(compile(code, "test.py", "exec", dont_inherit=True), space)
        said = {"done": head["nonce"]}
    except AssertionError as error:
        said = {"failed": f"line {_line(error)}: {_text(error)}".rstrip(": ")}
    except BaseException as error:
        said = {"raised": f"{type(error).__name__}: {_text(error)} (line {_line(error)})"}
    sys.stdout.flush()
    _write(results, tagged.encode({**said, "calls": channel.calls, "raised_by_solution": channel.raised}))


def _line(error):
    number, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "test.py":
            number = traceback.tb_lineno
        traceback = traceback.tb_next
    return number
