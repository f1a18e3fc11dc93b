#!/usr/bin/env bash
# Runs the demo, test/integration and the life of the chart on a version of versions.txt, and writes the results there.
# Usage: KUBERNETES=1.34 hack/controlplane/measure.sh   (make measure builds what it needs before)
set -uo pipefail
cd "$(dirname "$0")/../.."

tests() { # ARGUMENT...: of go test; prints a sentence
	go test -json -count=1 -timeout 90m "$@" | tee -a "bin/measure-$KUBERNETES.json" | awk '
		match($0, /"Action":"(pass|fail|skip)"/) {
			action = substr($0, RSTART + 10, 4)
			if ($0 ~ /"Test":"[^"\/]*"/) n[action]++
			else if (action == "fail") broken = 1
		}
		END {
			if (n["fail"]) printf "%d of %d failed", n["fail"], n["pass"] + n["fail"]
			else if (broken || !n["pass"]) printf "failed"
			else printf "%d passed", n["pass"]
			if (n["skip"]) printf ", %d skipped", n["skip"]
			print ""
		}'
}

: >"bin/measure-$KUBERNETES.json"
row=$(date -u +%F)
for arguments in "./hack/demo -run ^TestDemo$" ./test/integration "./hack -run ^TestLife"; do
	# shellcheck disable=SC2086 # several arguments
	row+=$'\t'$(tests $arguments)
done
awk -F '\t' -v OFS='\t' -v minor="$KUBERNETES" -v row="$row" '$1 "" == minor "" { print $1, $2, row; next } 1' \
	hack/controlplane/versions.txt >bin/versions.txt && cp bin/versions.txt hack/controlplane/versions.txt
UPDATE_GOLDEN=1 go test -count=1 -run '^TestVersions$' ./hack
