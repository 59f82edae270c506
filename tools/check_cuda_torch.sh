#!/bin/sh
# check_cuda_torch.sh FOLDER: builds a copy of this tree in FOLDER against the CUDA build of torch
# that TORCH names, in an environment of its own, and runs there what needs no GPU: the extension
# imports, has CUDA kernels, finds torch's streams, and passes the CPU tests.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
folder=$(cd "$1" && pwd)
bin=$folder/venv/bin

rm -rf "$folder/source"
mkdir "$folder/source"
git ls-files -z | tar -c --null -T - | tar -x -C "$folder/source"
"${PYTHON:-python3}" -m venv "$folder/venv"
"$bin/python" -m pip install -q -r requirements/dev.txt "$TORCH"

cd "$folder/source"
"$bin/python" -c 'import torch; assert torch.version.cuda, f"{torch.__version__} is a CPU build"'
SPECFAST_CUDA=ON "$bin/python" -m pip install -q --no-build-isolation --no-deps -e .
"$bin/specfast" info || true # it may name a mismatch
"$bin/python" -m pytest
