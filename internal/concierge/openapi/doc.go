// Package openapi describes the aggregated APIs in the terms of OpenAPI, for discovery and `kubectl explain`.
package openapi
