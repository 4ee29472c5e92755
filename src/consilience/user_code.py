"""Python files of a user that define models or methods: FILE.py:NAME.

A file is run as it stands, with all that Python may do: name only files you trust. It is run once in a process, and
again when its contents have changed. It may import modules of its own folder, as a script may; `sys.path` is as before
afterward. Two folders may each hold a `layers.py`: every folder's files import their own.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from consilience.errors import ConfigurationError, ConsilienceError

_PREFIX = "consilience_own_"
_loaded: dict[tuple[Path, str], ModuleType] = {}
"""Files run in this process, by path and SHA-256 of their contents."""
_siblings: dict[Path, dict[str, ModuleType]] = {}
"""Modules imported from each folder, by name."""


def is_file_name(text: str) -> bool:
    """Whether a name is FILE.py:NAME, or the FILE.py of one.

    >>> is_file_name("nets/mine.py:Net@fc"), is_file_name("mlp")
    (True, False)
    """
    return ".py:" in text or text.endswith(".py")


def split_file_name(text: str) -> tuple[Path, str]:
    """The file, by its absolute path, and the rest of FILE.py:REST; REST is empty where it is missing.

    >>> split_file_name("/nets/mine.py:Net@fc")
    (PosixPath('/nets/mine.py'), 'Net@fc')
    """
    file, _, rest = text.partition(".py:") if ".py:" in text else (text.removesuffix(".py"), "", "")
    return Path(f"{file}.py").expanduser().absolute(), rest


def absolute_name(text: str) -> str:
    """FILE.py:NAME with the file's absolute path; any other name unchanged."""
    if not is_file_name(text):
        return text
    file, rest = split_file_name(text)
    return f"{file}:{rest}" if rest else str(file)


def short_name(text: str) -> str:
    """FILE.py:NAME without the file's folder, for people to read; any other name unchanged.

    >>> short_name("/home/me/mine.py:spread")
    'mine.py:spread'
    """
    if not is_file_name(text):
        return text
    file, rest = split_file_name(text)
    return f"{file.name}:{rest}" if rest else file.name


def read_file(file: Path, usage: str) -> bytes:
    """The contents of a Python file; usage: how such a file is named, for the error message."""
    if file.suffix != ".py":
        raise ConfigurationError(f"{file}: not a Python file, whose name ends in .py; {usage}")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"{file}: no such file; {usage}") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}; {usage}") from error


def file_digest(file: Path, usage: str = "") -> str:
    """SHA-256 of a file's contents."""
    return hashlib.sha256(read_file(file, usage)).hexdigest()


def load_module(file: Path, usage: str = "") -> ModuleType:
    """The file as a module: run the first time, and again when its contents have changed."""
    content = read_file(file, usage)
    key = file, hashlib.sha256(content).hexdigest()
    if key not in _loaded:
        _loaded[key] = _run(file, content)
    return _loaded[key]


def _run(file: Path, content: bytes) -> ModuleType:
    """Run a file as a module with a name of its own, which depends on its path and contents only.

    It is compiled here because Python's cache mistakes a file of the same size, saved in the same second, for the same.
    """
    import torch

    digest = hashlib.sha256(str(file).encode() + b"\0" + content).hexdigest()[:16]
    module = ModuleType(f"{_PREFIX}{file.stem}_{digest}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # classes and pickle look for their module there
    importlib.invalidate_caches()  # a file in its folder may be new
    try:
        # Random numbers drawn while a file is run would change the weights that are drawn next.
        with naming_failures(file, "cannot be imported"), sibling_imports(file), torch.random.fork_rng(devices=[]):
            exec(compile(content, str(file), "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def own_modules() -> list[ModuleType]:
    """The files run in this process as modules, and the modules they imported from their folders."""
    found = [*_loaded.values(), *(module for held in _siblings.values() for module in held.values())]
    return list({module.__name__: module for module in found if module.__name__ in sys.modules}.values())


def files_of(modules: Iterable[str]) -> list[Path]:
    """The files that were run as these modules and have not changed since, for another process to run, too."""
    wanted = set(modules)
    found = [(file, digest) for (file, digest), module in _loaded.items() if module.__name__ in wanted]
    return [file for file, digest in found if file.is_file() and file_digest(file) == digest]


def defined_names(module: ModuleType) -> list[str]:
    """Names of the functions and classes that a file itself defines."""
    return [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__]


@contextmanager
def sibling_imports(file: Path) -> Iterator[None]:
    """A context in which modules of the file's folder can be imported, and modules of other files' folders cannot."""
    folder = file.parent
    away = {name for other, held in _siblings.items() if other != folder for name in held}
    hidden = {name: sys.modules.pop(name) for name in away & set(sys.modules)}
    sys.modules.update(_siblings.get(folder, {}))
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        _siblings.setdefault(folder, {}).update(_imported(folder, set(sys.modules) - before))
        sys.modules.update(hidden)


def imported_siblings(file: Path) -> list[str]:
    """Names of the modules of the file's folder that were imported with it."""
    return sorted(_siblings.get(file.parent, {}))


def _imported(folder: Path, names: set[str]) -> dict[str, ModuleType]:
    """Those of the modules that are in a folder itself; not in one below it, such as a virtual environment."""
    found = {}
    for name in names:
        top = name.partition(".")[0]
        file = getattr(sys.modules.get(top), "__file__", None)
        if file is not None and Path(file) in (folder / f"{top}.py", folder / top / "__init__.py"):
            found[name] = sys.modules[name]
    return found


def failure(error: BaseException) -> str:
    """An exception of a user's code, with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{_said(error)} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else _said(error)


@contextmanager
def naming_failures(file: Path, what: str) -> Iterator[None]:
    """Turn exceptions of a user's file into a ConfigurationError that names file, line and exception."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{file}: {what}{_line(file, error)}: {_said(error)}; fix it and try again") from error


def _said(error: BaseException) -> str:
    if isinstance(error, ConsilienceError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _line(file: Path, error: BaseException) -> str:
    """The last line of the file that was being run, if any."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f" (line {error.lineno})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""
