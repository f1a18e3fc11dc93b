# Everything is built from Go modules; nothing is downloaded as a binary.
SHELL := bash
# A push that failed must not end in the installation of nothing.
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --dirty 2>/dev/null || echo v0.0.0-devel+$$(git rev-parse --short HEAD 2>/dev/null))
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
# grpcnotrace: gRPC's request tracing page pulls in html/template, and with it a quarter of the agent's size.
GO_TAGS := grpcnotrace
GO_LDFLAGS := -s -w -X main.version=$(VERSION)
# -dwarf=false: -s -w throws debugging information away, so the compiler need not make it. That is an eighth of its work.
GO_GCFLAGS := all=-dwarf=false
GO_BUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=auto -tags $(GO_TAGS) -gcflags $(GO_GCFLAGS) -ldflags '$(GO_LDFLAGS)'

# GOFIPS140=v1.0.0 builds with Go's validated module (docs/howto/fips.md). The tags of images then end with -fips.
FIPS := $(if $(filter-out off,$(GOFIPS140)),-fips)

.PHONY: help
help: # lists the targets that people use; those with one # are for CI and releases
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: build
build: ## Build bin/pinniped (the CLI) and bin/pinniped-agent (in the cluster), both static
	$(GO_BUILD) -o bin/pinniped ./cmd/pinniped
	$(GO_BUILD) -o bin/pinniped-agent ./cmd/agent

# The name of the agent's image, and the platforms that it is for. REGISTRY puts it somewhere else: make image-push REGISTRY=ghcr.io/me
REGISTRY ?= ghcr.io/pinniped-toolkit
IMAGE ?= $(REGISTRY)/pinniped-agent
PLATFORMS ?= linux/amd64 linux/arm64
AGENTS := $(foreach platform,$(PLATFORMS),bin/$(platform)/pinniped-agent)
# hack/image attaches the SBOM that is next to a program. The same program has the same one.
SBOM = bin/cyclonedx-gomod bin -json -licenses -std -noserial -notimestamp -version '$(VERSION)'

bin/cyclonedx-gomod: hack/tools/go.mod
	cd hack/tools && CGO_ENABLED=0 go build -o ../../bin/cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod

.PHONY: agents
agents: bin/cyclonedx-gomod
	@$(foreach platform,$(PLATFORMS),echo "Building the agent for $(platform)" >&2 && \
	  GOOS=$(word 1,$(subst /, ,$(platform))) GOARCH=$(word 2,$(subst /, ,$(platform))) $(GO_BUILD) -o bin/$(platform)/pinniped-agent ./cmd/agent && \
	  $(SBOM) -output bin/$(platform)/pinniped-agent.cdx.json bin/$(platform)/pinniped-agent &&) true

.PHONY: image
image: agents ## Make the agent's image without Docker: bin/image (OCI layout) and bin/pinniped-agent.tar (kind, containerd)
	@go run ./hack/image -name $(IMAGE) -version '$(VERSION)$(FIPS)' -revision '$(REVISION)' -layout bin/image -tar bin/pinniped-agent.tar $(AGENTS) | tee bin/image.name

.PHONY: image-push
image-push: agents # Push the agent's image: make image-push REGISTRY=ghcr.io/me
	@go run ./hack/image -name $(IMAGE) -version '$(VERSION)$(FIPS)' -revision '$(REVISION)' -push $(AGENTS) | tee bin/image.name

# What jobs of CI take: the CLI, git and a shell (docs/howto/rotate-in-ci.md).
CLI_IMAGE ?= $(REGISTRY)/pinniped
CLI_BASE ?= docker.io/alpine/git:v2.49.1
CLIS := $(foreach platform,$(PLATFORMS),bin/$(platform)/pinniped)

