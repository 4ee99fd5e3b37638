"""A private JupyterLab and a Chromium to drive it, for tests in a real front end.

Owns the server's process, the browser and the drive by commands (`reference/platform.md` §7). One rule a change must keep:
everything it starts ends with it, nothing of the user's own configuration is touched, and no request may leave this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ARTIFACTS = Path(__file__).parents[2] / ".artifacts"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
NO_NEWS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
LOCAL = ("127.0.0.1", "localhost", "")


def chromium() -> str | None:
    """Where a Chromium is, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Server:
    """A JupyterLab of its own in ``root``, on loopback, for the life of a test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (root.parent / "jupyter.log").open("wb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
                *(f"--port={self.port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="),
                *("--ServerApp.disable_check_xsrf=True", "--LabApp.expose_app_in_browser=True"),
                f"--ServerApp.root_dir={root}",
            ],
            env=_environment(root.parent / "jupyter"),
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def wait(self, seconds: float = 60) -> None:
        """Until it answers."""
        until(lambda: self._answers(), seconds, "JupyterLab to answer")

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with {self._process.returncode}: see {self._log.name}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return bool(self.api("status"))
        return False

    def api(self, path: str, method: str = "GET") -> Any:
        """What the server's REST interface answers."""
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def end_sessions(self) -> None:
        """Shut every kernel down: a closed page leaves its kernel alive, and the next to open the notebook would get it."""
        for session in self.api("sessions"):
            with contextlib.suppress(urllib.error.HTTPError):
                self.api(f"sessions/{session['id']}", "DELETE")

    def close(self) -> None:
        """End it and its kernels."""
        with contextlib.suppress(Exception):
            self.end_sessions()
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def _environment(home: Path) -> dict[str, str]:
    """An environment in which Jupyter finds nothing of the user's and asks nobody for news."""
    names = "JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR IPYTHONDIR JUPYTERLAB_SETTINGS_DIR JUPYTERLAB_WORKSPACES_DIR"
    folders = {name: home / name.lower() for name in names.split()}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    news = folders["JUPYTERLAB_SETTINGS_DIR"] / NO_NEWS
    news.parent.mkdir(parents=True, exist_ok=True)
    news.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    return {**os.environ, **{name: str(folder) for name, folder in folders.items()}, "PYTHONWARNINGS": "default"}


class Notebook:
    """A notebook open in JupyterLab in a page of its own."""

    def __init__(self, browser: Any, server: Server, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self._server = server
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.set_default_timeout(30_000)
        self._dark = dark

    def open(self, name: str) -> None:
        """Open it, in the theme asked for, with the side bar away."""
        self._name, self.path = name, self._server.root / name
        self.page.goto(f"{self._server.url}/lab/tree/{name}?reset", wait_until="domcontentloaded")
        self._ready()
        self.theme(self._dark)

    def reload(self) -> None:
        """Reload the tab, as a user would."""
        self.page.goto(f"{self._server.url}/lab/tree/{self._name}", wait_until="domcontentloaded")
        self._ready()

    def _ready(self) -> None:
        self.page.wait_for_function(_OPENED, timeout=60_000)
        self.page.evaluate("() => Promise.all([window.jupyterapp.restored, window.jupyterapp.shell.currentWidget.revealed])")
        self.page.evaluate("() => { const s = window.jupyterapp.shell; if (s.collapseLeft) s.collapseLeft(); }")

    def theme(self, dark: bool) -> None:
        """Switch JupyterLab's theme."""
        name = "JupyterLab Dark" if dark else "JupyterLab Light"
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", name)
        self.page.wait_for_function(f"() => document.body.dataset.jpThemeName === '{name}'")

    def command(self, name: str) -> None:
        """Execute a command of JupyterLab without waiting for what it starts."""
        self.page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)

    def run_all(self) -> None:
        """Run all cells; returns at once."""
        self.command("notebook:run-all-cells")

    def idle(self, seconds: float = 60) -> None:
        """Until the kernel has run everything."""
        self.page.wait_for_timeout(200)
        self.page.wait_for_function(f"() => {_KERNEL}?.status === 'idle'", timeout=seconds * 1000)

    def execute(self, code: str, seconds: float = 30) -> str:
        """Run code in the notebook's kernel beside the cells (not while one blocks it); what it printed."""
        return str(self.page.evaluate(_EXECUTE, [code, seconds * 1000]))

    def cell(self, code: str) -> None:
        """Start code as a cell would, and return at once."""
        self.page.evaluate("code => { " + _KERNEL + ".requestExecute({ code }); }", code)

    def save(self) -> None:
        """Save the notebook and wait for it."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        self.page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")

    def status(self, kind: str) -> dict[str, Any]:
        """The status record (``data-lab-status``) of the first element that matches a CSS selector."""
        text = self.page.locator(kind).first.get_attribute("data-lab-status")
        return dict(json.loads(text or "{}"))

    def shot(self, name: str, selector: str | None = None) -> Path:
        """A screenshot under ``.artifacts/``."""
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        if selector is None:
            self.page.screenshot(path=path)
            return path
        before, element = self.page.viewport_size, self.page.locator(selector).first
        height = int(element.bounding_box()["height"]) + 200  # what scrolls is the notebook, so the whole must fit
        self.page.set_viewport_size({**before, "height": max(height, before["height"])})
        element.scroll_into_view_if_needed()
        self.page.wait_for_timeout(700)
        element.screenshot(path=path)
        self.page.set_viewport_size(before)
        return path

    def strangers(self) -> list[str]:
        """Requests that left this machine."""
        return [url for url in self.requests if urlsplit(url).scheme in ("http", "https", "ws", "wss") and urlsplit(url).hostname not in LOCAL]

    def close(self) -> None:
        """Close the page."""
        self.page.close()


_KERNEL = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
_OPENED = f"""() => {{
  const kernel = {_KERNEL}, panel = window.jupyterapp?.shell.currentWidget;
  return panel?.context?.isReady && kernel?.connectionStatus === 'connected' && ['idle', 'busy'].includes(kernel.status);
}}"""
_EXECUTE = (
    """async ([code, most]) => {
  const future = """
    + _KERNEL
    + """.requestExecute({ code, store_history: false });
  let text = '';
  future.onIOPub = (message) => {
    if (message.header.msg_type === 'stream') text += message.content.text;
    if (message.header.msg_type === 'error') text += message.content.traceback.join('\\n');
  };
  await Promise.race([future.done, new Promise((_, fail) => setTimeout(() => fail(new Error('no answer from the kernel')), most))]);
  return text;
}"""
)


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """A notebook of code cells."""
    made = [
        {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        for i, source in enumerate(cells)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path.write_text(json.dumps({"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}))


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium with an empty profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), headless=True, args=FLAGS)
        try:
            yield launched
        finally:
            launched.close()


@contextlib.contextmanager
def server(root: Path) -> Iterator[Server]:
    """A JupyterLab whose files are in ``root`` (made if missing)."""
    root.mkdir(parents=True, exist_ok=True)
    started = Server(root)
    try:
        started.wait()
        yield started
    finally:
        started.close()


def until(true: Callable[[], Any], seconds: float, what: str, every_s: float = 0.05) -> Any:
    """Wait for something that nobody announces; its value. Fails with what was waited for."""
    ends = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > ends:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        time.sleep(every_s)
    return value
