# `make test` is the whole of what CI runs. The other targets are parts of it,
# or slower: fuzz, bench and the mutants over more seeds.

GO = go
GOFMT = "$$($(GO) env GOROOT)/bin/gofmt"

# The bugs of internal/mutant, which the campaign must notice.
MUTANTS = delete-before-confirm inbox-outside-transaction
SEEDS = 1 2
mutants: SEEDS = 1 2 3 4 5 6 7 8 9 10

DEMO = demo --orders 300 --json --seed

# First line of each recipe that needs somewhere to put binaries and databases.
IN_TMP = set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 130' INT TERM

.PHONY: test lint unit modules campaign healthy mutants-briefly mutants demo bench fuzz fmt
.NOTPARALLEL:

test: lint unit modules campaign
	@echo "test: everything passed"

lint:
	@echo "lint: gofmt over the tree"
	@bad=$$($(GOFMT) -l .) && if [ -n "$$bad" ]; then \
		echo "lint: not formatted; run 'make fmt':"; echo "$$bad"; exit 1; fi
	@for tags in '' chaos; do \
		echo "lint: go vet and staticcheck (tags '$$tags')"; \
		$(GO) vet -tags "$$tags" ./... && $(GO) tool staticcheck -tags "$$tags" ./... || { \
			echo "lint: mend what is named above; 'make lint' tries again"; exit 1; }; \
	done

# The race detector needs cgo, hence a C compiler.
unit:
	@echo "unit: go test -race, the architecture test included"
	@CGO_ENABLED=1 $(GO) test -race -count=1 ./... && CGO_ENABLED=1 $(GO) test -race -count=1 -tags chaos ./internal/mutant || { \
		echo "unit: see the failure above; 'go test -race -run NAME ./PACKAGE' repeats one test"; exit 1; }

# Modules of their own, which ./... does not reach.
modules:
	@if [ -d examples/orders ]; then \
		echo "modules: vet and test examples/orders"; cd examples/orders && \
		$(GO) vet ./... && CGO_ENABLED=1 $(GO) test -race -count=1 ./... || { \
			echo "modules: run the same in examples/orders; it must work with this tree"; exit 1; }; \
	fi
	@if [ -d bench ]; then \
		echo "modules: vet, staticcheck and build bench"; $(IN_TMP); \
		$(GO) build -o "$$tmp/staticcheck" honnef.co/go/tools/cmd/staticcheck; cd bench && \
		$(GO) vet ./... && "$$tmp/staticcheck" ./... && $(GO) build -o "$$tmp/" ./... || { \
			echo "modules: run the same in bench; it must build with this tree"; exit 1; }; \
	fi

# Short proof by the demo: it finds nothing in a healthy build, and finds each mutant.
campaign: healthy mutants-briefly

healthy:
	@echo "campaign: demo with seeds $(SEEDS), nothing may be lost or done twice"
	@$(IN_TMP); $(GO) build -o "$$tmp/waybill" ./cmd/waybill; cd "$$tmp"; \
	for seed in $(SEEDS); do \
		./waybill $(DEMO) $$seed >out 2>&1 || { code=$$?; cat out; \
			echo "campaign: exit $$code; 'go run ./cmd/waybill $(DEMO) $$seed' repeats it"; exit 1; }; \
	done

# `go run` would turn every exit code into 1, so the binary is built. That it
# passes without a mutant shows that it is the mutant which makes it fail.
mutants mutants-briefly:
	@echo "mutants: demo with seeds $(SEEDS) must exit with 7 for each of: $(MUTANTS)"
	@$(IN_TMP); $(GO) build -tags chaos -o "$$tmp/waybill" ./cmd/waybill; cd "$$tmp"; \
	for seed in $(SEEDS); do for mutant in '' $(MUTANTS); do \
		want=7; [ -n "$$mutant" ] || want=0; \
		code=0; WAYBILL_MUTANT=$$mutant ./waybill $(DEMO) $$seed >out 2>&1 || code=$$?; \
		[ $$code -eq $$want ] || { cat out; \
			echo "mutants: WAYBILL_MUTANT='$$mutant' with seed $$seed: exit $$code, want $$want;" \
				"if a mutant passes, the demo's check is too weak: mend the check"; exit 1; }; \
	done; done

demo:
	@echo "demo: orders through outbox, relay and inbox, with faults"
	@$(GO) run ./cmd/waybill demo

bench:
	@echo "bench: ratios against the yardstick of the same run"
	@[ -d bench ] || { echo "bench: this tree has no directory bench"; exit 1; }
	@cd bench && $(GO) run .

fuzz:
	@set -e; for pkg in $$($(GO) list ./...); do \
		list=$$($(GO) test -list '^Fuzz' "$$pkg"); \
		for target in $$(echo "$$list" | grep '^Fuzz'); do \
			echo "fuzz: $$target of $$pkg for 20 s"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime 20s "$$pkg" || { \
				echo "fuzz: the input is kept below testdata/fuzz; 'go test' repeats it, commit it with the fix"; exit 1; }; \
		done; \
	done

fmt:
	@echo "fmt: gofmt -w over the tree"
	@$(GOFMT) -w .
