#!/usr/bin/env bash
# Installs the agent on the cluster of the current kubectl context, or brings a new version of it there.
# Usage: hack/install.sh IMAGE   IMAGE: REGISTRY/pinniped-agent@sha256:…, or with a tag; TIMEOUT (3m): how long to wait for it
# A CredentialIssuer that is there stays as it is: it holds the configuration.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# != 1 ] || [ -z "$1" ]; then
	echo "error: one argument wanted, the image with its digest or tag" >&2
	echo 'hint: "make install REGISTRY=ghcr.io/me" builds it, pushes it and comes here' >&2
	exit 2
fi
hack/manifests.sh bin/manifests "$1"

kubectl apply --server-side -f bin/manifests/crds.yaml
kubectl wait --for=condition=Established --timeout=60s -f bin/manifests/crds.yaml
manifests=install
if [ -n "$(kubectl get credentialissuers.config.concierge.pinniped.dev pinniped-concierge-config --ignore-not-found -o name)" ]; then
	manifests=upgrade
fi
kubectl apply --server-side -f "bin/manifests/$manifests.yaml"
if [ "${TIMEOUT:-3m}" != 0 ]; then
	kubectl rollout status --namespace pinniped-concierge deployment/pinniped-concierge --timeout "${TIMEOUT:-3m}"
fi
