#!/bin/sh
# Runs every linter at a pinned version. The tools are built once into the user's cache folder; they are no dependencies
# of flanwatch and stay out of go.mod.
set -eu

gofumpt=v0.12.0
staticcheck=v0.8.2
govulncheck=v1.9.0
vulndb=v0.0.0-20261105234957-e22db6528018

cache=${XDG_CACHE_HOME:-$HOME/.cache}/flanwatch/lint
export GOFLAGS=

# tool NAME MODULE VERSION: builds it unless that version is there, and prints its path.
tool() {
	dir=$cache/$1-$3
	[ -x "$dir/$1" ] || GOBIN=$dir go install "$2@$3" >&2
	echo "$dir/$1"
}

# database: the vulnerability database as a folder, made from its module, since the online one may be out of reach.
database() {
	dir=$cache/vulndb-$vulndb
	if [ ! -e "$dir/index" ]; then
		indexdb=$(tool indexdb golang.org/x/vulndb/cmd/indexdb "$vulndb")
		source=$(go mod download -json "golang.org/x/vulndb@$vulndb" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
		rm -rf "$dir.new"
		"$indexdb" -vulns "$source/data/osv" -out "$dir.new" >&2
		rm -rf "$dir"
		mv "$dir.new" "$dir"
	fi
	echo "$dir"
}

echo "go vet, linux"
go vet ./...
for os in darwin windows; do
	echo "go vet, $os"
	GOOS=$os go vet ./...
done

echo "gofumpt $gofumpt"
bad=$("$(tool gofumpt mvdan.cc/gofumpt $gofumpt)" -l .)
if [ -n "$bad" ]; then
	echo "not formatted: $bad" >&2
	exit 1
fi

echo "staticcheck $staticcheck"
"$(tool staticcheck honnef.co/go/tools/cmd/staticcheck $staticcheck)" ./...

echo "govulncheck $govulncheck"
"$(tool govulncheck golang.org/x/vuln/cmd/govulncheck $govulncheck)" -db "file://$(database)" ./...

echo "files over 600 lines"
git ls-files '*.go' | xargs wc -l | awk '$2 != "total" && $1 > 600 { print $2 " has " $1 " lines"; bad = 1 } END { exit bad }'
