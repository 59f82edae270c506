#!/usr/bin/env bash
# run.sh PHASE...: what needs a GPU. check: the CUDA kernels against the CPU's. sanitize: the same
# under compute-sanitizer. bench: their times. Each ends within 7 minutes, the build included, which
# they share. Results go to $OUT; ARCH (as in 90) says what to build for.
set -uo pipefail
cd "$(dirname "$0")/../.."
self=bench/gpu/run.sh
python=${PYTHON:-python3}
folder=build/gpu
export OUT=${OUT:-bench/gpu/out} PYTHONPATH=$PWD PYTHONUNBUFFERED=1
PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$OUT"
phase_seconds=410
failures=0 steps=()

# left SECONDS: so many, or what the phase has left.
left() {
  local seconds=$((phase_end - SECONDS))
  [ $seconds -lt "$1" ] || seconds=$1
  [ $seconds -gt 0 ] || seconds=1
  echo $seconds
}

# step NAME SECONDS COMMAND...: one line, and of a failure the end of its output; all of it in $log.
step() {
  local name=$1 seconds start=$SECONDS output rc
  seconds=$(left "$2")
  shift 2
  output=$(timeout -k 10 "$seconds" "$@" 2>&1)
  rc=$?
  printf '== %s\n%s\n' "$name" "$output" >>"$log"
  if [ $rc = 0 ]; then
    printf 'ok      %4d s  %-30s %s\n' $((SECONDS - start)) "$name" \
      "$(tail -n 1 <<<"$output" | cut -c1-120)"
  else
    printf 'FAILED  %4d s  %s (exit %d%s)\n%s\n' $((SECONDS - start)) "$name" $rc \
      "$([ $rc = 124 ] && echo ", out of time")" "$(tail -n 25 <<<"$output" | cut -c1-160)"
  fi
  return $rc
}

# begin starts a step beside others; finish waits for all.
begin() {
  step "$@" &
  steps+=($!)
}
finish() {
  local pid
  for pid in "${steps[@]}"; do wait "$pid" || failures=$((failures + 1)); done
  steps=()
}

# each_test NAME SECONDS COMMAND...: every C++ test, after that command.
each_test() {
  local name=$1 seconds=$2 test
  shift 2
  for test in $folder/tests/gpu/gpu_test_*[a-z]; do
    begin "$name ${test##*gpu_test_}" "$seconds" "$@" "$test"
  done
}

wheel() { "$python" -c "import $1; print($1.$2)" 2>/dev/null; }

build() {
  local bin ninja arch
  bin=$(wheel cmake CMAKE_BIN_DIR) && bin=$bin/cmake || bin=cmake
  ninja=$(wheel ninja BIN_DIR) && ninja=$ninja/ninja || ninja=ninja
  arch=${ARCH:-$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')} \
    || return
  "$bin" -S . -B $folder -G Ninja -DCMAKE_MAKE_PROGRAM="$ninja" -DPython_EXECUTABLE="$(command -v "$python")" \
    -DCMAKE_INSTALL_PREFIX="$PWD/specfast" -DCMAKE_CUDA_ARCHITECTURES="$arch-real" \
    -DSPECFAST_CUDA=ON -DSPECFAST_GPU_TESTS=ON || return
  "$bin" --build $folder -- -k 0 # whatever compiles is of use
  local rc=$?
  "$bin" --install $folder && return $rc
}

check() {
  each_test "C++" 150
  begin "ops" 240 "$python" -m pytest -q -p no:cacheprovider tests/gpu
  finish
}

# Left out for the ops: graphs, which need the allocator that hides overruns from memcheck, and what
# is only larger. C++ tests stop by themselves when their time is over, and say what they left out.
sanitize() {
  local tool=(compute-sanitizer --error-exitcode 99 --tool)
  local few="not graph and not past_32 and not stream and not whole and not 131072 and not -1- and not -2-"
  export CHECK_SECONDS=100
  each_test "memcheck" 150 "${tool[@]}" memcheck
  begin "memcheck ops" 150 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "${tool[@]}" memcheck \
    "$python" -m pytest -q -p no:cacheprovider tests/gpu -k "$few"
  finish
  each_test "racecheck" 150 "${tool[@]}" racecheck
  finish
}

bench() {
  rm -f "$OUT"/bench.{json,md}
  begin "bench" 360 "$python" -m bench.gpu.measure --seconds "$(($(left 340) - 70))" --out "$OUT"
  finish
  [ ! -f "$OUT/bench.md" ] || cat "$OUT/bench.md"
}

[ $# -gt 0 ] || { sed -n '2,4s/^# //p' $self; exit 2; }
[ "$*" = build ] && { build; exit; }
for phase in "$@"; do
  case $phase in check | sanitize | bench) ;; *) echo "no phase $phase"; exit 2 ;; esac
  log=$OUT/$phase.log
  : >"$log"
  phase_end=$((SECONDS + phase_seconds))
  echo "--- $phase, log in $log"
  begin "build" 240 $self build
  finish
  $phase
done
echo "$failures failed"
exit $((failures > 0))
