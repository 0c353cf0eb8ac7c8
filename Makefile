# The targets of Sluice. `make demo` and `make test` need only Go, make and apt.
SHELL   := /bin/bash
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
MODE    ?= nftables
MODULES := deploy/image test/cluster test/deploy test/page
TOOL    := go tool -modfile=tools/go.mod
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE    ?= $(shell git log -1 --format=%cI 2>/dev/null)
LDFLAGS := -s -w -X sluice/internal/app.version=$(VERSION) -X sluice/internal/app.commit=$(COMMIT) -X sluice/internal/app.date=$(DATE)

.PHONY: build build-windows krew image demo check test fuzz soak test-arm64 reliability test-kernels lint vulncheck size bench bench-relay bench-peers bench-ipvs bench-ebpf generate bpf check-bpf deps \
	vet test-short test-go test-modes test-packets test-daemon test-deploy test-image test-page test-cluster test-guest test-windows test-vm test-programs

# The race detector needs cgo; the daemon does not.
build: ## build the static bin/sluice and bin/kubectl-sluice, and the manual page, bin/sluice.1
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/sluice ./cmd/sluice
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/kubectl-sluice ./cmd/kubectl-sluice
	bin/sluice man >bin/sluice.1

build-windows: ## build sluice.exe for Windows nodes: bin/windows-amd64, bin/windows-arm64
	for arch in amd64 arm64; do CGO_ENABLED=0 GOOS=windows GOARCH=$$arch \
		go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/windows-$$arch/sluice.exe ./cmd/sluice || exit 1; done

# RELEASES is the base URL of the published archives, which are in a directory per version.
krew: ## build kubectl sluice for all systems, and its Krew manifest, in dist; VERSION=v1.2.3 RELEASES=URL
	VERSION='$(VERSION)' RELEASES='$(RELEASES)' deploy/krew/build.sh dist

# PACKAGES is a directory of Debian packages from an earlier build, to reproduce its image; by default they are downloaded.
image: ## build the images for amd64 and arm64, with SBOM, provenance and checksums, in dist; PUSH=registry.example/sluice SOURCE=URL PACKAGES=dist/packages
	$(if $(PACKAGES),,rm -rf dist/packages)
	cd deploy/image && go run . --version '$(VERSION)' --commit '$(COMMIT)' --date '$(DATE)' --ldflags '$(LDFLAGS)' --source '$(SOURCE)' \
		--root '$(CURDIR)' --output '$(CURDIR)/dist' $(if $(PACKAGES),--packages '$(abspath $(PACKAGES))') $(if $(PUSH),--push '$(PUSH)')

demo: build ## show Services with real packets, without a cluster; ONCE=1 runs one round and checks it; MODE=ipvs in a virtual machine
	CGO_ENABLED=0 go build -trimpath -o bin/demo ./test/demo
	$(if $(filter ipvs,$(MODE)),go run ./test/vm --add bin/demo --add bin/sluice --add examples --) \
		bin/demo --sluice bin/sluice --examples examples --mode $(MODE) $(if $(ONCE)$(filter ipvs,$(MODE)),--once)

# What -short leaves out, it leaves out for root too, so that everybody runs the same tests.
check: ## the fast inner loop, for any user: vet, and the tests that need no root, lab, virtual machine, browser or network; no lint, no race detector
	@go run ./test/steps -set check

# Of the crossed decision tables, which are evaluated as a whole, each commit plays another tenth with packets: ten commits
# in a row play all. `make soak` plays all at once, as does a step that is run alone.
test: export SLUICE_DECISION_TABLES := $(shell n=$$(git rev-list --count HEAD 2>/dev/null); echo $$(( $${n:-0} % 10 + 1 ))/10)

# Not with go run, which passes on no SIGTERM.
test: deps build ## everything; STEPS="lint go" runs only these steps
	@echo "Share $$SLUICE_DECISION_TABLES of the crossed decision tables is played with packets; all of them are evaluated."
	@go build -o .cache/steps/steps ./test/steps && exec .cache/steps/steps $(STEPS)