.PHONY: cli-image-push
cli-image-push: bin/cyclonedx-gomod # Push an image with the CLI, git and a shell, for CI: make cli-image-push REGISTRY=ghcr.io/me
	@$(foreach platform,$(PLATFORMS),echo "Building the CLI for $(platform)" >&2 && \
	  GOOS=$(word 1,$(subst /, ,$(platform))) GOARCH=$(word 2,$(subst /, ,$(platform))) $(GO_BUILD) -o bin/$(platform)/pinniped ./cmd/pinniped && \
	  $(SBOM) -output bin/$(platform)/pinniped.cdx.json bin/$(platform)/pinniped &&) true
	@go run ./hack/image -name $(CLI_IMAGE) -version '$(VERSION)$(FIPS)' -revision '$(REVISION)' -base $(CLI_BASE) -push $(CLIS) | tee bin/cli-image.name

.PHONY: install
install: ## Push the image and install the agent, or bring a new version of it: make install REGISTRY=ghcr.io/me
	@$(MAKE) --no-print-directory image-push
	@hack/install.sh "$$(cat bin/image.name)"

.PHONY: completions
completions: build
	@rm -rf bin/completions && mkdir -p bin/completions
	bin/pinniped completion bash >bin/completions/pinniped.bash
	bin/pinniped completion zsh >bin/completions/_pinniped
	bin/pinniped completion fish >bin/completions/pinniped.fish
	bin/pinniped completion powershell >bin/completions/pinniped.ps1

# Of all that is linked into the CLI, on whichever system.
.PHONY: licenses
licenses:
	@hack/licenses.sh >bin/THIRD_PARTY_LICENSES

.PHONY: manifests
manifests: image bin/helm ## Write the manifests of an installation into bin/manifests, and the chart, with the image's digest
	@rm -rf bin/manifests
	@VERSION='$(VERSION)' hack/manifests.sh bin/manifests "$$(cat bin/image.name)"

.PHONY: chart-push
chart-push: # Push the chart of bin/manifests, as an OCI archive: make manifests chart-push REGISTRY=ghcr.io/me
	@bin/helm push bin/manifests/pinniped-concierge-*.tgz oci://$(REGISTRY)/charts --registry-config ~/.docker/config.json 2>&1 | \
	  sed -n 's/^Digest: */$(subst /,\/,$(REGISTRY))\/charts\/pinniped-concierge@/p' | tee bin/chart.name && test -s bin/chart.name

