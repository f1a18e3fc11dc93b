package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
)

// TestWhatGoesOverWhich checks that a request whose body is in memory has an exclusive, pooled HTTP/1.1 connection, and
// that streams share HTTP/2 connections.
func TestWhatGoesOverWhich(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := p.as(t, "jane")
	for _, test := range []struct{ name, method, path, body, want string }{
		{"a get", "GET", "/api/v1/namespaces/d/pods/x", "", "HTTP/1.1"},
		{"a list", "GET", "/api/v1/pods", "", "HTTP/1.1"},
		{"a write", "PUT", "/api/v1/namespaces/d/pods/x", "{}", "HTTP/1.1"},
		{"a body that is still on its way", "PUT", "/api/v1/pods/x", strings.Repeat("x", listener.MaxHeldBody+1), "HTTP/2.0"},
		{"a watch", "GET", "/api/v1/pods?watch=1", "", "HTTP/2.0"},
		{"logs", "GET", "/api/v1/namespaces/d/pods/x/log?follow=1", "", "HTTP/2.0"},
		{"a program in the cluster", "GET", "/api/v1/namespaces/d/services/x/proxy/", "", "HTTP/2.0"},
	} {
		before := len(p.api.requests())
		if got := p.do(t, jane, test.method, test.path, nil, test.body); got.Code != http.StatusOK {
			t.Errorf("%s: want 200, got %d", test.name, got.Code)
			continue
		}
		if got := p.api.requests()[before].Proto; got != test.want {
			t.Errorf("%s: want %s, got %s", test.name, test.want, got)
		}
	}
}
