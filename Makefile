# The one entry point: README, continuous integration and people use these targets and nothing else. What a target does stands in
# hack/make, in steps: `make long WHAT="hostile kills"` does these, and `make long` lists those that there are. Times are of two cores
# with everything built before.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO := cargo
WHAT ?=
DEMO_ARGS ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Every program of the product (2 min from scratch)
	@hack/prepare
	$(CARGO) build --workspace --bins --locked

.PHONY: check
check: ## Lints and unit tests: before every commit (3 min)
	@hack/make/lint
	$(CARGO) test --workspace --lib --locked --no-fail-fast
	$(CARGO) test --workspace --test files --locked -- lengths::

.PHONY: test
test: ## Everything that must hold, on a real control plane and real nodes (root; 24 min), or WHAT="crates files"
	@hack/make/test $(WHAT)

.PHONY: e2e
e2e: ## Scenarios by the modules of tests/e2e/tests/scenarios, all or TESTS="lifecycle faults::outages" (15 min)
	@hack/make/test scenarios

.PHONY: kubelets
kubelets: ## Scenarios on real nodes: kubelet, containerd, NVIDIA's parts, the chart from images (root; 10 min)
	@hack/make/test kubelets

.PHONY: long
long: ## WHAT="adoption autoscaler buildah certificates faults frameworks fuzz hardware hostile kills python-operator redfish soak upgrade versions" (5 min to 1 h each)
	@hack/make/long $(WHAT)

.PHONY: demo
demo: ## The main job: 40 jobs of a production trace on real nodes, by plain Kubernetes, then by ANDREAS (DEMO_ARGS=--quick: by ANDREAS alone) (7 min)
	@hack/make/demo $(DEMO_ARGS)

.PHONY: fmt
fmt: ## Format the code (2 s)
	$(CARGO) fmt --all
	cd lab && $(CARGO) fmt --all

.PHONY: lint
lint: ## Formatting and lints (2 min), or WHAT=supply-chain: licences, advisories, unused dependencies
	@hack/make/lint $(WHAT)

.PHONY: generate
generate: ## Write what is generated from the code (3 min): WHAT="crds metrics-docs reference"
	@hack/make/generate $(WHAT)

.PHONY: docs
docs: ## The site, into target/docs/book (10 s), or WHAT="transcripts compare-transcripts pictures" (4 to 9 min each)
	@hack/make/docs $(WHAT)

.PHONY: release
release: ## All files of a release, into target/release-files (79 min), or WHAT="images sbom arm64 install-release"
	@hack/make/release $(WHAT)

.PHONY: lab
lab: ## Build and test the laboratory (5 min), or WHAT="all fidelity answers anchors bench bench-quick results" (up to hours)
	@hack/make/lab $(WHAT)

.PHONY: python
python: ## Tests of the Python package under every Python from 3.9 that is here, and PYTHONS="3.9 3.15" (root; 2 min)
	@hack/python

.PHONY: sizes
sizes: ## Lines of code, metrics, targets and words of pages, beside their goals (5 s)
	@hack/sizes
