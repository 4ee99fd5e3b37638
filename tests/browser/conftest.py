"""One JupyterLab for all of these tests, one Chromium for a module, notebooks of their own, and no request that leaves the machine."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import jupyter_lab  # noqa: E402

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory):
    """A JupyterLab with a copy of the repository's notebooks."""
    root = tmp_path_factory.mktemp("lab") / "root"
    root.mkdir()
    for path in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(path, root)
    with jupyter_lab.server(root) as server:
        yield server


@pytest.fixture(scope="module")  # Playwright keeps an event loop in this thread: not longer than a module, other tests need it
def chrome():
    """A headless Chromium."""
    if jupyter_lab.chromium() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with jupyter_lab.browser() as browser:
        yield browser


@pytest.fixture
def open_notebook(request, lab_server, chrome):
    """``open_notebook(name, cells=None, …)``: a notebook in a page of its own, written first when ``cells`` are given."""
    opened = request.node.notebooks = []

    def open_it(name, cells=None, **options):
        if cells is not None:
            jupyter_lab.write_notebook(lab_server.root / name, cells)
        notebook = jupyter_lab.Notebook(chrome, lab_server, **options)
        opened.append(notebook)
        notebook.open(name)
        return notebook

    yield open_it
    for notebook in opened:
        assert notebook.strangers() == []
        assert notebook.errors == []
        notebook.close()
    lab_server.end_sessions()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A picture of every page that a failing test had open."""
    outcome = yield
    if call.when == "call" and outcome.get_result().failed:
        for i, notebook in enumerate(getattr(item, "notebooks", [])):
            if not notebook.page.is_closed():
                notebook.shot(f"failed_{item.name}_{i}")
