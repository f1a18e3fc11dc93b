#!/usr/bin/env bash
# Regenerates everything that is generated: deep copies, CRDs, OpenAPI definitions, the list of checks, the chart's copies.
set -euo pipefail
cd "$(dirname "$0")/.."

go tool controller-gen object:headerFile=hack/boilerplate.go.txt paths=./pkg/apis/...
go tool controller-gen crd paths=./pkg/apis/... output:crd:dir=deploy/crds

openapi=internal/concierge/openapi
go tool openapi-gen --go-header-file hack/boilerplate.go.txt --output-dir "$openapi" \
	--output-pkg "github.com/pinniped-toolkit/pinniped/$openapi" --output-file zz_generated.openapi.go --report-filename /dev/null \
	github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1 github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1

go run ./hack/reference docs/reference/cli/checks.md
UPDATE_GOLDEN=1 go test -count=1 -run "^TestTheChartsSchema$" ./deploy >/dev/null # values.schema.json has the spec of the CRD
hack/chart.sh
