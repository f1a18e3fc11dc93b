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
image=$1
case $image in
*@*) pinned="digest: ${image##*@}" name=${image%@*} ;;
*:*) pinned="newTag: \"${image##*:}\"" name=${image%:*} ;;
*) pinned='newTag: latest' name=$image ;;
esac

kubectl apply --server-side -k deploy/crds
kubectl wait --for=condition=Established --timeout=60s -f deploy/crds/config.concierge.pinniped.dev_credentialissuers.yaml
whole=concierge
if [ -n "$(kubectl get credentialissuers.config.concierge.pinniped.dev pinniped-concierge-config --ignore-not-found -o name)" ]; then
	whole=upgrade
fi

mkdir -p bin/install
cat >bin/install/kustomization.yaml <<END
# Made by hack/install.sh, to be kept or thrown away: kubectl apply --server-side -k bin/install
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../deploy/$whole]
images:
- {name: ghcr.io/pinniped-toolkit/pinniped-agent, newName: $name, $pinned}
END
kubectl apply --server-side -k bin/install
if [ "${TIMEOUT:-3m}" != 0 ]; then
	kubectl rollout status --namespace pinniped-concierge deployment/pinniped-concierge --timeout "${TIMEOUT:-3m}"
fi
