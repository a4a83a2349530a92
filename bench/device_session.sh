#!/usr/bin/env bash
# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#
# Everything that a GPU machine should be asked, in one go. Steps go on after failures; each has a
# time limit, its output in a file of its own, and a line in OUT/summary.tsv.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: bench/device_session.sh OUT [options]

  OUT            folder for the outputs, made if missing
  --bin DIR      folder of plait and, for the tests, plait_cuda_test, plait_field_test and
                 plait_conformance_test (default: below build/)
  --cache DIR    kernel cache, such as `plait aot --out DIR` filled; a private folder
  --seconds N    limit of a conformance step (default 240); the other steps' limits follow from it
  --steps LIST   of info,check,tests,sanitizer,bench,peers,explain,replay (default: all)
  --family LIST  of mma,hopper (default: both)
  --tiny         problems small enough for an emulator

Needs no compiler: the binaries may be carried there, statically linked as they are built. Exit 0
if no step failed; a step that cannot run here is skipped, with the reason.
TEXT
}
die() { printf 'device_session: %s\n' "$*" >&2; exit 2; }

out='' bin='' cache='' seconds=240 tiny=0 families=mma,hopper
steps=info,check,tests,sanitizer,bench,peers,explain,replay
while (($#)); do
  case "$1" in
    --bin | --cache | --seconds | --steps | --family)
      (($# > 1)) || die "$1: expected a value"
      case "$1" in
        --bin) bin=$2 ;; --cache) cache=$2 ;; --seconds) seconds=$2 ;;
        --steps) steps=$2 ;; --family) families=$2 ;;
      esac
      shift 2 ;;
    --tiny) tiny=1; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) die "got $1, expected an option of --help" ;;
    *) [[ -z $out ]] || die "got a second folder $1, expected one"
      out=$1; shift ;;
  esac
done
[[ -n $out ]] || { usage >&2; exit 2; }
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "--seconds: got $seconds, expected a positive number"
for step in ${steps//,/ }; do
  [[ ,info,check,tests,sanitizer,bench,peers,explain,replay, == *,$step,* ]] ||
    die "--steps: got $step, expected a name that --help lists"
done
for family in ${families//,/ }; do
  [[ $family == mma || $family == hopper ]] || die "--family: got $family, expected mma or hopper"
done
wanted() { [[ ,$steps, == *,$1,* ]]; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
find_binary() {
  local place
  for place in ${bin:+"$bin/$1"} ${bin:+"$bin/../tests/$1"} "$root/build/bin/$1" \
    "$root/build/tests/$1"; do
    if [[ -x $place && ! -d $place ]]; then (cd "$(dirname "$place")" && printf '%s/%s' "$PWD" "$1"); return; fi
  done
}
plait=$(find_binary plait)
[[ -n $plait ]] || die "--bin: got ${bin:-nothing}, expected a folder with plait"
[[ -z $cache ]] || export PLAIT_CACHE_DIR=$cache
mkdir -p "$out" || die "OUT: got $out, expected a folder that can be written"
summary=$out/summary.tsv
printf 'step\tresult\tseconds\tlast line\n' >"$summary"
failed=0

note() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$summary"; }
skip() { printf '[session] %s: skipped, %s\n' "$1" "$2" >&2; note "$1" skipped 0 "$2"; }

# step NAME LIMIT COMMAND...: standard output and error go to OUT/NAME.log.
step() {
  local name=$1 limit=$2 begin=$SECONDS code result last
  shift 2
  printf '[session] %s (at most %s s)\n' "$name" "$limit" >&2
  { printf '$'; printf ' %q' "$@"; printf '\n'; } >"$out/$name.log"
  timeout --kill-after=10 "$limit" "$@" >>"$out/$name.log" 2>&1 </dev/null
  code=$?
  case $code in
    0) result=passed ;;
    124 | 137) result=timeout ;;
    *) result="failed ($code)" ;;
  esac
  last=$(tail -n +2 "$out/$name.log" | grep -v '^[[:space:]]*$' | tail -n 1 | tr '\t\r' '  ' | cut -c 1-100)
  [[ $result == passed ]] || failed=1
  note "$name" "$result" "$((SECONDS - begin))" "$last"
}

