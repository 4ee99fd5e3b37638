"""The house: who may import whom, how long things may be, and what `import flashevolve_lab` gives and costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flashevolve_lab as lab

PACKAGE = Path(lab.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PUBLIC_NAMES = Path(__file__).parent / "public_names.txt"

MAY_IMPORT: dict[str, set[str]] = {  # the only copy of the table (design §3); everything may import core and errors
    "core": set(),
    "errors": set(),
    "policies": set(),
    "views": set(),
    "store": set(),
    "sandbox": set(),
    "llm": set(),
    "tasks": {"llm"},  # the seam, and the landscape a simulated task belongs to
    "algorithms": {"policies", "llm", "tasks"},
    "engine": {"policies", "llm", "store", "sandbox", "algorithms", "tasks"},  # algorithms: only the seam `algorithms.bench`
    "plots": {"views", "policies"},
    "widgets": {"views", "policies", "store", "plots"},  # plots: the one palette
    "runs": {"policies", "llm", "tasks", "algorithms", "engine", "store", "sandbox", "views", "plots", "widgets"},
    "testing": {"policies", "llm", "tasks", "algorithms", "engine", "store", "sandbox", "views", "runs"},
}
LAZY = {("runs", "views"), ("runs", "plots"), ("runs", "widgets")}  # only inside functions, or for annotations

FILES_OF_A_ROOM: set[tuple[str, str]] = {  # from outside, code imports a room; except these files
    ("*", "core.events"),  # re-exported as a module: `core.events`
    ("*", "llm.seam"),  # what any model looks like, without loading a client
    ("tasks", "llm.landscapes"),  # likewise: data without the simulator
    ("engine", "algorithms.bench"),  # the seam of a worker, and nothing else of the room
}

PURE = {"core", "policies", "views"}
PURE_STDLIB = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq", "html", "itertools",
    "json", "math", "operator", "re", "statistics", "string", "types", "typing",
}  # fmt: skip
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 600, 60


def room_of(file: Path) -> str:
    """The room of a file: its first folder, or the module itself for `errors`."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(file: Path, *, lazily: bool = True) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, names) of each import; without ``lazily`` only those executed when the module is loaded."""

    def visit(node: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
        for child in ast.iter_child_nodes(node):
            if not lazily and (isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or for_annotations(child)):
                continue
            if isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}: relative import"
                yield child.module or "", tuple(alias.name for alias in child.names)
            elif isinstance(child, ast.Import):
                yield from ((alias.name, ()) for alias in child.names)
            yield from visit(child)

    yield from visit(ast.parse(file.read_text(encoding="utf-8")))


def for_annotations(node: ast.AST) -> bool:
    """Whether this is an ``if TYPE_CHECKING:`` block."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def ours(file: Path, *, lazily: bool = True) -> Iterator[str]:
    """Modules of this package that a file imports, without the package's name: "core.events"."""
    for module, names in imports_of(file, lazily=lazily):
        if module == "flashevolve_lab":
            yield from names
        elif module.startswith("flashevolve_lab."):
            yield module.removeprefix("flashevolve_lab.")


def named(file: Path) -> str:
    """How a failure names a file."""
    return str(file.relative_to(PACKAGE))


INSIDE = [file for file in FILES if room_of(file) != "__init__"]


@pytest.mark.parametrize("file", INSIDE, ids=named)
def test_a_room_imports_only_the_rooms_it_may(file: Path) -> None:
    room = room_of(file)
    allowed = MAY_IMPORT[room] | {"core", "errors", room}
    assert {module.split(".")[0] for module in ours(file)} <= allowed


@pytest.mark.parametrize("file", INSIDE, ids=named)
def test_views_plots_and_widgets_are_loaded_only_when_used(file: Path) -> None:
    eager = {(room_of(file), module.split(".")[0]) for module in ours(file, lazily=False)}
    assert not eager & LAZY


@pytest.mark.parametrize("file", FILES, ids=named)
def test_from_outside_code_imports_a_room_not_its_files(file: Path) -> None:
    room = room_of(file)
    if room == "__init__":
        modules = set(ours(file, lazily=False))  # names loaded on first use come from their files
    else:
        modules = {module for module in ours(file) if module.split(".")[0] != room}
    deep = {module for module in modules if "." in module}
    assert deep <= {module for who, module in FILES_OF_A_ROOM if who in ("*", room)}


def test_every_exception_to_importing_rooms_is_needed() -> None:
    used = {(room_of(file), module) for file in INSIDE for module in ours(file) if "." in module}
    for who, module in FILES_OF_A_ROOM:
        assert any(module == m and (who in ("*", room)) and room != m.split(".")[0] for room, m in used), (who, module)


@pytest.mark.parametrize("file", [file for file in INSIDE if room_of(file) in PURE], ids=named)
def test_pure_rooms_know_no_clock_no_loop_no_thread_and_no_third_party(file: Path) -> None:
    stdlib = {module.split(".")[0] for module, _ in imports_of(file, lazily=False) if not module.startswith("flashevolve_lab")}
    assert stdlib <= PURE_STDLIB | ({"random"} if named(file) == "core/draws.py" else set())
    lazy = {module.split(".")[0] for module, _ in imports_of(file) if not module.startswith("flashevolve_lab")}
    assert lazy - stdlib <= PURE_STDLIB | {"random"}  # `Random` in an annotation draws nothing


@pytest.mark.parametrize("file", [file for file in INSIDE if room_of(file) in PURE], ids=named)
def test_pure_rooms_open_print_and_evaluate_nothing(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "eval", "exec", "input", "__import__"}


@pytest.mark.parametrize("file", FILES, ids=named)
def test_files_and_functions_are_short(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    long = {f.name: length for f in functions if (length := body_lines(f)) > MOST_LINES_OF_A_FUNCTION}
    assert not long


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("file", FILES, ids=named)
def test_every_module_says_what_it_owns_and_no_name_is_a_grab_bag(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert not {"utils", "helpers", "common", "manager"} & set(file.relative_to(PACKAGE).with_suffix("").parts)


def test_every_room_re_exports_its_public_names() -> None:
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))):
        init = folder / "__init__.py"
        assert init.exists() and "__all__" in init.read_text(encoding="utf-8"), folder.name


def test_importing_the_package_is_light() -> None:
    heavy = [
        "pandas",
        "numpy",
        "plotly",
        "matplotlib",
        "aiohttp",
        "openai",
        "ipywidgets",
        "anywidget",
        "IPython",
        "openvino_genai",
    ]
    code = f"import sys, flashevolve_lab; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_starts_no_thread_and_writes_nothing() -> None:
    code = "import flashevolve_lab, threading; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr.strip()) == ("1", "")


def test_the_public_names_are_those_of_the_checked_in_list() -> None:
    assert sorted(lab.__all__) == PUBLIC_NAMES.read_text(encoding="utf-8").split()


def test_every_public_name_exists_and_is_documented() -> None:
    for name in lab.__all__:
        assert (getattr(lab, name).__doc__ or "").strip(), name
