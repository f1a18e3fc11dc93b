package relay

import (
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestUpstreamTakesNoCredentials(t *testing.T) {
	t.Parallel()
	config := &rest.Config{Host: "https://api.example.com", BearerToken: "a-token", Username: "root", Password: "root"}
	ca, err := certs.NewCA("ca", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.IssueClient(
		certs.ClientIdentity{Username: "root", Groups: []string{"system:masters"}},
		time.Now(),
		time.Hour,
	)
	if err != nil {
		t.Fatal(err)
	}
	config.CertData, config.KeyData = pair.CertPEM, pair.KeyPEM
	up, err := NewUpstream(config, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	for _, transport := range append(slices.Clone(up.streams), up.upgrade) {
		if c := transport.TLSClientConfig; len(c.Certificates) != 0 || c.GetClientCertificate != nil || c.InsecureSkipVerify {
			t.Error("want no client certificate")
		}
	}
}

// TestAProxyBeforeTheAPIServer has requests take the way that knows proxies.
func TestAProxyBeforeTheAPIServer(t *testing.T) {
	t.Parallel()
	config := &rest.Config{Host: "https://api.example.com"}
	config.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.example.com:3128"})
	up, err := NewUpstream(config, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	if up.plain != nil {
		t.Error("want requests sent with the streams, which go through the proxy")
	}
}

// TestADeadUpstreamIsFoundByPings says how long a connection that is dead without saying so can keep a client waiting.
func TestADeadUpstreamIsFoundByPings(t *testing.T) {
	t.Parallel()
	up, err := NewUpstream(&rest.Config{Host: "https://api.example.com"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	for _, transport := range up.streams {
		if within := transport.HTTP2.SendPingTimeout + transport.HTTP2.PingTimeout; within <= 0 || within > 45*time.Second {
			t.Errorf("a dead connection is noticed after %s", within)
		}
	}
}
