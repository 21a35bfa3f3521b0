# Every target works from a fresh clone on Debian or Ubuntu, as root.
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO = $(shell hack/go.sh)
export PATH := $(CURDIR)/bin:$(PATH)

.PHONY: help demo demo-stop dev dev-shell dev-stop dev-tmux test test-all test-unit test-root e2e test-packages corpus probe test-kubernetes test-image test-vm bench soak seeds load chaos lint generate config validate-config packages package deb image chart release release-data toolchain bin/runtime bin/runtime-debug clean

help: ## Show this list
	@grep -hE '^[a-z0-9/-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-18s\033[0m %s\n", $$1, $$2}'

demo: toolchain bin/runtime ## Build everything, start a server, deploy an example, run code in a sandbox
	@hack/demo.sh

demo-stop: ## Stop the demo and remove everything it made
	@hack/demo.sh stop

dev: packages ## A server from this checkout that is rebuilt and restarted when the source changes (root)
	@hack/dev.sh run $(if $(DEBUG),--debug) $(ARGS)

dev-shell: ## A shell in which r talks to the server of make dev
	@hack/dev.sh shell

dev-stop: ## Stop the server of make dev and everything that it runs; REMOVE=1 deletes its state too
	@hack/dev.sh stop $(if $(REMOVE),--remove)

dev-tmux: packages ## make dev, the logs and a shell in panes of tmux
	@hack/packages.sh dev
	@hack/dev.sh tmux

test: ## Everything, unit to end-to-end, on the real components
	@hack/packages.sh base test
	@hack/clean-check.sh before
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-all
	@hack/clean-check.sh after

test-all: toolchain bin/runtime ## Every test without the checks of lint, and without a look at what is left over (root)
	@hack/toolchain.sh test
	@hack/test.sh all

test-unit: packages ## Tests that need no root and of the toolchain only what hack/toolchain.sh test builds
	@hack/toolchain.sh test
	@hack/test.sh unit

test-root: toolchain bin/runtime ## Tests of the real components (root)
	@hack/test.sh root

e2e: toolchain bin/runtime ## End-to-end tests of the built binaries (root)
	@hack/toolchain.sh test
	@hack/test.sh e2e

test-packages: toolchain bin/runtime ## Popular packages of Python and Node.js in sandboxes (root, minutes: not part of test)
	@hack/test.sh packages

corpus: toolchain bin/runtime ## Sources of every stack, built, served and restarted; a table (root, many minutes: not part of test)
	@hack/corpus.sh $(ARGS)

probe: toolchain bin/runtime ## Escapes from sandboxes: every probe is refused inside, and succeeds without a sandbox (root; part of test)
	@hack/test.sh probe

test-kubernetes: toolchain ## Sandboxes as pods of a Kubernetes cluster of the test (root, builds Kubernetes: not part of test)
	@hack/test.sh kubernetes

test-image: toolchain bin/runtime ## The image of make image, started by Docker (root, minutes: not part of test)
	@hack/packages.sh base test
	@hack/test.sh image

test-vm: ## cgroup v2 and systemd, in a virtual machine (400 MB of packages and minutes: not part of test)
	@hack/vm-test.sh

bench: toolchain bin/runtime ## Benchmarks against the named peers; prints ratios
	@hack/packages.sh base test
	@hack/bench.sh

soak: toolchain bin/runtime ## The disks' tests for long: 10,000 seeds, 100 killed daemons, fuzzing (root, hours)
	@hack/packages.sh base test
	@hack/toolchain.sh test
	@hack/soak.sh

seeds: toolchain bin/runtime ## The disks' tests with fresh seeds, for every night: SEEDS (1,000) from FIRST, the clock (root)
	@SEEDS=$${SEEDS:-1000} hack/soak.sh simulation replay writers metamorphic

load: toolchain bin/runtime ## 100,000 requests of every protocol while everything happens to an app and its server (root, ten minutes)
	@hack/soak.sh constantload

chaos: toolchain bin/runtime ## Random operations and random kills for CHAOS (2h), then every invariant (root)
	@hack/soak.sh chaos

lint: packages ## gofmt, vet, staticcheck, generated code, imports, docs, the Dagger module
	@hack/packages.sh lint
	@hack/lint.sh

generate: ## Rebuild all generated files
	$(GO) run ./entity/cmd/schemagen -root .
	$(GO) run ./pkg/rpc/cmd/rpcgen -root .
	$(GO) run ./pkg/config/cmd/configgen -root .
	$(GO) run ./cli/cmd/clidoc -root .
	$(GO) run ./servers/rest/cmd/openapigen -root .
	hack/sdk.sh generate

CONFIG ?= mcp-sandboxd.yaml

config: bin/runtime ## Write the default configuration of mcp-sandboxd to CONFIG (mcp-sandboxd.yaml), unless it exists
	@set -o noclobber && text=$$(bin/mcp-sandboxd --print-config) && echo "$$text" > "$(CONFIG)" && echo "$(CONFIG)"

validate-config: bin/runtime ## Check CONFIG (mcp-sandboxd.yaml)
	@bin/mcp-sandboxd --check-config --config "$(CONFIG)"

packages:
	@hack/packages.sh

toolchain: packages ## Build the pinned containerd, runsc, CNI plugins and BuildKit (cached)
	@hack/toolchain.sh

bin/runtime: ## Build bin/runtime, the client bin/r and the in-sandbox agent
	@hack/build.sh

bin/runtime-debug: ## Build bin/runtime-debug, unoptimised and with the race detector
	@hack/build.sh --debug

package: toolchain bin/runtime ## The archive that is installed: bin/package/runtime-<version>-linux-<arch>.tar.gz
	@hack/package.sh

deb: toolchain bin/runtime ## The same as a Debian package, bin/package/runtime_<version>_<arch>.deb
	@hack/package.sh deb

image: toolchain bin/runtime ## The server as an image for docker load: bin/package/runtime-<version>-image-<arch>.tar
	@hack/image.sh

chart: ## The Helm chart: bin/package/runtime-<version>.tgz
	@hack/chart.sh bin/package

release: ## Archives, Debian packages and clients of this commit, with sums and signature (RELEASE_KEY); ARGS=--unsigned, --check
	@hack/release.sh $(ARGS)

release-data: toolchain bin/runtime ## The base images for machines that reach no registry; ARGS names some (root, as long as the images take)
	@hack/release-data.sh $(ARGS)

clean: ## Remove build results of this checkout (the toolchain cache stays)
	rm -rf bin
