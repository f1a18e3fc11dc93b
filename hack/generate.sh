#!/usr/bin/env bash
# Regenerates everything that is generated: deep copies, CRDs, OpenAPI definitions, reference documents.
set -euo pipefail
cd "$(dirname "$0")/.."

go tool controller-gen object:headerFile=hack/boilerplate.go.txt paths=./pkg/apis/...
go tool controller-gen crd paths=./pkg/apis/... output:crd:dir=deploy/crds

openapi=internal/concierge/openapi
go tool openapi-gen --go-header-file hack/boilerplate.go.txt --output-dir "$openapi" \
	--output-pkg "github.com/pinniped-toolkit/pinniped/$openapi" --output-file zz_generated.openapi.go --report-filename /dev/null \
	github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1 github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1

cat >deploy/prometheusoperator/prometheusrule.yaml - <(sed -n '/^groups:/,$ s/^/  /p' deploy/monitoring/alerts.yaml) <<-END
	# Made by hack/generate.sh from deploy/monitoring/alerts.yaml.
	apiVersion: monitoring.coreos.com/v1
	kind: PrometheusRule
	metadata:
	  name: pinniped-concierge
	  namespace: pinniped-concierge
	  labels: {app: pinniped-concierge}
	spec:
END

go run ./hack/reference docs/reference/cli
(cd hack/helm && go run . ../../deploy/concierge ../../deploy/helm)