.PHONY: release
release: bin/goreleaser bin/cyclonedx-gomod man completions manifests licenses ## Make a release in bin/release: archives, chart, manifests, checksums, SBOM, Krew, Homebrew (PUBLISH=1 on a tag: and publish it)
	sed "s|MANPAGES|$$(ls bin/man | sed 's,^,man/man1/,' | paste -sd,)|" .goreleaser.yaml >bin/goreleaser.yaml
	awk '/^## /{n++; next} n==1' CHANGELOG.md >bin/notes.md # the section on top
	VERSION='$(VERSION)' GO_TAGS='$(GO_TAGS)' GO_GCFLAGS='$(GO_GCFLAGS)' GO_LDFLAGS='$(GO_LDFLAGS)' TAP_TOKEN="$$TAP_TOKEN" bin/goreleaser release --clean --config bin/goreleaser.yaml --release-notes bin/notes.md \
	  $(if $(PUBLISH),,--skip=publish,sign $(if $(shell git describe --tags --exact-match 2>/dev/null),,--snapshot))
	cp bin/manifests/* bin/release # they are published beside the archives, and are in the list of checksums

bin/goreleaser: hack/cluster/go.mod
	cd hack/cluster && CGO_ENABLED=0 go build -o ../../bin/goreleaser github.com/goreleaser/goreleaser/v2

.PHONY: demo
demo: ## Run the whole scenario on a local control plane, from nothing to kubectl (KEEP=1 leaves it running)
	@$(MAKE) --no-print-directory -j2 demo-program demo-controlplane && echo "Everything is built, after $$SECONDS s" >&2
	@bin/demo

.PHONY: demo-program
demo-program: # built as the other programs are, so that no package is compiled twice
	@$(MAKE) --no-print-directory build && $(GO_BUILD) -o bin/demo ./hack/demo && echo "Built our programs in $$SECONDS s" >&2

.PHONY: test
test: controlplane build node-modules bin/certmanager bin/trustmanager bin/helm ## Run every test, those on a real API server included
	hack/summary.sh $(MAKE) --no-print-directory -j2 test-waiting test-computing

# test/integration mostly waits for what a cluster does, within times that users are promised. So it runs beside the others, which mostly compute, and goes
# before them. What the tests run is not to know of make's jobs.
GO_TEST = env -u MAKEFLAGS -u MFLAGS go test
TESTFLAGS = -timeout 30m

.PHONY: test-waiting test-computing
test-waiting:
	$(GO_TEST) $(TESTFLAGS) ./test/integration
test-computing:
	nice $(GO_TEST) $(TESTFLAGS) $$(go list ./... | grep -v '/test/integration$$')
	nice $(GO_TEST) $(TESTFLAGS) -cpu 1 -run 'Honest|Floods|Resets|SlowReaders|OfAUser|BeforeTheNext' ./internal/proxy/... # as the pod is shipped

# Built as the tests are, so that they share the packages of Kubernetes in Go's build cache.
bin/certmanager bin/trustmanager: bin/%: hack/cluster/go.mod hack/cluster/%/main.go
	cd hack/cluster && go build -ldflags '-s -w' -o ../../$@ ./$*

# The release of helm that hack/cluster/go.mod names: it renders the chart into deploy/concierge, and the chart is tested with it.
bin/helm: hack/cluster/go.mod
	cd hack/cluster && CGO_ENABLED=0 go build -tags $(GO_TAGS) -ldflags '-s -w' -o ../../bin/helm helm.sh/helm/v4/cmd/helm

# The image is pushed only where a cluster is to pull it. kubectl is the user's own, else the one that is built here.
.PHONY: test-e2e
test-e2e: build ## Run the whole scenario on the cluster of KUBECONFIG, and clean up (E2E_IMAGE, or REGISTRY; without KUBECONFIG: on its own)
	@command -v kubectl >/dev/null || hack/controlplane/build.sh kubectl
	@$(if $(KUBECONFIG),$(if $(E2E_IMAGE),true,$(MAKE) --no-print-directory image-push),$(MAKE) --no-print-directory controlplane)
	PATH="$$PATH:$(CONTROLPLANE)" E2E_KUBECONFIG='$(KUBECONFIG)' E2E_IMAGE="$${E2E_IMAGE:-$$(cat bin/image.name 2>/dev/null)}" \
	  $(if $(KUBECONFIG),E2E_PROGRAMS='$(CURDIR)/bin') go test -count=1 -v -timeout 90m -run '^TestEndToEnd$$' ./test/e2e

.PHONY: measure
measure: controlplane build bin/helm # Test on a version of Kubernetes and write the results into docs/howto/install.md: make measure KUBERNETES=1.34
	hack/controlplane/measure.sh

.PHONY: test-unit
test-unit: ## Run the quick tests only
	go test -short ./...

.PHONY: test-cli
test-cli: # Run the tests of the CLI that need no API server, on any system
	go test -short ./cmd/pinniped/... ./internal/cli/... ./pkg/...

.PHONY: test-race
test-race: controlplane node-modules bin/certmanager bin/trustmanager bin/helm # Run every test with the race detector
	hack/summary.sh $(MAKE) --no-print-directory -j2 TESTFLAGS='-race -timeout 60m' test-waiting test-computing

.PHONY: bench
bench: build controlplane ## Measure the proxy on a local control plane: BENCH="-loads get,list -other PATH" for more
	$(GO_BUILD) -o bin/measure ./test/bench && bin/measure $(BENCH) | tee bin/bench.txt

.PHONY: bench-login
bench-login: # Compare logins with a warm cache with a program that does nothing, and tell the size of the CLI
	go test -run '^$$' -bench WarmLogin -benchtime 20x ./cmd/pinniped

.PHONY: alerts
alerts: bin/promtool # Test the alerts of deploy/monitoring with promtool
	bin/promtool check rules deploy/monitoring/alerts.yaml
	bin/promtool test rules deploy/monitoring/alerts_test.yaml

# Without the clients of a dozen clouds, which promtool needs for nothing here.
bin/promtool: hack/cluster/go.mod
	cd hack/cluster && CGO_ENABLED=0 go build -tags remove_all_sd -o ../../bin/promtool github.com/prometheus/prometheus/cmd/promtool

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s) each
	hack/fuzz.sh $(or $(FUZZTIME),10s)

.PHONY: h2spec
h2spec: bin/h2spec # Run the conformance tests of HTTP/2 against the impersonation proxy
	H2SPEC=$(CURDIR)/bin/h2spec go test -count=1 -run '^TestH2Spec$$' ./internal/proxy

bin/h2spec: hack/tools/go.mod
	cd hack/tools && CGO_ENABLED=0 go build -o ../../bin/h2spec github.com/summerwind/h2spec/cmd/h2spec

NODE := $(addsuffix /node_modules/.package-lock.json,test/oidcprovider/testdata/node test/integration/testdata/clients)

.PHONY: node-modules
node-modules: # Install the OpenID Connect issuer and the client that tests run (needs npm; without it, those tests are skipped)
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(NODE); \
	else echo "npm is not installed: tests that need node will be skipped (Debian: apt-get install nodejs npm)"; fi

$(NODE): %/node_modules/.package-lock.json: %/package-lock.json
	cd $* && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

# KUBERNETES=1.34 is for controlplane, demo and test*: another version than the default, of hack/controlplane/versions.txt.
CONTROLPLANE := $(CURDIR)/bin/controlplane$(KUBERNETES:%=-%)

.PHONY: controlplane
controlplane: ## Build etcd, kube-apiserver and kube-controller-manager for tests and the demo (minutes the first time; KUBERNETES=1.34)
	@if [ -z "$$KUBEBUILDER_ASSETS" ]; then hack/controlplane/build.sh; fi
	@command -v kubectl >/dev/null || hack/controlplane/build.sh kubectl

.PHONY: demo-controlplane
demo-controlplane: # the demo needs no kube-controller-manager, which takes a minute to build
	@if [ -z "$$KUBEBUILDER_ASSETS" ]; then hack/controlplane/build.sh etcd kube-apiserver; fi
	@command -v kubectl >/dev/null || hack/controlplane/build.sh kubectl

.PHONY: generate
generate: bin/helm ## Regenerate deep copies, CRDs, OpenAPI, manifests and the list of checks
	hack/generate.sh

.PHONY: docs-site
docs-site: ## Make the website of the documents in bin/site, with search; fails for a link that leads nowhere
	go run ./hack/site -o bin/site

.PHONY: man
man: # Make the manual pages of the CLI, in bin/man
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) go run ./hack/site -man bin/man

.PHONY: lint
lint: bin/golangci-lint ## Run the linters
	bin/golangci-lint run --allow-parallel-runners ./...
	go tool actionlint .github/workflows/*.yml

bin/golangci-lint: hack/tools/go.mod
	cd hack/tools && CGO_ENABLED=0 go build -o ../../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: vulncheck
vulncheck: # Look for known vulnerabilities in what is called (asks vuln.go.dev)
	cd hack/tools && CGO_ENABLED=0 go build -o ../../bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	bin/govulncheck ./...

.PHONY: verify
verify: lint bin/helm ## Check that generated files, go.mod and the CLI's dependencies are up to date, and run the linters
	hack/verify.sh

.PHONY: update-golden
update-golden: # Rewrite the golden files of the tests; review the difference
	UPDATE_GOLDEN=1 go test -short ./...
