package metrics

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
)

func registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "everything", Help: "of everything"},
			func() float64 { return 42 },
		),
	)
	return r
}

func TestWhoGetsWhat(t *testing.T) {
	t.Parallel()
	const pod, elsewhere = "127.0.0.1:4711", "10.1.2.3:4711"
	for _, test := range []struct {
		name      string
		profiling Profiling
		from      string
		path      string
		code      int
		body      string
	}{
		{"gives metrics to anyone", ProfilingDisabled, elsewhere, "/metrics", 200, "everything 42"},
		{"has no profiles by default", ProfilingDisabled, pod, "/debug/pprof/", 404, ""},
		{"has no profiles by default", "", pod, "/debug/pprof/heap", 404, ""},
		{"gives profiles to the same machine", ProfilingLocal, pod, "/debug/pprof/", 200, "goroutine"},
		{
			"gives profiles to the same machine over IPv6", ProfilingLocal, "[::1]:4711", "/debug/pprof/goroutine?debug=1", 200,
			"goroutine profile",
		},
		{
			"gives profiles to the same machine in IPv4's IPv6 form", ProfilingLocal, "[::ffff:127.0.0.1]:4711",
			"/debug/pprof/cmdline", 200, "",
		},
		{"keeps profiles from other machines", ProfilingLocal, elsewhere, "/debug/pprof/", 403, ""},
		{"keeps named profiles from other machines", ProfilingLocal, elsewhere, "/debug/pprof/heap", 403, ""},
		{"keeps CPU profiles from other machines", ProfilingLocal, elsewhere, "/debug/pprof/profile?seconds=1", 403, ""},
		{"keeps traces from other machines", ProfilingLocal, elsewhere, "/debug/pprof/trace?seconds=1", 403, ""},
		{"keeps profiles from clients of unknown origin", ProfilingLocal, "@", "/debug/pprof/", 403, ""},
		{"gives profiles to all if configured", ProfilingAnyone, elsewhere, "/debug/pprof/heap?debug=1", 200, "heap profile"},
		{"has nothing else", ProfilingAnyone, pod, "/", 404, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			handler := (&Server{Gatherer: registry(), Profiling: test.profiling}).Handler()
			req := httptest.NewRequest(http.MethodGet, test.path, nil)
			req.RemoteAddr = test.from
			w := &recorder{ResponseRecorder: httptest.NewRecorder()}
			handler.ServeHTTP(w, req)
			if w.Code != test.code || !strings.Contains(w.Body.String(), test.body) {
				t.Errorf("got %d %q, want %d with %q", w.Code, w.Body, test.code, test.body)
			}
		})
	}
}

func TestOnlyReads(t *testing.T) {
	t.Parallel()
	handler := (&Server{Gatherer: registry(), Profiling: ProfilingAnyone}).Handler()
	for _, path := range []string{"/metrics", "/debug/pprof/heap"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: got %d", path, w.Code)
		}
	}
}

// TestServesUntilTheEnd checks that Run serves until its context ends, and that it waits for a port in use.
func TestServesUntilTheEnd(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var log strings.Builder
	logger := funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		log.WriteString(args + "\n")
	}, funcr.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := make(chan net.Addr, 1)
	s := &Server{Address: "127.0.0.1:0", Gatherer: registry(), listening: func(a net.Addr) { at <- a }}
	done := make(chan struct{})
	go func() { defer close(done); s.Run(logr.NewContext(ctx, logger)) }()
	address := (<-at).String()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || !strings.Contains(string(body), "everything 42") {
		t.Errorf("got %q, %v", body, err)
	}

	// A second server on the same port logs that, and runs until its context ends.
	second, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&Server{Address: address, Gatherer: registry()}).Run(logr.NewContext(second, logger))
	}()
	deadline := time.Now().Add(15 * time.Second)
	for {
		mu.Lock()
		text := log.String()
		mu.Unlock()
		if strings.Contains(text, "listening for metrics") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not say that the port is taken: %s", text)
		}
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	<-ended
	cancel()
	<-done
	if _, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address); err == nil {
		t.Error("it still listens")
	}
}

// recorder is a ResponseRecorder with a write deadline.
type recorder struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (r *recorder) SetWriteDeadline(deadline time.Time) error {
	r.deadline = deadline
	return nil
}

// TestSlowClientsEnd checks the write deadlines of responses, because few are written at a time.
func TestSlowClientsEnd(t *testing.T) {
	t.Parallel()
	handler := (&Server{Gatherer: registry(), Profiling: ProfilingAnyone}).Handler()
	for path, want := range map[string]time.Duration{"/metrics": scrapeTimeout, "/debug/pprof/heap": profileTimeout} {
		w := &recorder{ResponseRecorder: httptest.NewRecorder()}
		before := time.Now()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.deadline.Before(before.Add(want)) || w.deadline.After(time.Now().Add(want)) {
			t.Errorf("%s has its deadline in %s, want %s", path, w.deadline.Sub(before), want)
		}
	}
}

// TestConnectionsAreBounded opens the maximum number of idle connections. One more is served when one of them ends.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	at, done := make(chan net.Addr, 1), make(chan struct{})
	s := &Server{Address: "127.0.0.1:0", Gatherer: registry(), listening: func(a net.Addr) { at <- a }}
	go func() { defer close(done); s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	address := (<-at).String()
	ask := func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, len("HTTP/1.1 200")))
		return err
	}
	var open []net.Conn
	for range maxConnections + 1 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // the test is over
		if open = append(open, conn); len(open) > maxConnections {
			break
		}
		if err := ask(conn); err != nil {
			t.Fatal(err)
		}
	}
	last := open[maxConnections]
	_ = last.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if err := ask(last); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("want no response while %d connections are open, got %v", maxConnections, err)
	}
	_ = open[0].Close()
	_ = last.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(last, make([]byte, 1)); err != nil {
		t.Errorf("want a response when one has ended, got %v", err)
	}
}

func TestOff(t *testing.T) {
	t.Parallel()
	(&Server{Address: AddressOff, Gatherer: registry(), listening: func(net.Addr) { t.Error("it listens") }}).Run(
		t.Context(),
	)
}