# These are the steps of `make test` and `make check`, beside others below. test/steps replaces GOTEST, to count tests.
GOTEST ?= go test

vet:
	go vet ./...
	cd test/deploy && go vet ./...

test-short: ## the tests that need seconds
	$(GOTEST) -short ./...
	cd test/deploy && $(GOTEST) -short ./...

# Where tests only judge packets, or a daemon that was built without it, the race detector finds nothing and takes most of
# the time: the packet tables of modes that are rules in the kernel, with packets and in memory, and test/daemon. Mode userspace
# relays packets itself.
MODES   := $(addprefix sluice/internal/dataplane/,nftables iptables ipvs ebpf)
DAEMON  := sluice/test/daemon sluice/test/daemon/%
PACKETS := ^Test((Conformance|Bridged|Random|Balancing)(Legacy|Routed|Untracked)?|(Random|Policy)?Model|Hops)$$
ALL      = $(shell go list ./...)

test-go: ## the tests of this module with the race detector, except what the next three run
	$(GOTEST) -race -timeout 20m $(filter-out $(DAEMON) $(MODES),$(ALL))

test-modes: ## the other tests of these modes, with the race detector
	$(GOTEST) -race -timeout 20m -skip '$(PACKETS)' $(MODES)

test-packets: ## the packet tables of the modes that are rules
	$(GOTEST) -timeout 20m -run '$(PACKETS)' $(MODES)

test-daemon: ## the whole daemon: changes under traffic, random histories, kills, faults
	$(GOTEST) -timeout 20m $(filter $(DAEMON),$(ALL))

test-deploy: ## the manifests, the chart and the alerts, with the images
	cd test/deploy && $(GOTEST) -count 1 -race -timeout 20m ./...

test-image: ## the images and how they are built
	cd deploy/image && $(GOTEST) -count 1 -timeout 30m ./...

test-page: ## the page, in a browser
	cd test/page && $(GOTEST) -count 1 -race -timeout 10m ./...

test-cluster: ## a real etcd, API server and kube-proxy
	cd test/cluster && $(GOTEST) ./process ./apiserver ./peers/... && $(GOTEST) -timeout 40m -skip '^TestInGuest$$'

test-guest: ## changes from and to mode ipvs, on kernel 6.1 in a virtual machine
	cd test/cluster && $(GOTEST) -timeout 40m -run '^TestInGuest$$' . -in-memory

test-windows: ## beside kube-proxy for Windows, under Wine
	cd test/cluster/windows && $(GOTEST) -timeout 40m

test-vm: ## what this kernel may lack, and a tenth of each packet table, on kernel 6.1 in a virtual machine
	go run ./test/kernels --kernels 6.1 --share 10 $(if $(findstring -json,$(GOTEST)),--json)

# A program that has not changed is not replaced, so that cached results of tests stay valid.
test-programs: ## build the programs under test for all steps, in .cache/programs
	@mkdir -p .cache/programs/new
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o .cache/programs/new/ ./cmd/sluice ./test/demo
	CGO_ENABLED=0 GOOS=windows GOARCH=amd64 go build -trimpath -buildvcs=false -ldflags '-s -w' -o .cache/programs/new/sluice.exe ./cmd/sluice
	@cd .cache/programs && for p in sluice demo sluice.exe; do cmp -s new/$$p $$p || cp new/$$p $$p || exit 1; done

fuzz: ## run every fuzz target, FUZZTIME each (10s)
	@FUZZTIME='$(FUZZTIME)' test/fuzz.sh

