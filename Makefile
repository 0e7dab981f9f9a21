# `make help` lists what there is to do here.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# The tools are pinned in a module of their own, so that every machine checks with the same ones.
TOOL := go tool -modfile=tools/go.mod

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION ?= $(shell git rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.revision=$(REVISION)

# The Redis server that the tests start; another one may be named, such as valkey-server.
REDIS_SERVER ?= redis-server
export REDIS_SERVER

FUZZTIME ?= 5s
# The tests of the program and those of the packages run side by side; with JOBS=1 they take longer, and starve each other less.
JOBS ?= 2
# How many packages each of the two tests at once: one more than there are processors, because tests mostly wait for servers.
PACKAGES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# The benchmarks repeat by themselves what noise calls for.
BENCHTIME ?= 1x
CONTAINER ?= docker

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/notifier
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/notifier ./cmd/notifier

# What runs in the program that the tests build, in Redis, in an interpreter, or in one goroutine, runs without the race detector: it sees
# nothing of the others, and an interpreter takes ten times as long with it. Benchmarks are no tests. Lint does what vet does.
UNRACED := ^Test(Model|Conformance|ShadowTouchesNothing|Scripts|Delays|ExplainSaysWhatDecideDoes|ExactStepByStep)$$
# Packages that start no goroutines, and support for tests, which runs with the race detector in the tests that use it.
SERIAL := configs|docs|lua|internal/(algorithm|config|event|expiring|limits|plain|replicas|requirements|room|schedule|setup|simulate|sink|sink/render|slackstub|testing/(doctest|interleave|oracle|servertest|slacktest|testkit)|tools/[a-z]+|tracing)
RACED = $$(go list ./... | grep -v -E '/(bench|tests|$(SERIAL))$$')
UNRACED_PACKAGES = $$(go list ./... | grep -E '/(tests|$(SERIAL))$$')

.PHONY: test
test: ## Run every test, with the race detector where it can find something, against real servers that the tests start
	scripts/need $(REDIS_SERVER) redis-server
	scripts/need gcc gcc libc6-dev
	scripts/need curl curl
	scripts/need chromium chromium
	@$(MAKE) --no-print-directory test-compiled
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=recurse test-raced test-program

# A compiler beside the tests would starve them of the processors, so everything is compiled before.
.PHONY: test-compiled
test-compiled:
	CGO_ENABLED=1 go list -race -test -export $(RACED) >/dev/null
	go list -test -export $(UNRACED_PACKAGES) $(SCRIPTED) >/dev/null
	go list -export -tags failpoints,nodev ./cmd/notifier >/dev/null

# A server in the process of a raced test would be raced too, which finds nothing of ours and takes several times as long.
NATS_SERVER ?= $(CURDIR)/bin/nats-server
# Collecting garbage seldom saves a sixth of the processors' time.
COLLECT_SELDOM := GOGC=400
# Temporary files are in memory where 4 GB are free for them, and programs may run there.
IN_MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -ge 4000000 ] 2>/dev/null && ! grep -q ' /dev/shm .*noexec' /proc/mounts && echo TMPDIR=/dev/shm)

bin/nats-server: go.mod
	go build -o $@ github.com/nats-io/nats-server/v2

.PHONY: test-raced
test-raced: bin/nats-server
	$(COLLECT_SELDOM) $(IN_MEMORY) NATS_SERVER=$(NATS_SERVER) GORACE=atexit_sleep_ms=50 CGO_ENABLED=1 go test -race -p $(PACKAGES) -vet=off -shuffle=on -timeout 30m -skip '$(UNRACED)' $(RACED)

.PHONY: test-program
test-program:
	$(COLLECT_SELDOM) $(IN_MEMORY) $(THROTTLE) -run '$(UNRACED)' -rapid.checks=100
	$(COLLECT_SELDOM) $(IN_MEMORY) go test -vet=off -shuffle=on -run '$(UNRACED)' $(filter-out ./internal/throttle/store,$(SCRIPTED))
	$(COLLECT_SELDOM) $(IN_MEMORY) go test -p $(PACKAGES) -vet=off -shuffle=on -timeout 30m $(UNRACED_PACKAGES)

# Packages with tests that UNRACED names.
SCRIPTED := ./internal/throttle/store ./internal/pacing ./internal/summary

# Both parts of the model test run as often as -rapid.checks says.
THROTTLE := go test -count=1 -vet=off -timeout 60m ./internal/throttle/store -rapid.steps=100

# The tests that attack by numbers: with NOTIFIER_TEST_FORCE they take so many times those with which the harm was first seen.
# TestProof takes so many times 6,000 events. TestEveryInterleaving visits all states, and TestSimulation simulates 200 seeds.
ATTACKS := ^Test(Neighbours|(StreamCommands|DeadLetters|Paths)OfProducers|ForgedReplies|WaitingHoldsUpNobody|IdentityBelongsToACategory|SlowClients|DigestOfManyPaths|Cluster|PostedOnceThrough(Kills|Faults)|SlackStorm|Proof|EveryInterleaving|Simulation)$$

