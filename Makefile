# Verbs of the repository. `make help` lists them. CGO stays off, so no C compiler is needed, except by
# `make race`; `make build` turns it on for RDMA verbs where a C compiler and infiniband/verbs.h are there, unless
# RDMA=off. Nothing of RDMA is linked, and the rest stays Go: net, os/user and Pebble's zstd (the tags).
SHELL := /bin/bash
GO ?= go
export CGO_ENABLED ?= 0
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

.PHONY: help
help: ## list the verbs
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}' | LC_ALL=C sort

VERBS_TAGS := netgo,osusergo,pebblegozstd
# verbs: 1 where native/ can be built with cgo, for this machine.
verbs = $(shell [ '$(RDMA)' != off ] \
  && [ "$$($(GO) env GOOS GOARCH)" = "$$($(GO) env GOHOSTOS GOHOSTARCH)" ] \
  && echo '$(hash)include <infiniband/verbs.h>' | $$($(GO) env CC) -E - >/dev/null 2>&1 && echo 1 || echo 0)
hash := \#

.PHONY: build
build: ## build bin/penstock, with RDMA where a C compiler and infiniband/verbs.h are; RDMA=off: without
	CGO_ENABLED=$(verbs) $(GO) build -tags $(VERBS_TAGS) -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/penstock ./cmd/penstock
	@[ '$(RDMA)' = off ] || [ $(verbs) = 1 ] || echo 'built without RDMA verbs: no C compiler, or no infiniband/verbs.h (libibverbs-dev)'

SHIM := bin/libpenstock-cuobj-shim.so
SHIM_VERBS := native/nv_lib.c native/nv_device.c native/nv_queue.c native/nv_none.c
.PHONY: shim
shim: ## build bin/libpenstock-cuobj-shim.so, by which other S3 clients get tokens (needs a C compiler)
	@mkdir -p bin
	$$($(GO) env CC) -std=c11 -O2 -g -fPIC -shared -pthread -fvisibility=hidden -Wall -Wextra -Werror \
	  -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 \
	  -Wl,-z,nodelete,-z,relro,-z,now,--no-undefined -Wl,-soname,libpenstock-cuobj-shim.so -o $(SHIM) native/shim/cs_*.c $(SHIM_VERBS) -ldl

.PHONY: test
test: ## unit, conformance, model and short crash tests
	$(GO) test -timeout 20m ./...

.PHONY: race
race: ## the same under the race detector, short forms (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -short -timeout 30m ./...

.PHONY: lint
lint: ## formatting, vet, staticcheck, builds for arm64; native/ also with cgo where that can be built
	@out=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "not formatted:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	GOARCH=arm64 $(GO) build ./...
	GOARCH=arm64 $(GO) vet ./...
	@[ $(verbs) = 0 ] || { set -x; CGO_ENABLED=1 $(GO) vet -tags $(VERBS_TAGS) ./native/... ./internal/fabric/verbs/... \
	  && CGO_ENABLED=1 $(GO) tool staticcheck ./native/... ./internal/fabric/verbs/...; }

.PHONY: generate
generate: ## write the generated files again
	$(GO) generate ./...

FUZZTIME ?= 30s
.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (default 30s each)
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; done

.PHONY: demo
demo: build ## one node, a real tree up and back over shm, tcp and HTTP, every byte compared
	./bin/penstock demo

.PHONY: bench
bench: build ## the bounds of docs/performance.md; records bench/results/, exits 1 when one is missed
	./bin/penstock bench --profile gate --record bench/results

LISTING_KEYS ?= 1000000
.PHONY: bench-listing
bench-listing: ## list LISTING_KEYS keys (default a million): first page, keys per second; fails below the bounds
	PENSTOCK_LISTING_KEYS=$(LISTING_KEYS) $(GO) test -count=1 -timeout 30m -v -run TestListingRate ./internal/server

.PHONY: bench-sdk
bench-sdk: ## 16 objects of 64 MiB by aws-sdk-go-v2 with and without the option; fails below twice the speed
	PENSTOCK_SDK_BYTES=67108864 $(GO) test -count=1 -timeout 30m -v -run TestSDKRatio ./client/awsrdma

.PHONY: conformance
conformance: build ## the S3 tests of Ceph against a fresh node; S3TESTS=path of a checkout, else fetched (needs python3)
	$(GO) run ./test/conformance -suite '$(S3TESTS)'

.PHONY: e2e
e2e: build ## S3 clients of others against a node, newest versions; PINNED=1: recorded ones, RECORD=1 records, E2E=flags
	$(GO) run ./test/clients $(if $(PINNED),-pinned) $(if $(RECORD),-record) $(E2E)
	PENSTOCK_TEST_MSC=$(CURDIR)/.cache/e2e PENSTOCK_TEST_MSC_PINNED=$(PINNED) PENSTOCK_TEST_BINARY=$(CURDIR)/bin/penstock \
	  $(GO) test -count=1 -v -run TestMultiStorageClient ./test/shim

.PHONY: test-rdma
test-rdma: ## what needs RDMA verbs, on soft-RoCE in an emulated machine; installs what it needs; RDMA=flags
	$(GO) run ./test/guest $(RDMA)

.PHONY: test-rdma-host
test-rdma-host: ## the same on this machine's RDMA adapters; ends with 77 when there is none; RDMA=flags
	@$(GO) build -o bin/guest ./test/guest
	./bin/guest -host $(RDMA)

.PHONY: bench-rdma
bench-rdma: ## the rates of test-rdma against perftest and each other, on a quiet machine; fails below the bounds
	PENSTOCK_TEST_BOUNDS=1 $(GO) run ./test/guest -v -run test-rdma -tests 'TestSpeed|TestCrowd|TestManySessions' $(RDMA)

.PHONY: bench-hostile
bench-hostile: ## transfers beside 10,000 idle, slow and endless connections: memory and throughput within bounds
	PENSTOCK_SIEGE=1 $(GO) test -count=1 -timeout 60m -v -run 'TestSiege' ./test/hostile

.PHONY: nightly
nightly: ## long forms: crash images, kill -9 rounds, model runs
	PENSTOCK_TEST_LONG=1 $(GO) test -timeout 4h -count=1 ./...
