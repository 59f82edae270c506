#!/bin/sh
# Builds the kernel library without torch or Python and runs its C++ tests: plain, then under ASan
# and UBSan. PYTHON is the one whose cmake and ninja wheels are used.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
bin=$("$python" -c 'import cmake; print(cmake.CMAKE_BIN_DIR)')
ninja=$("$python" -c 'import ninja; print(ninja.BIN_DIR)')/ninja

run() { # build-folder sanitizers
  "$bin/cmake" -S . -B "$1" -G Ninja -DCMAKE_MAKE_PROGRAM="$ninja" \
    -DSPECFAST_TORCH=OFF -DSPECFAST_HOST=OFF -DSPECFAST_CUDA=OFF -DSPECFAST_TESTS=ON \
    -DSPECFAST_SANITIZE="$2" >/dev/null
  "$bin/cmake" --build "$1" -- --quiet
  "$bin/ctest" --test-dir "$1" --output-on-failure --no-tests=error
}

run build/cpp ""
run build/cpp-sanitized address,undefined
