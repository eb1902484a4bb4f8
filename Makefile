# `make test` is the whole of what CI runs. The other targets are parts of it,
# or slower: fuzz, bench and the mutants over more seeds.

GO = go
GOFMT = "$$($(GO) env GOROOT)/bin/gofmt"

# The bugs of internal/mutant: those that the demo must notice on SQLite, those
# that it must notice on a database server and RabbitMQ, and those that tests notice.
MUTANTS = delete-before-confirm inbox-outside-transaction
STACK_MUTANTS = no-dispatch-lock
TEST_MUTANTS = unserialized-mark returns-not-drained delete-before-confirm no-savepoint-guard
SEEDS = 1 2
mutants: SEEDS = 1 2 3 4 5 6 7 8 9 10

DEMO = demo --orders 300 --time-limit 30s --json --seed
ON_POSTGRES = --database "$$WAYBILL_TEST_POSTGRES" --broker "$$WAYBILL_TEST_RABBITMQ"
ON_MARIADB = --database "$$WAYBILL_TEST_MARIADB" --broker "$$WAYBILL_TEST_RABBITMQ"

# Starts the servers that the tests of a command share, and ends them with it.
SERVERS = $(GO) run ./internal/testserver/run --

# First line of each recipe that needs somewhere to put binaries and databases.
IN_TMP = set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 130' INT TERM

.PHONY: test lint unit modules campaign healthy mutants-briefly mutants recover demo bench fuzz fmt
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
	@$(GO) test -count=1 ./internal/sim && CGO_ENABLED=1 $(SERVERS) $(GO) test -race -count=1 ./... && CGO_ENABLED=1 $(GO) test -race -count=1 -tags chaos ./internal/mutant || { \
		echo "unit: see the failure above; 'go test -race -run NAME ./PACKAGE' repeats one test"; exit 1; }

# Modules of their own, which ./... does not reach.
modules:
	@if [ -d examples/orders ]; then \
		echo "modules: vet and test examples/orders"; \
		$(GO) -C examples/orders vet ./... && CGO_ENABLED=1 $(SERVERS) $(GO) -C examples/orders test -race -count=1 ./... || { \
			echo "modules: run the same in examples/orders; it must work with this tree"; exit 1; }; \
	fi
	@if [ -d bench ]; then \
		echo "modules: vet, staticcheck and build bench, bench/peers"; $(IN_TMP); \
		$(GO) build -o "$$tmp/staticcheck" honnef.co/go/tools/cmd/staticcheck; for dir in bench bench/peers; do \
			(cd $$dir && $(GO) vet ./... && "$$tmp/staticcheck" ./... && $(GO) build -o "$$tmp/" ./...) || { \
				echo "modules: run the same in $$dir; it must build with this tree"; exit 1; }; done; \
	fi

# Short proof by the demo: it finds nothing in a healthy build, and finds each mutant.
campaign: healthy mutants-briefly

healthy:
	@echo "campaign: demo with seeds $(SEEDS), nothing may be lost or done twice"
	@$(IN_TMP); $(GO) build -o "$$tmp/waybill" ./cmd/waybill; $(SERVERS) sh -ec 'cd "$$0"; \
	for seed in $(SEEDS); do for on in sqlite postgres mariadb; do \
		case $$on in postgres) set -- $(ON_POSTGRES);; mariadb) set -- $(ON_MARIADB);; *) set --;; esac; \
		./waybill $(DEMO) $$seed "$$@" >out 2>&1 || { code=$$?; cat out; \
			echo "campaign: exit $$code; \"waybill $(DEMO) $$seed\" (on $$on) repeats it"; exit 1; }; \
	done; done' "$$tmp"

# `go run` would turn every exit code into 1, so the binary is built. That it
# passes without a mutant shows that it is the mutant which makes it fail. Those of
# a database server need two transactions to meet: one of ten seeds has to show it.
mutants mutants-briefly:
	@echo "mutants: demo with seeds $(SEEDS) must exit with 7 for each of: $(MUTANTS); on a database server and RabbitMQ: $(STACK_MUTANTS)"
	@$(IN_TMP); $(GO) build -tags chaos -o "$$tmp/waybill" ./cmd/waybill; $(SERVERS) sh -ec 'cd "$$0"; \
	try() { bug=$$1; seed=$$2; shift 2; want=7; [ $$bug != none ] || { bug=; want=0; }; \
		code=0; WAYBILL_MUTANT=$$bug ./waybill $(DEMO) $$seed "$$@" >out 2>&1 || code=$$?; \
		[ $$code -eq $$want ] || { cat out; \
			echo "mutants: WAYBILL_MUTANT=\"$$bug\" with seed $$seed: exit $$code, want $$want;" \
				"if a mutant passes, the check of the demo is too weak: mend the check"; exit 1; }; }; \
	caught() { bug=$$1; shift; for seed in 1 2 3 4 5 6 7 8 9 10; do code=0; \
		WAYBILL_MUTANT=$$bug ./waybill $(DEMO) $$seed "$$@" >out 2>&1 || code=$$?; \
		case $$code in 7) return;; 0) ;; *) break;; esac; done; \
		cat out; echo "mutants: WAYBILL_MUTANT=\"$$bug\" up to seed $$seed: exit $$code, want 7 with one of them"; exit 1; }; \
	for seed in $(SEEDS); do \
		for mutant in none $(MUTANTS); do try $$mutant $$seed; done; \
		try none $$seed $(ON_POSTGRES); try none $$seed $(ON_MARIADB); \
	done; \
	for mutant in $(STACK_MUTANTS); do caught $$mutant $(ON_POSTGRES); caught $$mutant $(ON_MARIADB); done' "$$tmp"
	@echo "mutants: tests must notice each of: $(TEST_MUTANTS)"
	@CGO_ENABLED=1 $(SERVERS) $(GO) test -count=1 -tags chaos -run 'Mutant|PlantedBugs' ./internal/stack ./wayamqp ./waymysql ./waypg

# Two relays and two workers against killed servers, resets and black holes: some
# three minutes.
recover:
	@echo "recover: servers are killed and connections cut, processes must recover by themselves"
	@$(GO) test -count=1 -v -timeout 30m ./internal/recovery -long

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
