# `make test` is the whole of what CI runs. The other targets are parts of it,
# or slower: chaos, fuzz, bench and the mutants over more seeds.

GO = go
GOFMT = "$$($(GO) env GOROOT)/bin/gofmt"

SEEDS = 1 2

DEMO = demo --orders 300 --time-limit 30s --json --seed
ON_POSTGRES = --database "$$WAYBILL_TEST_POSTGRES" --broker "$$WAYBILL_TEST_RABBITMQ"
ON_MARIADB = --database "$$WAYBILL_TEST_MARIADB" --broker "$$WAYBILL_TEST_RABBITMQ"

# Starts the servers that the tests of a command share, and ends them with it.
SERVERS = $(GO) run ./internal/test/testserver/run --

# First line of each recipe that needs somewhere to put binaries and databases.
IN_TMP = set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 130' INT TERM

.PHONY: test packages lint unit modules campaign healthy browser mutants-briefly mutants chaos-briefly chaos chaos-mutants matrix demo shop bench fuzz fmt screenshots
.NOTPARALLEL:

STEPS = packages lint unit browser modules campaign
test:
	@begun=$$(date +%s); i=0; since() { echo "after $$(($$(date +%s) - begun)) s"; }; \
	for step in $(STEPS); do \
		i=$$((i + 1)); echo "test: step $$i of $(words $(STEPS)): $$step, $$(since)"; \
		$(MAKE) --no-print-directory $$step || exit 1; \
	done; echo "test: everything passed, $$(since)"

# The pictures of docs/dashboard, by the chromium of the machine.
screenshots:
	@mkdir -p docs/dashboard && $(GO) test -count=1 -tags browser -run TestScreenshots ./dashboard

# Compilers, servers and languages, installed where they are missing and the user is root.
packages:
	@internal/test/packages.sh

lint:
	@echo "lint: gofmt over the tree"
	@bad=$$($(GOFMT) -l .) && if [ -n "$$bad" ]; then \
		echo "lint: not formatted; run 'make fmt':"; echo "$$bad"; exit 1; fi
	@check() { echo "lint: go vet and staticcheck, $$*"; $(GO) vet "$$@" && $(GO) tool staticcheck "$$@"; }; \
	check -tags chaos,browser ./... || { \
		echo "lint: mend what is named above; 'make lint' tries again"; exit 1; }

# The race detector needs cgo, hence a C compiler. The end-to-end tests time takeovers, and
# the shop its confirmations: nothing else runs beside them.
unit:
	@echo "unit: go test -race, the architecture test included"
	@$(GO) test -count=1 ./internal/test/sim && \
	CGO_ENABLED=1 $(SERVERS) $(GO) test -race -count=1 -timeout 20m $$($(GO) list ./... | grep -v -e internal/test/e2e -e examples/shop) && \
	CGO_ENABLED=1 $(SERVERS) $(GO) test -race -count=1 -timeout 20m -p 1 ./internal/test/e2e ./examples/shop || { \
		echo "unit: see the failure above; 'go test -race -run NAME ./PACKAGE' repeats one test"; exit 1; }

# The dashboard in a real browser: Debian's chromium.
browser:
	@echo "browser: every page of the dashboard, and a retry by the keyboard alone"
	@$(GO) test -count=1 -tags browser -run TestBrowser ./dashboard

# Modules of their own, which ./... does not reach.
modules:
	@if [ -d examples/orders ]; then \
		echo "modules: vet and test examples/orders"; \
		$(GO) -C examples/orders vet ./... && CGO_ENABLED=1 $(SERVERS) $(GO) -C examples/orders test -race -count=1 ./... || { \
			echo "modules: run the same in examples/orders; it must work with this tree"; exit 1; }; \
	fi
	@if [ -d bench ]; then \
		echo "modules: vet, staticcheck and build bench/peers"; $(IN_TMP); \
		$(GO) build -o "$$tmp/staticcheck" honnef.co/go/tools/cmd/staticcheck; \
		(cd bench/peers && $(GO) vet ./... && "$$tmp/staticcheck" ./... && $(GO) build -o "$$tmp/" ./...) || { \
			echo "modules: run the same in bench/peers; it must build with this tree"; exit 1; }; \
	fi

