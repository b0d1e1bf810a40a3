# `make help` lists the targets.
export GOFLAGS =

# The nested module holds tests that run Flannel's own code, which flanwatch itself must not depend on.
NESTED = watcher/lab/upstream

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binary ./flanwatch
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o flanwatch .

.PHONY: packages
packages: ## install the Debian packages that the tests need (as root)
	@sh scripts/packages.sh

.PHONY: test
test: packages ## run all tests with the race detector
	@go test -race -run '^$$' ./... >/dev/null # builds them all at once
	go test -race -p 1 -timeout 30m ./... # one package after the other: many measure what the kernel does, and when
	@for m in $(NESTED); do echo "tests of $$m"; (cd $$m && go test -race ./...) || exit 1; done

.PHONY: evaluate
evaluate: packages ## hold the verdicts of 2,000 generated rule sets against what receivers see (as root)
	FLANWATCH_EVALUATE_SEEDS=2000 go test -timeout 60m -run TestVerdictsAreWhatReceiversSee -v ./flannel/path

.PHONY: recordings
recordings: ## record the lab's stories, for the demo where no lab can be built (as root)
	cd watcher && FLANWATCH_RECORD=1 go test -run TestRecordTheLab -v .

.PHONY: lint
lint: ## vet, gofumpt, staticcheck, govulncheck
	@sh scripts/lint.sh

.PHONY: cover
cover: ## coverage of each package
	go test -cover ./...

.PHONY: bench
bench: ## benchmarks beside the programs people use today (as root)
	go test -run '^$$' -bench . -benchtime 200x ./...