# The tool's own limit ends a conformance step in time to print its counts.
grace=120
check_seconds=$seconds filter=() sanitized=96 repetitions=15
seed=$((10#$(date +%j)))  # other problems every day; the logs name it
# Most of a random problem is the compilation of its kernels and the oracle, both on the host.
jobs=$(nproc)
replay=(--geometry llama-3.1-8b --workload sharegpt-like --limit 32)
suites='cuda field conformance' gpu_tests='*Gpu*' operations='GpuOperations.*'
# Compares the device's free memory, which other processes change.
alone='GpuRuntime.OutOfMemory*'
if ((tiny)); then
  filter=(--filter random/) sanitized=1 jobs=1 suites=cuda gpu_tests='GpuRuntime.Current*'
  operations='GpuOperations.MergeState'
  replay=(--workload uniform:5:20 --limit 1)
fi

if wanted info; then
  step info 60 "$plait" info
  if command -v nvidia-smi >/dev/null; then step nvidia_smi 60 nvidia-smi; fi
fi
for family in ${families//,/ }; do
  # Every problem runs eagerly and as the replay of a captured graph.
  if wanted check; then
    step "check_$family" $((seconds + grace)) "$plait" check --device cuda --family "$family" \
      --count 1000000 --jobs "$jobs" --seed "$seed" --time-limit "$check_seconds" "${filter[@]}"
  fi
done
if wanted tests; then
  shards='for ((i = 0; i < GTEST_TOTAL_SHARDS; ++i)); do GTEST_SHARD_INDEX=$i "$@" & pids+=($!); done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done; exit "${failed:-0}"'
  for suite in $suites; do
    tests=$(find_binary "plait_${suite}_test")
    if [[ -n $tests ]]; then
      GTEST_TOTAL_SHARDS=$(((jobs + 1) / 2)) step "tests_$suite" $((seconds + grace)) \
        bash -c "$shards" shards "$tests" --gtest_filter="$gpu_tests-$alone"
      [[ $suite != cuda ]] || ((tiny)) || step tests_alone "$seconds" "$tests" --gtest_filter="$alone"
    else
      skip "tests_$suite" "no plait_${suite}_test beside plait"
    fi
  done
fi
if wanted sanitizer; then
  if command -v compute-sanitizer >/dev/null; then
    # Every kernel of the default set, and random problems. First without a tool, so that kernels come
    # from the cache. Under a tool one problem at a time: what the tool does for one thread can
    # invalidate a capture of another.
    for family in ${families//,/ }; do
      if ((tiny)); then
        :
      elif command -v python3 >/dev/null; then
        step "problems_$family" 60 bash -o pipefail -c '"$0" aot --list | python3 "$1" "$2" "$3"' \
          "$plait" "$root/bench/kernel_problems.py" "$family" "$out/problems/$family"
      else
        skip "set_$family" "no python3 to write its problems"
      fi
      if compgen -G "$out/problems/$family/*.json" >/dev/null; then
        step "set_$family" "$seconds" "$plait" check --device cuda --family "$family" \
          "$out/problems/$family"/*.json
      fi
      step "kernels_$family" "$seconds" "$plait" check --device cuda --family "$family" \
        --count "$sanitized" --jobs "$jobs" --filter random/ --seed "$seed"
    done
    conformance=$(find_binary plait_conformance_test)
    for tool in memcheck racecheck initcheck synccheck; do
      sanitizer=(compute-sanitizer --tool "$tool" --error-exitcode 1)
      # Every ring of every resident block has several barriers; its table holds fewer by default.
      [[ $tool != synccheck ]] || sanitizer+=(--num-cuda-barriers 65536)
      for family in ${families//,/ }; do
        if compgen -G "$out/problems/$family/*.json" >/dev/null; then
          step "${tool}_set_$family" $((seconds + grace)) "${sanitizer[@]}" "$plait" check \
            --device cuda --family "$family" "$out/problems/$family"/*.json
        fi
        step "${tool}_$family" $((seconds + grace)) "${sanitizer[@]}" "$plait" check --device cuda \
          --family "$family" --count "$sanitized" --jobs 1 --filter random/ --seed "$seed" \
          --time-limit "$seconds"
      done
      [[ -z $conformance ]] || step "${tool}_operations" "$seconds" "${sanitizer[@]}" \
        "$conformance" --gtest_filter="$operations"
    done
  else
    skip sanitizer "no compute-sanitizer in PATH"
  fi
fi
if wanted bench && ((tiny)); then
  skip bench "its shapes are not for an emulator"
elif wanted bench; then
  for family in ${families//,/ }; do
    step "bench_$family" $((3 * seconds)) "$plait" bench --device cuda --family "$family" \
      --repetitions "$repetitions" --csv "$out/bench_$family.csv"
  done
fi
if wanted peers; then
  if python3 -c 'import torch' 2>/dev/null; then
    step peers $((3 * seconds)) python3 "$root/bench/peers/peers.py" --csv "$out/peers.csv"
  else
    skip peers "python3 cannot import torch"
  fi
fi
if wanted explain; then
  if ((tiny)); then
    step explain "$seconds" "$plait" explain --measured --why --device cuda --workers 4 \
      --svg "$out/explain.svg" "$root/examples/problems/paged_decode.json"
  else
    for batch in $("$plait" explain --list | awk '{print $1}'); do
      step "explain_$batch" 120 "$plait" explain --measured --why --device cuda \
        --svg "$out/explain_$batch.svg" --batch "$batch"
    done
  fi
fi
if wanted replay; then
  step replay $((2 * seconds)) "$plait" replay --device cuda --quiet --json "$out/replay.json" \
    "${replay[@]}"
fi

awk -F '\t' '{printf "%-20s %-12s %8s  %s\n", $1, $2, $3, $4}' "$summary"
exit "$failed"
