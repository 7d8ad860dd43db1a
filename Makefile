# The one entry point: README, continuous integration and people use these targets and nothing else.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(HOME)/.cargo/bin:$(PATH)

CARGO := cargo
DEMO_ARGS ?=
BENCH_ARGS ?= all
IMAGES_ARGS ?=
RELEASE_ARGS ?=
TARGET ?= scheduler_requests
MINUTES ?= 10
ADVISORIES ?=
ANCHORS_ARGS ?= highs,sia 15
TESTS ?=
PAGES ?=
CRATES := $(CARGO) test --workspace --locked --no-fail-fast -- --test-threads=2
# The laboratory is a workspace of its own; what it shares with the product is built once.
LAB := cd lab && $(CARGO)
# Threads of those that have a place (tests/e2e/src/places.rs) and of those that wait for one.
THREADS := 12
SCENARIOS = $(CARGO) test --workspace --locked --no-fail-fast --test scenarios -- --test-threads=$(THREADS)
EACH_ISOLATED := --config 'target."cfg(unix)".runner="$(CURDIR)/tests/kubelets/each"'
ON_REAL_NODES := $(CARGO) test $(EACH_ISOLATED) --workspace --locked --test kubelets --
UPGRADE_FROM ?= ca8fc16
# The control planes of the suites are short-lived and small: collecting garbage less often saves a tenth of their CPU time.
test test-crates e2e kubelets: export GOGC := 400
# Where tests/tools/build keeps what it built.
CACHE := $(or $(ANDREAS_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/andreas)
VERSIONS ?= 1.34 1.35

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: prepare
prepare:
	@hack/prepare

# Before anything is built: a second where all is there, one line where real nodes cannot be had.
.PHONY: real-nodes
real-nodes: prepare
	@tests/kubelets/available

.PHONY: control-plane
control-plane: prepare ## Build etcd, kube-apiserver, ... once into the cache folder
	@tests/tools/build >/dev/null

.PHONY: prometheus
prometheus: prepare ## Build Prometheus and promtool once into the cache folder; only tests need them
	@tests/tools/build prometheus >/dev/null

.PHONY: nvidia
nvidia: prepare ## Build NVIDIA's device plug-in and GPU feature discovery once into the cache folder; only tests need them
	@tests/tools/build nvidia >/dev/null

.PHONY: build
build: prepare ## Build every program of the workspace
	$(CARGO) build --workspace --bins --locked

# Programs and tests in one go: tests turn on features of dependencies, and programs built without them would have
# half of the dependencies compiled twice.
.PHONY: build-tests
build-tests: prepare
	$(CARGO) build --workspace --bins --examples --tests --test scenarios --test kubelets --locked
	$(LAB) build --locked --bins

.PHONY: demo
demo: prepare ## The main job: a real control plane, real nodes, 40 jobs of a production trace by plain Kubernetes, then by ANDREAS (DEMO_ARGS=--quick: by ANDREAS alone)
	@isolated= sets=control-plane; \
	if [[ " $(DEMO_ARGS) " != *" --pretend "* ]] && tests/kubelets/available; then \
	  isolated=tests/kubelets/isolated sets+=" nodes registry nvidia"; \
	fi; \
	set -m; { for set in $$sets; do tests/tools/build $$set >/dev/null || exit 1; done; } </dev/null & beside=$$!; set +m; \
	trap 'kill -- -$$beside 2>/dev/null || true' EXIT; \
	$(CARGO) build --workspace --bins --locked; \
	wait $$beside; trap - EXIT; \
	[ -z "$$isolated" ] || tests/kubelets/prepare; \
	$$isolated $(CARGO) run -q --offline --locked --bin demo -- $(DEMO_ARGS)

.PHONY: fidelity
fidelity: control-plane build ## Runs on the test bed and replays of them, for docs/fidelity.md: FIDELITY_ARGS="--runs 1 --workloads all" (45 runs take three hours)
	$(LAB) build --locked --bins
	$(CARGO) run -q --offline --locked --bin fidelity -- $(FIDELITY_ARGS)

.PHONY: test-began
test-began:
	@mkdir -p target && touch target/.test-began

.PHONY: test
test: test-began real-nodes ## Everything that must hold: lints, unit tests, and the suites on a real control plane and real nodes
	@failed=; logs=$$(mktemp -d); SECONDS=$$(($$(date +%s) - $$(stat -c %Y target/.test-began))) begun=0; \
	took() { echo "== $$1: $$((SECONDS - begun)) s"; begun=$$SECONDS; }; \
	beside=(); trap 'for one in "$${beside[@]}"; do kill -- -$$one 2>/dev/null || true; done; rm -rf "$$logs"' EXIT; \
	trap 'grep -hsE "FAILED|^error|^each: failed" "$$logs"/* || true; exit 130' INT TERM; \
	echo "Go programs are built beside lints and tests, and what they print comes after those"; \
	set -m; { for set in control-plane prometheus nvidia nodes registry; do tests/tools/build $$set >/dev/null || exit 1; done; } </dev/null >"$$logs/tools" 2>&1 & beside+=($$!); set +m; \
	make --no-print-directory lint supply-chain build-tests; \
	wait "$${beside[0]}" || { cat "$$logs/tools" >&2; exit 1; }; cat "$$logs/tools"; \
	real=yes; tests/kubelets/prepare || { real=; failed+=" preparation of real nodes"; }; \
	took "lints and builds, $$(find "$(CACHE)" -name .complete -newer target/.test-began 2>/dev/null | wc -l) sets of Go programs among them"; \
	echo "scenarios run first; the crates' tests and those on real nodes run beside them, and are printed after them"; \
	set -m; $(CRATES) </dev/null >"$$logs/crates" 2>&1 & beside+=($$!); \
	if [ -n "$$real" ]; then $(ON_REAL_NODES) </dev/null >"$$logs/real" 2>&1 & beside+=($$!); fi; set +m; \
	$(SCENARIOS) 2>&1 | tee "$$logs/scenarios" || failed+=" scenarios"; took scenarios; \
	wait "$${beside[1]}" || failed+=" crates"; cat "$$logs/crates"; took "crates, after that"; \
	if [ -n "$$real" ]; then wait "$${beside[2]}" || failed+=" real nodes"; cat "$$logs/real"; took "real nodes, after that"; fi; \
	make --no-print-directory lab 2>&1 | tee "$$logs/lab" || failed+=" laboratory"; took laboratory; \
	echo "== all: $$SECONDS s"; \
	[ -z "$$failed" ] || { grep -hE -A6 '^---- .* ----$$|^each: failed' "$$logs"/* | cut -c1-300 || true; echo "failed:$$failed"; exit 1; } >&2

.PHONY: check
check: lint ## Lints and unit tests: before every commit
	$(CARGO) test --workspace --lib --locked --no-fail-fast
	$(CARGO) test --workspace --test files --locked -- imports:: lengths::

.PHONY: check-files
check-files: control-plane prometheus build-tests ## Pages, manifests and generated files agree with the code
	$(CARGO) test --workspace --locked --no-fail-fast --test files --test schema
	$(CARGO) test --workspace --locked --test run -- help_names
	$(CARGO) test --workspace --lib --locked -- pages::tests

.PHONY: test-crates
test-crates: control-plane prometheus nvidia build-tests ## Every test but the scenarios
	$(CRATES)

.PHONY: e2e
e2e: control-plane prometheus build-tests ## Scenarios by the modules of tests/e2e/tests/scenarios, all or some: TESTS="lifecycle faults::outages"
	$(SCENARIOS) $(addsuffix ::,$(TESTS))

.PHONY: kubelets
kubelets: real-nodes control-plane nvidia build-tests ## Scenarios on real nodes: kubelet, containerd, runc, NVIDIA's own parts, the chart from images (root)
	tests/kubelets/prepare
	$(ON_REAL_NODES) $(addsuffix ::,$(TESTS))

.PHONY: adoption
adoption: THREADS := 2
adoption: control-plane build-tests ## Jobs of other kinds beside their real controllers and Kueue, which are built from Go modules first (15 min)
	tests/tools/build adoption >/dev/null
	tests/tools/build kueue >/dev/null
	$(SCENARIOS) --nocapture --include-ignored adoption::

.PHONY: versions
versions: real-nodes control-plane nvidia build-tests ## Scenarios on real nodes of the older supported versions of Kubernetes, each built once (root; 8 min of CPU each)
	for version in $(VERSIONS); do \
	  export ANDREAS_KUBERNETES=$$version; \
	  tests/tools/build >/dev/null; tests/kubelets/prepare; \
	  $(ON_REAL_NODES) training::; \
	done

.PHONY: buildah
buildah: prepare ## The trainer's Dockerfile, built by buildah on base images made of Debian's packages (root, Debian 12; 5 min, 0.5 GB)
	@tests/buildah

.PHONY: frameworks
frameworks: real-nodes control-plane nvidia build-tests ## PyTorch, Hugging Face, Lightning, Kubeflow's SDK on real nodes (root): downloads 260 MB, 5 GB of disk, 45 min
	tests/kubelets/prepare
	tests/frameworks/image >/dev/null
	ANDREAS_NODE_IMAGE=$(CURDIR)/target/frameworks/image.tar tests/kubelets/isolated \
	  $(CARGO) test --offline --workspace --locked --test frameworks -- --test-threads=1 --nocapture
	tests/frameworks/page

.PHONY: python
python: ## Tests of the Python package, under every Python from 3.9 that is here, and those that PYTHONS="3.9 3.15" names (root)
	@hack/python

.PHONY: python-operator
python-operator: control-plane build-tests ## A program with the Python package against the operator's own endpoint, under the oldest and the newest Python (PYTHONS as for `make python`)
	pythons=$$(hack/python ends); for python in $$pythons; do ANDREAS_PYTHON=$$python $(SCENARIOS) python:: --nocapture; done

.PHONY: certificates
certificates: export RENEWAL_SECONDS := 600
certificates: export RENEWAL_EVERY := 60
certificates: control-plane build-tests ## Ten minutes of reports while certificates are renewed every minute
	$(SCENARIOS) certificates::no_report --nocapture

.PHONY: release-programs
release-programs: control-plane
	$(CARGO) build --release --workspace --locked $(addprefix --bin ,andreas-operator andreas-extender andreas-node-agent andreas-node-setter andreas-trainer)

.PHONY: faults
faults: export ANDREAS_LONG := 1
faults: export ANDREAS_BIN_DIR := $(CURDIR)/target/release
faults: THREADS := 1
faults: release-programs build-tests ## What an API server can do to us, at full length: each write interrupted, five minutes away, 300 objects of 1.3 MB
	$(CARGO) test --workspace --lib --locked lifecycle::tests::properties::
	$(SCENARIOS) faults:: --nocapture

.PHONY: upgrade
upgrade: control-plane build ## 200 running jobs while helm upgrades from an earlier commit (UPGRADE_FROM), is killed half-way, and goes back
	@release=$$(hack/build-release-of "$(UPGRADE_FROM)") && ANDREAS_RELEASE_BEFORE=$$release \
	  $(CARGO) test --workspace --locked --test upgrade -- --nocapture

.PHONY: hostile
hostile: export ANDREAS_LONG := 1
hostile: control-plane build-tests ## A tenant with an ordinary account does its worst at full size: 20,000 jobs, 300 objects of 1.3 MB, ...
	$(SCENARIOS) hostile_tenant:: agent::silent_connections --nocapture

.PHONY: kills
kills: export ANDREAS_LONG := 1
kills: build-tests ## The node agent's two processes are killed a thousand times at random moments; then a thousand kills and faults of the driver; energy over a minute
	$(CARGO) test --workspace --locked --test processes -- at_any_moment energy_of_a_replayed --test-threads=1 --nocapture

.PHONY: hardware
hardware: export UPDATE := 1
hardware: prepare ## Where a GPU is at hand: read it beside nvidia-smi (LOAD=1: under load too; FAULT=1: with an error of a program), write docs/hardware.md, record NVML's answers. Sets nothing
	$(CARGO) test --workspace --locked --test hardware -- --nocapture
	$(CARGO) test --workspace --locked --test recordings -- --nocapture --ignored

.PHONY: soak
soak: control-plane build ## Everything at random for an hour (SOAK_MINUTES), from a seed (SOAK_SEED): kills, node losses, clocks, faults
	@$(CARGO) run -q --locked --bin soak

.PHONY: bench-build
bench-build: control-plane
	$(CARGO) build --release --workspace --bins --locked
	$(CARGO) build --profile small -p andreas-node-agent --bins --locked

.PHONY: bench
bench bench-quick: export ANDREAS_BIN_DIR := $(CURDIR)/target/small
bench: bench-build ## Every benchmark at full size on an otherwise idle machine, into lab/docs/benchmarks.md (one alone: BENCH_ARGS=bind)
	$(CARGO) run -q --release --locked --bin bench -- $(BENCH_ARGS) --markdown lab/docs/benchmarks.md --json target/bench.json

.PHONY: bench-quick
bench-quick: bench-build ## A row for every benchmark at reduced size, to the terminal: finds mistakes, gives no figures
	$(CARGO) run -q --release --locked --bin bench -- all --quick --json target/bench-quick.json

.PHONY: lab
lab: prepare ## Build and test the laboratory: replays, other systems' policies, evaluation of the predictor (lab/README.md)
	$(LAB) build --locked --bins
	$(LAB) test --locked --no-fail-fast -- --test-threads=2

.PHONY: anchors
anchors: export ANCHORS := $(CURDIR)/target/anchors/problems
anchors: ## Decisions of the planner beside those of HiGHS, Sia's program and DeDe (Python packages): ANCHORS_ARGS="highs,sia 15"
	hack/prepare anchors
	mkdir -p $(ANCHORS); python3 -m venv target/anchors/venv
	target/anchors/venv/bin/pip install --quiet highspy==1.15.1 dede==0.1.6 scipy==1.11.4
	$(CARGO) test --release -p andreas-planner --lib --locked -- --ignored write_problems
	$(LAB) test --release -p andreas-baselines --lib --locked -- --ignored write_problems
	target/anchors/venv/bin/python lab/anchors $(ANCHORS) $(ANCHORS_ARGS)

.PHONY: lint
lint: prepare ## Formatting and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --workspace --test scenarios --test upgrade --test kubelets --test frameworks --test transcripts --locked -- -D warnings
	$(LAB) fmt --all --check
	$(LAB) clippy --all-targets --locked -- -D warnings

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all
	$(LAB) fmt --all

.PHONY: transcripts
transcripts: real-nodes control-plane build ## Run the commands of pages on the demo's cluster, and write what they print: PAGES="docs/ask.md" (root)
	tests/kubelets/prepare
	tests/kubelets/isolated $(CARGO) run -q --offline --locked --bin transcripts -- $(PAGES)

.PHONY: compare-transcripts
compare-transcripts: real-nodes control-plane nvidia build-tests ## Run the commands of all pages again, and compare the shape of what they print (root)
	tests/kubelets/prepare
	tests/kubelets/isolated $(CARGO) test --offline --workspace --locked --test transcripts -- --nocapture

.PHONY: pictures
pictures: control-plane prometheus build docs ## Pictures of dashboards, report and site into docs/images, by Chromium and a real Prometheus
	@{ command -v chromium && command -v pngquant; } >/dev/null || hack/packages chromium pngquant
	@tests/tools/build kube-state-metrics >/dev/null
	@$(CARGO) run -q --locked --bin pictures
	@pngquant --force --ext .png 256 docs/images/*.png

.PHONY: answers
answers: real-nodes control-plane build ## Ask whatif before each of the demo's 40 jobs, and compare with what then happens (root)
	tests/kubelets/prepare
	tests/kubelets/isolated $(CARGO) run -q --offline --locked --bin answers

.PHONY: crds
crds: control-plane ## Write what is generated: CustomResourceDefinitions into the chart, renderings of the chart
	UPDATE=1 $(CARGO) test -q --workspace --locked --test crds
	UPDATE=1 $(CARGO) test -q --workspace --locked --test files -- chart_golden::

.PHONY: metrics-docs
metrics-docs: prepare ## Write docs/metrics.md from the lists of metrics in the code
	UPDATE=1 $(CARGO) test -q --workspace --locked --test files -- the_documentation

.PHONY: reference
reference: prepare ## Write docs/reference from custom resources, reasons, the command line and the chart's values
	UPDATE=1 $(CARGO) test -q --workspace --locked --test files --test schema -- the_reference

.PHONY: docs
docs: prepare ## The site from the pages of docs/, by mdBook, into target/docs/book
	@hack/docs target/docs
	@"$$(hack/cargo-tool mdbook 0.5.4)" build target/docs

.PHONY: supply-chain
supply-chain: export ADVISORIES := $(ADVISORIES)
supply-chain: prepare ## Licences, sources, bans, advisories, unused dependencies, pinned base images
	@hack/supply-chain

.PHONY: sbom
sbom: prepare ## A bill of materials (CycloneDX) for each program, into target/sbom/
	@hack/sbom

.PHONY: release
release: prepare ## All files of a release into target/release-files/: RELEASE_ARGS="--arch amd64 --url https://example.org/v0.1.0"
	@hack/release $(RELEASE_ARGS)

.PHONY: install-release
install-release: real-nodes control-plane nvidia build-tests ## Install what `make release` wrote, from these files alone, on real nodes that pull by digest from a registry (root)
	tests/kubelets/prepare
	ANDREAS_RELEASE=$(CURDIR)/target/release-files $(ON_REAL_NODES) release::

.PHONY: arm64
arm64: ## Run the arm64 programs of what `make release` wrote under emulation, beside the amd64 ones (qemu-user-static is installed; 10 s)
	@tests/arm64

.PHONY: images
images: prepare ## Images as OCI archives, without a container engine, into target/images/: IMAGES_ARGS="--arch amd64 operator extender"
	@hack/images $(IMAGES_ARGS)

.PHONY: fuzz
fuzz: prepare ## Let libFuzzer search one parser: TARGET=scheduler_requests MINUTES=10 (names: tests/fuzz/src/lib.rs)
	@hack/fuzz "$(TARGET)" "$(MINUTES)"
