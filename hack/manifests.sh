#!/usr/bin/env bash
# Writes the manifests of deploy/ with an image's name into FOLDER: crds.yaml, install.yaml (all), upgrade.yaml (deploy/upgrade),
# credentialissuer.yaml (for those who configure the agent by a file), local-user-authenticator.yaml.
# Usage: hack/manifests.sh FOLDER IMAGE   IMAGE: REGISTRY/pinniped-agent@sha256:…, or with a tag
# VERSION: for a release; then there are two archives besides, of the chart and of deploy/ with all overlays. They need bin/helm.
# SELECTOR: labels, as JSON, that the Deployment's selector and its pods have besides their own
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

if [ $# != 2 ] || [ -z "$2" ]; then
	echo "error: two arguments wanted, a folder and the image with its digest or tag" >&2
	exit 2
fi
folder=$1
case $2 in
*@*) name=${2%@*} pinned="digest: ${2##*@}" ;;
*:*) name=${2%:*} pinned="newTag: \"${2##*:}\"" ;;
*)
	echo "error: \"$2\" has neither digest nor tag" >&2
	exit 2
	;;
esac

labels=${SELECTOR:-"{}"}
kubectl=$(command -v kubectl) || kubectl=$root/bin/controlplane${KUBERNETES:+-$KUBERNETES}/kubectl
mkdir -p "$folder"
mkdir -p "$root/bin"
overlay=$(mktemp -d "$root/bin/overlay.XXXXXX") # kustomize takes no absolute paths
trap 'rm -rf "$overlay"' EXIT
"$kubectl" kustomize "$root/deploy/crds" >"$folder/crds.yaml"
cp "$root/deploy/concierge/credentialissuer.yaml" "$folder"
for kind in install:concierge upgrade:upgrade; do
	cat >"$overlay/kustomization.yaml" <<-END
		apiVersion: kustomize.config.k8s.io/v1beta1
		kind: Kustomization
		resources: [../../deploy/${kind#*:}]
		images:
		- {name: ghcr.io/pinniped-toolkit/pinniped-agent, newName: $name, $pinned}
		patches:
		- patch: |
		    apiVersion: apps/v1
		    kind: Deployment
		    metadata: {name: pinniped-concierge, namespace: pinniped-concierge}
		    spec:
		      selector: {matchLabels: $labels}
		      template: {metadata: {labels: $labels}}
	END
	"$kubectl" kustomize "$overlay" >"$folder/${kind%:*}.yaml"
done
cat >"$overlay/kustomization.yaml" <<-END
	apiVersion: kustomize.config.k8s.io/v1beta1
	kind: Kustomization
	resources: [../../deploy/local-user-authenticator]
	images:
	- {name: ghcr.io/pinniped-toolkit/pinniped-agent, newName: $name, $pinned}
END
"$kubectl" kustomize "$overlay" >"$folder/local-user-authenticator.yaml"

if [ -z "${VERSION:-}" ]; then
	exit
fi
cp -r "$root/deploy" "$overlay"
find "$overlay/deploy" -name '*_test.go' -delete
sed -i.before "s|^image: .*|image: $2|" "$overlay/deploy/helm/values.yaml"
for with in concierge local-user-authenticator; do
	sed -i.before "s|newName: ghcr.io/pinniped-toolkit/.*|newName: $name|; s|newTag: latest|$pinned|" "$overlay/deploy/$with/kustomization.yaml"
done
find "$overlay/deploy" -name '*.before' -delete
at=@$(git -C "$root" log -1 --format=%ct) # equal commits give equal archives
find "$overlay/deploy" -exec touch -d "$at" {} +
"$root/bin/helm" package "$overlay/deploy/helm" --version "${VERSION#v}" --app-version "$VERSION" --destination "$folder" >/dev/null
rm -r "$overlay/deploy/helm"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="$at" -C "$overlay" -cf - deploy |
	gzip -n >"$folder/pinniped-deploy_${VERSION#v}.tar.gz"
