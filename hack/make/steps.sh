# Sourced by the scripts of this folder, which carry out targets of the Makefile: builds and suites that several of them need, and
# how they run steps. A step is a function: `step_NAME() { ## WHAT IT DOES (HOW LONG)`. Variables of `make NAME=VALUE` are in the
# environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH="$HOME/.cargo/bin:$PATH"

# Its steps, one a line.
list_steps() {
  sed -nE 's/^step_([a-z0-9-]+)\(\) \{ ## (.*)/\1\t\2/p' "$0" | while IFS=$'\t' read -r name text; do printf '  %-19s %s\n' "$name" "$text"; done
}

# run_steps STEP...: runs these in order, each in a shell of its own, up to the first that fails. Without any it lists them.
run_steps() {
  local step
  [ $# -gt 0 ] || { echo "WHAT= one or more of:"; list_steps; exit 2; } >&2
  for step; do
    declare -F "step_$step" >/dev/null || { echo "there is no step $step; WHAT= one or more of:"; list_steps; exit 2; } >&2
  done
  for step; do ("step_$step"); done
}

# tools SET...: the Go programs that tests need, each built once into the cache folder.
tools() {
  local set
  hack/prepare
  for set; do tests/tools/build "$set" >/dev/null; done
}

# The product's programs.
build() { cargo build --workspace --bins --locked; }

# Programs and tests in one go: tests turn on features of dependencies, and programs built without them would have half of the
# dependencies compiled twice.
build_tests() {
  cargo build --workspace --bins --examples --tests --locked
  # With `--tests` those of which `cargo test` does nothing by itself are left out.
  cargo test --workspace --test scenarios --test kubelets --locked --no-run
}

build_release() {
  local program programs=()
  for program in operator extender node-agent node-setter node-power trainer; do programs+=(--bin "andreas-$program"); done
  cargo build --release --workspace --locked "${programs[@]}"
}

# Every test but the scenarios and those on real nodes.
crates() { cargo test --workspace --locked --no-fail-fast -- --test-threads=2; }

# scenarios ARGUMENT...: by default as many threads as tests have a place (tests/e2e/src/places.rs) or wait for one.
scenarios() { cargo test --workspace --locked --no-fail-fast --test scenarios -- --test-threads="${THREADS:-12}" "$@"; }

# on_real_nodes ARGUMENT...: each test in namespaces of its own. Needs root, and tests/kubelets/prepare before.
on_real_nodes() {
  cargo test --config "target.\"cfg(unix)\".runner=\"$PWD/tests/kubelets/each\"" --workspace --locked --test kubelets -- "$@"
}

# What scenarios on real nodes need. Whether they can be had is known in the first second.
real_nodes() {
  hack/prepare
  tests/kubelets/available
  tools control-plane nvidia
}

# Modules of a suite's tests as its filter: TESTS="lifecycle faults::outages".
filter() { for module in ${TESTS:-}; do printf '%s::\n' "$module"; done; }