# Short proofs: the demo finds nothing in a healthy build, each mutant is caught, and
# nothing is lost while processes and servers are killed.
campaign: healthy mutants-briefly chaos-briefly

healthy:
	@echo "campaign: demo with seeds $(SEEDS), nothing may be lost or done twice"
	@$(IN_TMP); $(GO) build -o "$$tmp/waybill" ./cmd/waybill; $(SERVERS) sh -ec 'cd "$$0"; \
	for seed in $(SEEDS); do for on in sqlite postgres mariadb; do \
		case $$on in postgres) set -- $(ON_POSTGRES);; mariadb) set -- $(ON_MARIADB);; *) set --;; esac; \
		./waybill $(DEMO) $$seed "$$@" >out 2>&1 || { code=$$?; cat out; \
			echo "campaign: exit $$code; \"waybill $(DEMO) $$seed\" (on $$on) repeats it"; exit 1; }; \
	done; done' "$$tmp"

# Each bug of internal/test/mutant, which its checks must catch; the program ends with a
# table of them. `$(SERVERS) $(GO) run ./internal/test/mutant NAME` tries one.
mutants mutants-briefly:
	@echo "mutants: each planted bug must be caught"
	@CGO_ENABLED=1 $(SERVERS) $(GO) run ./internal/test/mutant $(if $(filter mutants-briefly,$@),-briefly)

# Applications, relays and workers are killed, frozen and cut off, and so are their
# servers: a minute, or seven for each database. CHAOS takes flags, such as -seed 7.
CHAOS =
chaos-briefly:
	@echo "chaos: processes and servers are killed, nothing may be lost, done twice or out of order"
	@CGO_ENABLED=0 $(GO) test -count=1 -tags chaos -timeout 10m ./internal/test/chaos -args $(CHAOS)

chaos:
	@echo "chaos: processes and servers are killed for five minutes on each database"
	@CGO_ENABLED=0 $(GO) test -count=1 -tags chaos -v -timeout 60m ./internal/test/chaos -args -long $(CHAOS)

# The bugs that the campaign must notice, and by which gate.
CHAOS_GATES = no-dispatch-lock:order delete-before-confirm:lost inbox-outside-transaction:lost
chaos-mutants:
	@echo "chaos: the campaign must notice each of: $(CHAOS_GATES)"
	@$(IN_TMP); $(GO) run ./internal/test/mutant -overlays "$$tmp"; for one in $(CHAOS_GATES); do for on in postgres mariadb; do \
		! CGO_ENABLED=0 $(GO) test -count=1 -tags chaos -overlay "$$tmp/$${one%%:*}.json" ./internal/test/chaos -args -on $$on $(CHAOS) >"$$tmp/out" 2>&1 && \
		grep "$${one##*:}.*want 0" "$$tmp/out" || { cat "$$tmp/out"; echo "chaos: $$one on $$on was not noticed"; exit 1; }; done; done

# The suites on newer servers than the system has, in directories made from Debian's
# packages; MATRIX='mysql-9.7 rabbitmq-4.3' picks rows.
MATRIX =
matrix:
	@internal/test/matrix.sh $(MATRIX)

demo:
	@echo "demo: orders through outbox, relay and inbox, with faults"
	@$(GO) run ./cmd/waybill demo

shop:
	@echo "shop: a slow catalog, three workers on one stock, a payment twice, failures apart"
	@$(SERVERS) $(GO) test -count=1 -v -run TestScenario ./examples/shop

bench:
	@echo "bench: ratios against the yardstick of the same run"
	@$(GO) run ./cmd/waybill bench files

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
