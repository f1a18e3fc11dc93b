#!/usr/bin/env bash
# Runs every fuzz target for a while, one after the other. New inputs that fail are written to testdata/fuzz: commit them with the fix.
# Usage: hack/fuzz.sh [DURATION [REGEXP]]   (default: 10s, all targets)   A target that makes hardly any executions has tried nothing: it fails.
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:-10s} only=${2:-.} least=50
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# Before Go 1.27, a target sometimes fails as its time is over (golang/go#75804). It has found nothing then, and says nothing else.
only_over() {
	[ "$(grep -A1 -E '^--- FAIL: ' "$output" | tail -n +2)" = "    context deadline exceeded" ] && ! grep -q 'Failing input written' "$output"
}

count=0
while IFS=: read -r file line; do
	target=${line#func }
	target=${target%%(*}
	[[ $target =~ $only ]] || continue
	echo "== $(dirname "$file") $target"
	# Go takes a minute to make each interesting input shorter, and executes nothing else meanwhile, unless it is told otherwise.
	if ! go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 10x 2>&1 | tee "$output"; then
		only_over || exit 1
		echo "== $target found nothing: golang/go#75804 made it end like that"
	fi
	executions=$(grep -oE 'execs: [0-9]+' "$output" | tail -1 | tr -dc 0-9 || true)
	[ "${executions:-0}" -ge "$least" ] || {
		echo "$target made ${executions:-0} executions in $duration, which is hardly a try" >&2
		exit 1
	}
	count=$((count + 1))
done < <(git ls-files -co --exclude-standard -- '*_test.go' | xargs grep -E '^func Fuzz[A-Za-z0-9_]*\(')
[ "$count" -gt 0 ] || {
	echo "no fuzz target found" >&2
	exit 1
}
echo "$count fuzz targets"
