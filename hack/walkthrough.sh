#!/usr/bin/env bash
# Runs the shell blocks of docs/howto/walkthrough.md up to "How to go back": a kind cluster with Contour, cert-manager and the agent, and a user who
# logs in through the impersonation proxy. Usage: hack/walkthrough.sh [--print]   --print: only print what would be run
set -euo pipefail
cd "$(dirname "$0")/.."

# The one command that is meant to fail says so in its comment.
blocks=$(awk '/^## How to go back/ { exit } /^```shell$/ { inside = 1; next } /^```$/ { inside = 0 } inside' docs/howto/walkthrough.md |
	sed 's/ *# exit code 1$/ || [ $? = 1 ]/')
if [ "${1:-}" = --print ]; then
	printf '%s\n' "$blocks"
	exit
fi
for program in kind kubectl go make curl htpasswd; do
	command -v "$program" >/dev/null || {
		echo "error: there is no $program on the PATH" >&2
		echo "hint: docs/howto/walkthrough.md says what it needs (Debian has htpasswd in apache2-utils)" >&2
		exit 1
	}
done
bash -xeuo pipefail -c "$blocks"
echo 'Done. "kind delete cluster --name pinniped" removes the cluster.' >&2
