package proxy

import (
	"bytes"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestTrustBundleIsPublished checks that all clients can read the published CA bundle, and that these requests do not reach
// the API server.
func TestTrustBundleIsPublished(t *testing.T) {
	t.Parallel()
	var published atomic.Pointer[[]byte]
	published.Store(new([]byte))
	p := newProxy(t)
	p.api.anonymous = func(string) int { return http.StatusUnauthorized } // a cluster that is closed to anonymous users
	p.start(t, func(_ *proxy, o *Options) { o.TrustBundle = func() []byte { return *published.Load() } })
	asked := func() (n int) {
		p.api.set(func() { n = len(p.api.recorded) + p.api.asked })
		return n
	}
	before := asked()
	nobody := p.client(t, nil)
	if got := p.get(t, nobody, trustbundle.Path, nil); got.Code != 503 || got.Header.Get("Retry-After") == "" {
		t.Errorf("while nothing is published: %+v", got)
	}
	for _, bundle := range [][]byte{p.servingCA.CertPEM(), nil, append(p.servingCA.CertPEM(), p.signerCA.CertPEM()...)} {
		document := must.Get(trustbundle.Encode(bundle))(t)
		published.Store(&document)
		for name, client := range map[string]*http.Client{"nobody": nobody, "a user": p.as(t, "ann")} {
			for _, header := range []http.Header{{}, {"Authorization": {"Bearer bad"}}, {"Impersonate-User": {"x"}}} {
				got := p.get(t, client, trustbundle.Path, header)
				found, err := trustbundle.Decode(strings.NewReader(got.Body))
				if got.Code != 200 || err != nil || !bytes.Equal(found, bundle) {
					t.Errorf("%s with %v: %+v, %v", name, header, got, err)
				}
				if got.Header.Get("Content-Type") != "application/json" ||
					!strings.Contains(got.Header.Get("Cache-Control"), "no-store") {
					t.Errorf("header %v", got.Header)
				}
			}
		}
	}
	if after := asked(); after != before { // not even for Ann: her credentials are ignored
		t.Errorf("the API server was asked %d times", after-before)
	}
	if got := p.do(t, nobody, http.MethodPost, trustbundle.Path, nil, "{}"); got.Code != http.StatusUnauthorized {
		t.Errorf("the response to a write is %+v", got)
	}
	for _, path := range []string{trustbundle.Path + "/", trustbundle.Path + "/x", trustbundle.Path + "x"} {
		if got := p.get(t, nobody, path, nil); got.Code != http.StatusUnauthorized {
			t.Errorf("the response to %s is %+v", path, got)
		}
	}
}

// TestTrustBundleEndpointIsOff checks that without a trust bundle the API server serves the path.
func TestTrustBundleEndpointIsOff(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	if got := p.get(t, p.as(t, "ann"), trustbundle.Path, nil); !strings.Contains(got.Body, "the API server") {
		t.Errorf("%+v", got)
	}
	if got := p.api.requests(); len(got) != 1 || got[0].URI != trustbundle.Path {
		t.Errorf("the API server was asked for %v", got)
	}
}
