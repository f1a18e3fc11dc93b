#!/usr/bin/env bash
# Regenerates everything that is generated: deep copies, CRDs, OpenAPI definitions, reference documents.
set -euo pipefail
cd "$(dirname "$0")/.."

go tool controller-gen object:headerFile=hack/boilerplate.go.txt paths=./pkg/apis/...
go tool controller-gen crd paths=./pkg/apis/... output:crd:dir=deploy/crds
go run ./hack/reference docs/reference/cli
