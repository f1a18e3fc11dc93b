package proxy

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// measured returns the scraped metrics of the proxy by "name{label=value,...}". A histogram is its number of
// observations.
func measured(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry() // compares what is collected with what is described
	must.Do(t, registry.Register(m))
	families := must.Get(registry.Gather())(t)
	found := map[string]float64{}
	for _, family := range families {
		for _, one := range family.GetMetric() {
			var labels []string
			for _, label := range one.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			key := strings.TrimPrefix(family.GetName(), "pinniped_proxy_") + "{" + strings.Join(labels, ",") + "}"
			found[key] = one.GetCounter().GetValue() + one.GetGauge().GetValue() + float64(one.GetHistogram().GetSampleCount())
		}
	}
	return found
}

// checkMeasured waits until each named metric has the wanted value: metrics of the end of a request may be late.
func checkMeasured(t *testing.T, m *Metrics, want map[string]float64) {
	t.Helper()
	var got map[string]float64
	defer func() {
		if t.Failed() {
			t.Logf("measured: %v", got)
		}
	}()
	for name, value := range want {
		eventually(t, func() bool {
			got = measured(t, m)
			return got[name] == value
		})
	}
}

func TestRequestsAreMeasured(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	release := make(chan struct{})
	p.api.serves(echoOr(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.Contains(req.URL.Path, "missing"):
			w.WriteHeader(http.StatusNotFound)
		case req.URL.Query().Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-release
		case strings.Contains(req.URL.Path, "broken"):
			panic(http.ErrAbortHandler)
		}
	}))
	p.api.allows(allowing("get pods", "get pods/exec", "create pods/exec", "list pods", "watch pods", "create pods",
		"delete pods", "get /version", "brew /version"))
	client := p.as(t, "jane")
	const pods = "/api/v1/namespaces/d/pods"
	p.get(t, client, pods+"/one", nil)
	p.get(t, client, pods+"/one", nil)
	p.get(t, client, pods+"/missing", nil)
	p.get(t, client, pods, nil)
	p.get(t, client, "/version", nil)
	p.get(t, client, "/api/v1/secrets", nil)
	p.get(t, client, "/api//v1", nil)
	p.get(t, p.client(t, nil), "/version", http.Header{"Authorization": {"Bearer nobody's"}})
	p.get(t, client, pods+"/broken", nil)
	p.do(t, client, "BREW", "/version", nil, "")
	checkMeasured(t, p.Metrics, map[string]float64{
		"requests_total{code=200,verb=get}":              3,
		"requests_total{code=200,verb=list}":             1,
		"requests_total{code=404,verb=get}":              1,
		"requests_total{code=403,verb=list}":             1,
		"requests_total{code=400,verb=other}":            1,
		"requests_total{code=401,verb=get}":              1,
		"requests_total{code=503,verb=get}":              1,
		"requests_total{code=200,verb=other}":            1,
		"upstream_problems_total{cause=connection_lost}": 1,
		"upstream_problems_total{cause=unreachable}":     0,
		"reviews_total{result=yes,review=access}":        4,
		"reviews_total{result=no,review=access}":         1,
		"reviews_total{result=no,review=token}":          1,
		"requests_in_flight{kind=request}":               0,
	})
	got := measured(t, p.Metrics)
	if got["added_seconds{}"] != got["upstream_seconds{}"] || got["added_seconds{}"] < 6 {
		t.Errorf("want each forwarded request observed, got %v and %v", got["added_seconds{}"], got["upstream_seconds{}"])
	}

	// A watch and an upgraded connection while they are open, and afterwards.
	before := got["upstream_seconds{}"]
	watch := p.open(t.Context(), t, client, pods+"?watch=1")
	conn, _ := p.switches(t, get(pods+"/x/exec", "Connection: Upgrade", "Upgrade: websocket"))
	checkMeasured(t, p.Metrics, map[string]float64{"requests_in_flight{kind=stream}": 2})
	close(release)
	_, _ = io.Copy(io.Discard, watch.Body)
	_ = watch.Body.Close()
	_ = conn.Close()
	checkMeasured(t, p.Metrics, map[string]float64{
		"requests_in_flight{kind=stream}":      0,
		"requests_total{code=200,verb=watch}":  1,
		"requests_total{code=101,verb=create}": 0,
		"requests_total{code=101,verb=get}":    1,
	})
	if after := measured(t, p.Metrics)["upstream_seconds{}"]; after != before {
		t.Errorf("want streams left out of the upstream's time, got %v more", after-before)
	}
}

