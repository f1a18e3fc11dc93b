package fleet

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// listen returns the address of a listener on loopback that passes its connections to serve, one after the other.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return "https://" + listener.Addr().String()
}

// bigFleet is many clusters, a fifth of them dead, slow or hostile, and five kubeconfigs for each.
type bigFleet struct {
	folder           string
	clusters, dead   int
	asked            atomic.Int64 // requests to good clusters
	before, expected map[string]string
}

// newBigFleet creates a fleet. Its good clusters share one server with a listener each, to save resources.
func newBigFleet(t *testing.T, clusters int) *bigFleet {
	t.Helper()
	f := &bigFleet{folder: t.TempDir(), clusters: clusters, before: map[string]string{}, expected: map[string]string{}}
	old, next := newCA(t, "old", time.Now().Add(-time.Hour)), newCA(t, "new", time.Now())
	both := append(old.CertPEM(), next.CertPEM()...)
	certificate := servingCertificate(t, old)
	good := &http.Server{
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			f.asked.Add(1)
			answer(w, req, both)
		}),
	}
	t.Cleanup(func() { _ = good.Close() })
	ways := badWays(t, old, certificate)
	for i := range clusters {
		address := ""
		if i%5 == 4 {
			address = ways[f.dead%len(ways)]()
			f.dead++
		} else {
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			config := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
			go func() { _ = good.Serve(tls.NewListener(listener, config)) }()
			address = "https://" + listener.Addr().String()
		}
		for n := range 5 {
			name := fmt.Sprintf("%03d-%d", i, n)
			f.before[name], f.expected[name] = login(address, old.CertPEM()), login(address, both)
			if i%5 == 4 {
				f.expected[name] = f.before[name]
			}
			write(t, filepath.Join(f.folder, strconv.Itoa(i%7), name), f.before[name])
		}
	}
	return f
}

// badWays returns functions that start a cluster that does not respond properly, and return its URL.
func badWays(t *testing.T, ca *certs.CA, certificate tls.Certificate) []func() string {
	t.Helper()
	overTLS := func(serve func(net.Conn)) func() string {
		return func() string {
			return listen(t, func(conn net.Conn) {
				defer func() { _ = conn.Close() }()
				secure := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
				_ = secure.SetDeadline(time.Now().Add(time.Minute))
				if secure.HandshakeContext(t.Context()) == nil {
					_, _ = secure.Read(make([]byte, 1<<10))
					serve(secure)
				}
			})
		}
	}
	used := strings.TrimPrefix(listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }), "https://")
	return []func() string{
		func() string { // connection refused; no other cluster gets the port
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", used)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			return "https://" + conn.LocalAddr().String()
		},
		func() string { // a black hole
			return listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		},
		func() string { // TLS handshake that never ends
			return listen(t, func(conn net.Conn) {
				for {
					if _, err := conn.Write([]byte{22}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
		},
		func() string { // no TLS
			return listen(t, func(conn net.Conn) {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
				_ = conn.Close()
			})
		},
		overTLS(func(conn net.Conn) { // endless response
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
			for {
				if _, err := io.WriteString(conn, strings.Repeat("[", 1<<16)); err != nil {
					return
				}
			}
		}),
		overTLS(func(conn net.Conn) { // one byte at a time
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
			for {
				if _, err := io.WriteString(conn, " "); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}),
		overTLS(func(conn net.Conn) { // redirect to itself
			_, _ = io.WriteString(conn, "HTTP/1.1 302 Found\r\nLocation: "+trustbundle.Path+"\r\nContent-Length: 0\r\n\r\n")
		}),
		overTLS(func(conn net.Conn) { // endless informational responses
			for {
				if _, err := io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n"); err != nil {
					return
				}
			}
		}),
		overTLS(func(conn net.Conn) { _, _ = conn.Write([]byte{0, 255, 10, 13, 10}) }), // garbage
		func() string { // another CA
			return serve(t, newCA(t, "other", time.Now()), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				answer(w, req, ca.CertPEM())
			})).URL
		},
	}
}

// check compares all files with their expected content.
func (f *bigFleet) check(t *testing.T) {
	t.Helper()
	wrong := 0
	for name, want := range f.expected {
		cluster, _ := strconv.Atoi(name[:3])
		if got := read(t, filepath.Join(f.folder, strconv.Itoa(cluster%7), name)); got != want {
			if wrong++; wrong < 4 {
				t.Errorf("%s: %s", name, cmp.Diff(want, got))
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d kubeconfigs are not as expected", wrong, len(f.expected))
	}
	left, err := filepath.Glob(filepath.Join(f.folder, "*", "*.lock"))
	hidden, _ := filepath.Glob(filepath.Join(f.folder, "*", ".*"))
	if err != nil || len(left)+len(hidden) > 0 {
		t.Errorf("left behind: %v %v", left, hidden)
	}
}

// TestBigFleet rotates a thousand kubeconfigs of two hundred clusters, a fifth of them dead, slow or hostile, and
// checks the counts. To check the duration as well:
//
//	PINNIPED_FLEET_TIME=1 go test ./internal/cli/kubeconfig/fleet -run TestBigFleet -v
//
// The limit is one minute plus the ten seconds of a dead cluster.
func TestBigFleet(t *testing.T) {
	t.Parallel()
	f := newBigFleet(t, 200)
	o := options(f.folder)
	o.ClusterTimeout = 10 * time.Second // the command's default
	result, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d clusters and %d kubeconfigs in %s", len(result.Clusters), len(result.Items), result.Took)
	if os.Getenv("PINNIPED_FLEET_TIME") != "" && result.Took > time.Minute+o.ClusterTimeout {
		t.Errorf("it took %s", result.Took)
	}
	if diff := cmp.Diff(
		map[string]int{"asked": 160, "failed": 40},
		clusterOutcomes(result),
	); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	counts := map[string]int{}
	for _, item := range result.Items {
		counts[string(item.Outcome)]++
	}
	if diff := cmp.Diff(map[string]int{"rotated": 800, "skipped": 200}, counts); diff != "" {
		t.Errorf("kubeconfigs (-want +got):\n%s", diff)
	}
	tries := 0 // 160, plus retries on a busy machine
	for _, cluster := range result.Clusters {
		if cluster.Outcome == ClusterAsked {
			tries += cluster.Tries
		}
	}
	if n := int(f.asked.Load()); n < 160 || n > tries {
		t.Errorf("160 clusters were asked %d times in %d tries", n, tries)
	}
	f.check(t)
}
