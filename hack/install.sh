#!/usr/bin/env bash
# Installs the agent on the cluster of the current kubectl context, or brings a new version of it there.
# Usage: hack/install.sh IMAGE   IMAGE: REGISTRY/pinniped-agent@sha256:…, or with a tag; TIMEOUT (3m): how long to wait for it
# MANIFESTS (bin/manifests): the folder to write the manifests into
# The CredentialIssuer, which holds the configuration, is the agent's to make where there is none. Nothing is changed unless the API server takes
# all of it; if not, this ends with 3.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# != 1 ] || [ -z "$1" ]; then
	echo "error: one argument wanted, the image with its digest or tag" >&2
	echo 'hint: "make install REGISTRY=ghcr.io/me" builds it, pushes it and comes here' >&2
	exit 2
fi
# The selector of a Deployment cannot be changed, and kapp, with which Pinniped is often installed, has put a label of its own into it.
SELECTOR=$(kubectl get deployments --namespace pinniped-concierge pinniped-concierge --ignore-not-found -o 'jsonpath={.spec.selector.matchLabels}')
folder=${MANIFESTS:-bin/manifests}
SELECTOR=$SELECTOR hack/manifests.sh "$folder" "$1"

if [ -z "$(kubectl get namespaces pinniped-concierge --ignore-not-found -o name)" ]; then
	kubectl apply --server-side -f deploy/concierge/namespace.yaml
fi
if ! kubectl apply --server-side --dry-run=server -f "$folder/upgrade.yaml" >/dev/null; then
	echo "error: nothing was changed, because the API server would not take all of it" >&2
	echo 'hint: "pinniped migrate check" says what to do where Pinniped is installed (docs/howto/from-pinniped.md)' >&2
	exit 3
fi
kubectl apply --server-side -f "$folder/upgrade.yaml"
if [ "${TIMEOUT:-3m}" != 0 ]; then
	kubectl rollout status --namespace pinniped-concierge deployment/pinniped-concierge --timeout "${TIMEOUT:-3m}"
fi
