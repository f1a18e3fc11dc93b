#!/usr/bin/env bash
# Reports every generated file, and every go.mod, that is not what it would be if it were made now. It works on a copy of the files that git
# knows or would add, so that the working tree stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

export HELM=$PWD/bin/helm # hack/chart.sh renders the chart with it
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
	[ -f "$file" ] && printf '%s\0' "$file"
done | tar --null -T - -cf - | tar -xf - -C "$copy"

cd "$copy"
git init -q && git add -A && git -c user.name=verify -c user.email=verify@localhost commit -qm copy
hack/generate.sh
go mod tidy
go vet ./...
if [ -n "$(git status --porcelain)" ]; then
	git --no-pager diff
	git status --short
	echo "error: these files are not up to date" >&2
	echo 'hint: run "make generate" and "go mod tidy", and commit what changes' >&2
	exit 1
fi
echo "Generated files and go.mod are up to date."
