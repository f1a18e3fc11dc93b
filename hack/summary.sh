#!/usr/bin/env bash
# Runs a test command. When it fails, its failures are printed once more at the end, without what else was logged: of a
# long output, CI keeps the end.
set -uo pipefail
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"$@" 2>&1 | tee "$output"
code=${PIPESTATUS[0]}
if [ "$code" -ne 0 ]; then
	printf '\n=== What failed, once more:\n'
	grep -aE -A3 '^ *--- FAIL|^ +[^ ]+_test\.go:[0-9]+:|^panic:|^WARNING: DATA RACE|^FAIL' "$output" | cut -c1-400 | grep -avE '^--$|"level":"' | awk '!seen[$0]++' | tail -n 120
fi
exit "$code"