soak: SEED := $(shell date +%s)
soak: ## run tests for hours: thousands of random steps and 1,000 kills of the daemon in each mode; every change under traffic, and flushes during writes, 50 times; the whole packet table of each mode; every fuzz target for 10 minutes
	go test -timeout 6h -v -count 1 -run '$(PACKETS)' $(MODES) sluice/internal/dataplane/userspace
	go test -timeout 6h -v -count 1 -run '^Test(Churn|Kills|RestartsWriteNothing|SystemCallsFail|Stopped|Limits)$$' ./test/daemon/faults -rapid.seed $(SEED) -stopped 70s -limits 1 -churn $(or $(CHURN),1000) -kills $(or $(KILLS),1000) -faults $(or $(FAULTS),20)
	go test -timeout 6h -v -count $(or $(CHANGES),50) -run '^Test(TrafficUnderChange|FlushDuringWrites)$$' ./test/daemon/traffic ./test/daemon/foreign
	cd test/cluster && go test -timeout 6h -v -count 1 -run '^TestChurn$$' -rapid.seed $(SEED) -churn $(or $(CHURN),250)
	@FUZZTIME=$(or $(FUZZTIME),10m) test/fuzz.sh

# The emulator supports no netlink of nf_tables and IPVS. It runs the tests of decisions and of encoding and decoding kernel
# messages, except one randomised test of the differ that would take minutes.
ARM64 := apiobject balance cli config dataplane/differ engine explain metrics proxy resolve runner source/... statusapi zpages
test-arm64: deps ## run the tests that an emulator of arm64 supports
	GOARCH=arm64 CGO_ENABLED=0 $(GOTEST) -short -skip '^TestRandomFailures$$' -exec qemu-aarch64-static $(addprefix ./internal/,$(ARM64))
	GOARCH=arm64 CGO_ENABLED=0 $(GOTEST) -run 'Attributes|Decode|Message|Parse|Rules|ServersBy|Text|TooLong' -exec qemu-aarch64-static ./internal/kernel/{ct,ipt,ipvs,netlink,nft}

reliability: deps ## inject faults into the daemon in every mode, and run the packet table with two versions of Kubernetes, for hours; written to docs/reliability.md
	@rm -rf .cache/reliability .cache/vm/logs/*-daemon* && mkdir -p .cache/reliability
	go test -timeout 30m -v -count 1 -p 1 ./test/daemon/... ./internal/source/informer ./internal/resolve >.cache/reliability/daemon
	go test -timeout 30m -v -count 1 ./internal/conntrack -million >.cache/reliability/conntrack
	cd test/cluster && go test -timeout 30m -v -count 1 -run '^Test(Churn|ControlPlaneLost)$$' >../../.cache/reliability/cluster
	for v in 1.37 1.36; do (cd test/cluster && go test -timeout 60m -v -count 1 -run '^TestThemes$$' \
		-themes nftables,iptables,userspace,ebpf -kubernetes $$v >../../.cache/reliability/themes-$$v) || exit 1; done
	go run ./test/kernels --kernels 5.10,6.1,6.12,7.2 --suites 'daemon ipvs,daemon faults,daemon faults ipvs,daemon changes ipvs,daemon changes'
	go run ./test/reliability --commit '$(VERSION)' .cache/reliability/* .cache/vm/logs/*-daemon*

# Takes hours; SUITES and KERNELS, separated by commas, select a part. The matrix keeps earlier results of the others.
test-kernels: ## run everything that depends on the kernel on 5.10, 6.1, 6.12, 7.2 and this one; written to docs/kernels.md
	cd test/cluster && go test -run '^TestInGuest$$' -v -guest-tests TestTakeoverFromIPVS
	cd test/cluster && go test -timeout 30m -run '^TestInGuest$$' -v -guest-modes nftables,iptables,ipvs,userspace
	go run ./test/kernels --output docs/kernels.md $(if $(KERNELS),--kernels $(KERNELS)) $(if $(SUITES),--suites $(SUITES))

# For Windows, vet and staticcheck leave out tests, most of which are for Linux, and unused code, some of which is used on Linux only.
lint: ## check formatting, the import table, vet, staticcheck, errcheck and known vulnerabilities; vet and staticcheck for Windows; builds for other systems
	@bad=$$($(TOOL) gofumpt -l cmd deploy internal test); if [ -n "$$bad" ]; then echo "not gofumpt-clean:"; echo "$$bad"; exit 1; fi
	$(GOTEST) ./internal/archtest
	go vet ./... && for m in $(MODULES); do (cd $$m && go vet ./...) || exit 1; done
	for p in linux/arm64 windows/arm64 darwin/arm64; do GOOS=$${p%/*} GOARCH=$${p#*/} go build ./... || exit 1; done
	GOOS=windows go list -f '{{range .GoFiles}}{{$$.Dir}}/{{.}} {{end}}' ./cmd/... ./internal/... | \
		while read -r files; do [ -z "$$files" ] || GOOS=windows go vet $$files || exit 1; done
	staticcheck="$$($(TOOL) -n staticcheck)" && GOOS=windows $$staticcheck -tests=false -checks inherit,-U1000 ./cmd/... ./internal/...
	$(TOOL) staticcheck ./... && for m in $(MODULES); do \
		(cd $$m && go tool -modfile=../../tools/go.mod staticcheck ./...) || exit 1; done
	go run ./test/matrix --check README.md
	go run ./test/reliability --check
	$(TOOL) errcheck -ignoretests -exclude tools/errcheck.txt ./...
	test/vulncheck.sh

