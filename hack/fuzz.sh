#!/usr/bin/env bash
# Runs every fuzz target for a while, one after the other. New inputs that fail are written to testdata/fuzz: commit them with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:-10s}
count=0
while IFS=: read -r file line; do
	target=${line#func }
	target=${target%%(*}
	echo "== $(dirname "$file") $target"
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$duration"
	count=$((count + 1))
done < <(git ls-files -co --exclude-standard -- '*_test.go' | xargs grep -E '^func Fuzz[A-Za-z0-9_]*\(')
[ "$count" -gt 0 ] || {
	echo "no fuzz target found" >&2
	exit 1
}
echo "$count fuzz targets"
