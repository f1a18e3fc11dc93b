#!/usr/bin/env bash
# Renders the chart into the folders of deploy that kustomize takes. The chart, deploy/helm, is what is edited; its CRDs and alerts are copied
# from deploy/crds and deploy/monitoring/alerts.yaml. A file of deploy that no template makes is left alone.
set -euo pipefail
cd "$(dirname "$0")/../deploy"
helm=${HELM:-../bin/helm}
if [ ! -x "$helm" ]; then
	echo 'error: no bin/helm; run "make bin/helm"' >&2
	exit 1
fi

mkdir -p helm/templates/crds
for file in crds/*.concierge.pinniped.dev_*.yaml; do
	{
		echo '{{- if .Values.crds.install }}'
		# The configuration is in objects of these kinds, so an uninstallation keeps them.
		sed -e '1{/^---$/d}' -e '/^    controller-gen.kubebuilder.io\/version:/a\    helm.sh/resource-policy: keep' "$file"
		echo '{{- end }}'
	} >"helm/templates/$file"
done
sed -n '/^groups:/,$p' monitoring/alerts.yaml >helm/alerts.yaml

rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
# render FOLDER TEMPLATES VALUES: the image's name is put in by kustomize
render() {
	"$helm" template pinniped-concierge helm --namespace pinniped-concierge --skip-schema-validation --output-dir "$rendered/$1" \
		--set image=pinniped-agent,crds.install=false,"$3" >/dev/null
	for file in "$rendered/$1/pinniped-concierge/templates/$2"/*.yaml; do
		{
			echo "# Made by hack/chart.sh from the chart."
			sed -e '1{/^---$/d}' -e '/^# Source: /d' -e '/^ *$/d' -e '/^      annotations:$/{N;/checksum\/config/d}' "$file"
		} >"$1/${file##*/}"
	done
}
render concierge . namespace.create=true
render serviceaccounttokens serviceaccounttokens serviceAccountTokens.enabled=true
render clustersigner clustersigner clusterSigner.enabled=true
render monitoring monitoring monitoring.enabled=true
render prometheusoperator prometheusoperator monitoring.prometheusOperator=true