vulncheck: ## check for known vulnerabilities in called functions; the database is on the internet, or at GOVULNDB
	test/vulncheck.sh

size: ## count lines of Go outside tests, conformance and fakes, by package, with their limits
	@test/size.sh

bench: ## measure the figures that the design promises, as one table; also written to docs/benchmarks/core.md
	go run ./test/bench --output docs/benchmarks/core.md

bench-relay: build ## compare mode userspace with HAProxy and nginx; written to docs/benchmarks/relay.md
	go run ./test/relay --output docs/benchmarks/relay.md

bench-peers: deps ## compare Sluice with kube-proxy, forty minutes; written to docs/benchmarks/peers.*
	cd test/cluster && go run ./peers --fresh --readme ../../README.md

bench-ipvs: ## compare mode ipvs of Sluice and of kube-proxy in a virtual machine; written to docs/benchmarks/ipvs.md
	cd test/cluster && go run ./ipvs

bench-ebpf: deps ## compare mode ebpf with mode nftables, kube-proxy and direct connections; written to docs/benchmarks/ebpf.md
	cd test/cluster && go run ./sockets --output ../../docs/benchmarks/ebpf.md

BPF := internal/dataplane/ebpf/bpf
generate: bpf ## generate the table of themes in README.md and the programs of mode ebpf
	go run ./test/matrix README.md

# The object contains line numbers of the source, but not the build directory.
compile-bpf = cd $(BPF) && clang -O2 -g -fdebug-compilation-dir=. -target bpf -mcpu=v3 -Wall -Werror -idirafter /usr/include/$$(uname -m)-linux-gnu -c sockets.c -o $(1) && llvm-strip -g $(1)
bpf: deps ## compile the programs of mode ebpf from C; the object is committed, so that other targets need no compiler
	$(call compile-bpf,sockets.o)

check-bpf: deps ## check that the committed object matches its source
	@mkdir -p .cache && $(call compile-bpf,$(CURDIR)/.cache/sockets.o) && cmp sockets.o $(CURDIR)/.cache/sockets.o

deps: ## install what tests need besides Go: to list our rules, to write what kube-proxy leaves, a browser, emulators for arm64 and Windows
	@for p in nft iptables-nft iptables-legacy ipset ip chromium clang llvm-strip qemu-aarch64-static /usr/include/bpf/bpf_helpers.h \
		/usr/lib/wine/wine64 x86_64-w64-mingw32-gcc hivexml; do { command -v $$p >/dev/null || [ -e $$p ]; } || missing=1; done; \
	[ -z "$$missing" ] || { apt-get update -q && DEBIAN_FRONTEND=noninteractive \
		apt-get install -qy --no-install-recommends nftables iptables ipset iproute2 chromium clang llvm libbpf-dev qemu-user-static \
			wine wine64 gcc-mingw-w64-x86-64-win32 libhivex-bin; }