func TestConnectionsAreMeasured(t *testing.T) {
	t.Parallel()
	p, g := startGated(t, func(o *Options, g *gate) { o.Upstream.Dial = g.dial })
	client := p.as(t, "jane")
	p.get(t, client, "/api/v1/nodes", nil)
	got := measured(t, p.Metrics)
	if got["client_connections{}"] != 1 {
		t.Errorf("want one connection here, got %v", got)
	}
	g.open.Store(false)
	eventually(t, func() bool {
		p.upstream.Close() // idle connections
		return p.get(t, client, "/api/v1/nodes", nil).Code == http.StatusServiceUnavailable
	})
	client.CloseIdleConnections()
	checkMeasured(t, p.Metrics,
		map[string]float64{"client_connections{}": 0, "upstream_problems_total{cause=unreachable}": 1})
	p.token.set("")
	p.get(t, client, "/api/v1/nodes", nil)
	checkMeasured(t, p.Metrics, map[string]float64{"upstream_problems_total{cause=no_credential}": 1})
}

// TestHandshakeFailuresAreCounted causes each failure, because crypto/tls only has texts for them.
func TestHandshakeFailuresAreCounted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, cause string
		change      func(*tls.Config) // of the client
		sends       string            // without TLS, if change is nil
		missing     bool              // the serving certificate
	}{
		{name: "a client that does not know the CA", cause: "alert_bad_certificate", change: func(c *tls.Config) { c.RootCAs = nil }},
		{
			name: "a client that wants another name", cause: "alert_bad_certificate",
			change: func(c *tls.Config) { c.ServerName = "elsewhere.example.com" },
		},
		{
			name: "a client with old TLS only", cause: "no_shared_version",
			change: func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 },
		},
		{name: "a client with other ciphers only", cause: "no_shared_cipher", change: func(c *tls.Config) {
			c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}
		}},
		{
			name: "a client with other protocols only", cause: "no_shared_protocol",
			change: func(c *tls.Config) { c.NextProtos = []string{"imap"} },
		},
		{name: "a client that sends HTTP", cause: "not_tls", sends: "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
		{name: "a client that sends something else", cause: "not_tls", sends: "EHLO example.com\r\n"},
		{name: "a client that only connects", cause: "client_left"},
		{name: "a proxy without a certificate", cause: "no_serving_certificate", missing: true, change: func(*tls.Config) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			if test.missing {
				p.serving.Store(nil)
			}
			conn := p.dial(t)
			if test.change == nil {
				_, _ = io.WriteString(conn, test.sends)
			} else {
				config := p.clientTLS(nil)
				config.ServerName = "127.0.0.1"
				test.change(config)
				if tls.Client(conn, config).HandshakeContext(t.Context()) == nil {
					t.Error("the handshake succeeded")
				}
			}
			_ = conn.Close()
			checkMeasured(t, p.Metrics, map[string]float64{"tls_handshake_failures_total{cause=" + test.cause + "}": 1})
		})
	}
}

func TestHandshakeCause(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.0.0.1:4: remote error: tls: unknown certificate authority":                                      "alert_unknown_certificate_authority",
		"10.0.0.1:4: remote error: tls: expired certificate":                                                "alert_expired_certificate",
		"10.0.0.1:4: remote error: tls: unknown certificate":                                                "alert_unknown_certificate",
		"10.0.0.1:4: remote error: tls: no application protocol":                                            "alert_no_application_protocol",
		`10.0.0.1:4: remote error: tls: alert(11)`:                                                          "alert_other",
		`10.0.0.1:4: tls: client requested unsupported application protocols (["x: remote error: tls: x"])`: "no_shared_protocol",
		"10.0.0.1:4: read tcp 10.0.0.2:8444->10.0.0.1:4: i/o timeout":                                       "timeout",
		"10.0.0.1:4: read tcp 10.0.0.2:8444->10.0.0.1:4: read: connection reset by peer":                    "client_left",
		"10.0.0.1:4: tls: invalid signature by the client certificate: something was wrong":                 "other",
	} {
		if got := handshakeCause(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestRequestCounters(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	for verb, code := range map[string]int{
		"get": 200, "deletecollection": 504, "approve": 200, "": 400, "list": 1000, "watch": 0,
	} {
		m.counter(verb, code).Inc()
		m.counter(verb, code).Inc() // the second time it is cached
	}
	checkMeasured(t, m, map[string]float64{
		"requests_total{code=200,verb=get}":              2,
		"requests_total{code=504,verb=deletecollection}": 2,
		"requests_total{code=200,verb=other}":            2,
		"requests_total{code=400,verb=other}":            2,
		"requests_total{code=500,verb=list}":             2,
		"requests_total{code=none,verb=watch}":           2,
	})
}
