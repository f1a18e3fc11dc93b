#!/usr/bin/env bash
# Runs the demo, test/integration and the life of the chart on a version of versions.txt, and writes the results there.
# Usage: KUBERNETES=1.34 hack/controlplane/measure.sh [demo|integration|life...]   (make measure builds what it needs before)
#        KUBECTL=1.29.15 hack/controlplane/measure.sh   builds that kubectl, and runs TestKubectl with it on the default version
set -uo pipefail
cd "$(dirname "$0")/../.."
[ -x bin/helm ] || {
	echo "error: looking for bin/helm: there is none" >&2
	echo "hint: make bin/helm" >&2
	exit 1
}

if [ -n "${KUBECTL:-}" ]; then
	folder=$PWD/bin/kubectl-$KUBECTL
	KUBERNETES=$KUBECTL OUT=$folder hack/controlplane/build.sh kubectl || exit 1
	PATH=$folder:$PATH exec go test -count=1 -v -run '^TestKubectl$' ./test/integration
fi

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
[ $# -gt 0 ] || set -- demo integration life
for what in "$@"; do
	case $what in
	demo) column=4 result=$(tests ./hack/demo -run '^TestDemo$') ;;
	integration) column=5 result=$(tests ./test/integration) ;;
	life) column=6 result=$(tests ./hack -run '^TestLife') ;;
	*)
		echo "error: \"$what\" is neither demo nor integration nor life" >&2
		exit 2
		;;
	esac
	awk -F '\t' -v OFS='\t' -v minor="$KUBERNETES" -v column="$column" -v result="$result" -v day="$(date -u +%F)" \
		'$1 "" == minor "" { $3 = day; $column = result } 1' hack/controlplane/versions.txt >bin/versions.txt
	cp bin/versions.txt hack/controlplane/versions.txt
	echo "$what: $result" >&2
done
UPDATE_GOLDEN=1 go test -count=1 -run '^TestVersions$' ./hack