.PHONY: proof
proof: ## Compare the scripts with the model in 20,000 runs, attack with ten times the force, ask why of 60,000 events, visit every interleaving, simulate 200 seeds
	scripts/need $(REDIS_SERVER) redis-server
	NOTIFIER_TEST_FORCE=10 go test -count=1 -timeout 60m -p 1 -parallel 1 -v -run '$(ATTACKS)' ./tests ./internal/consume ./internal/ingest ./internal/testing/interleave ./internal/testing/simulation
	$(THROTTLE) -run '^TestModel$$' -rapid.checks=10000

.PHONY: lint
lint: tools ## Check the code, its English, the size of its types, the Lua scripts, the samples in configs, the module files, and that nothing is unused
	$(TOOL) golangci-lint run ./...
	$(TOOL) golangci-lint run --build-tags soak,comparison,powerloss ./tests/soak/... ./tests/comparison/... ./tests/powerloss/... ./internal/testing/powerfs/...
	$(TOOL) golangci-lint run --build-tags histories ./lua/... ./internal/script/... ./internal/throttle/store/...
	cd tests/clients && go tool -modfile=../../tools/go.mod golangci-lint run ./...
	cd tests/configs && go tool -modfile=../../tools/go.mod golangci-lint run ./...
	go vet -tags nodev ./...
	scripts/lint-lua
	go run ./internal/tools/plainenglish
	go run ./internal/tools/bounds
	go -C tests/configs test -count=1 ./...
	go -C tests/clients test -count=1 ./...
	go tool -modfile=tools/actionlint/go.mod actionlint
	go mod tidy -diff
	go -C tools mod tidy -diff
	go -C tools/actionlint mod tidy -diff
	go -C tests/configs mod tidy -diff
	go -C tests/clients mod tidy -diff
	@unused=$$($(TOOL) deadcode -test ./...); if [ -n "$$unused" ]; then echo "$$unused"; exit 1; fi

# GoReleaser is a module of its own, as it takes minutes to compile.
GORELEASER := go tool -modfile=tools/goreleaser/go.mod goreleaser

.PHONY: check-release
check-release: ## Check the configuration of releases, and build the archives twice: both must be the same to the byte
	$(GORELEASER) check
	scripts/reproduce $(GORELEASER)

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME (5s)
	scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: ## Measure throughput, latency and what a decision costs, beside the plain way to do it, and draw docs/way.svg
	scripts/need $(REDIS_SERVER) redis-server
	go test -run '^$$' -bench . -benchtime $(BENCHTIME) -timeout 60m ./bench -picture ../docs/way.svg

.PHONY: mutants
mutants: ## Plant each bug of internal/tools/mutants, or those that MUTANTS names, and see that its test finds it
	scripts/need $(REDIS_SERVER) redis-server
	go run ./internal/tools/mutants $(MUTANTS)

# A seed gives the same events, faults and times again.
DURATION ?= 10m
SEED ?=
HOSTILE ?= true

.PHONY: soak
soak: ## Run four workers under random faults and attacks for DURATION (10m), drawn from SEED, and check every promise; then check the calls to Redis of as long
	scripts/need $(REDIS_SERVER) redis-server
	go test -tags soak -count=1 -timeout 0 -v ./tests/soak -soak.duration $(DURATION) -soak.seed "$(SEED)" -soak.hostile=$(HOSTILE)
	go test -count=1 -timeout 0 -v -run '^TestHistory$$' ./internal/throttle/store -history.duration=$(DURATION) -history.seed="$(SEED)"

# It takes more than an hour: TIMES=3 measures less often, and ROWS names some rows, such as ROWS=/3_of_NATS.
TIMES ?= 50
ROWS ?=

.PHONY: powerloss
powerloss: ## Cut the power of NATS and Redis under load, TIMES (50) times for each setting, and print the table of docs/delivery.md; needs /dev/fuse
	scripts/need $(REDIS_SERVER) redis-server
	go test -tags powerloss -count=1 ./internal/testing/powerfs
	go test -tags powerloss -count=1 -timeout 0 -parallel 10 -v ./tests/powerloss -run 'TestPowerLoss/rows$(ROWS)' -powerloss.times $(TIMES)

.PHONY: comparison
comparison: ## Compile and run Alertmanager and envoy ratelimit, and check what docs/comparison.md says of them
	scripts/need $(REDIS_SERVER) redis-server
	go test -tags comparison -count=1 -timeout 30m -v ./tests/comparison

.PHONY: docs
docs: build ## Write the tables and the pictures of docs/ anew
	go run ./internal/tools/tables
	go run ./internal/tools/pictures
	go run ./internal/tools/terminal bin/notifier
	scripts/need chromium chromium
	go run ./internal/tools/screenshots

.PHONY: image
image: ## Build the container image notifier:VERSION
	$(CONTAINER) build --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) --tag notifier:$(VERSION) .

.PHONY: tools
tools: ## Install what the checks and tests need besides Go modules
	@scripts/need $(REDIS_SERVER) redis-server
	@scripts/need luacheck lua-check
	@scripts/need chromium chromium

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin coverage.out
