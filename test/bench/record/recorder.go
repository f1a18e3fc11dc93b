package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/bench/recording"
)

// recorder stands between clients and the API server, to which it is the admin. Clients tell their names as bearer
// tokens, so that it knows who asked.
type recorder struct {
	server *http.Server
	url    string
	ca     []byte

	mu   sync.Mutex
	kept []*recording.Request
}

func newRecorder(ctx context.Context, admin *rest.Config) (*recorder, error) {
	target, err := url.Parse(admin.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's address: %w", err)
	}
	transport, err := rest.TransportFor(admin)
	if err != nil {
		return nil, fmt.Errorf("making the recorder's transport: %w", err)
	}
	now := time.Now()
	ca, err := certs.NewCA("recorder", now, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	pair, err := ca.IssueServing(certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, now, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &recorder{url: "https://" + listener.Addr().String(), ca: ca.CertPEM()}
	quiet := log.New(io.Discard, "", 0) // clients that go away in the middle of a watch are no news
	r.server = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ErrorLog:          quiet,
		Handler: r.record(&httputil.ReverseProxy{
			Rewrite: func(pr *httputil.ProxyRequest) {
				pr.SetURL(target)
				pr.Out.Header.Del("Authorization")
			},
			Transport:     transport,
			FlushInterval: -1,
			ErrorLog:      quiet,
		}),
	}
	go func() { _ = r.server.ServeTLS(listener, "", "") }()
	return r, nil
}

// record keeps each request in the order in which it came.
func (r *recorder) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		one := &recording.Request{
			Client:      strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "),
			Method:      req.Method,
			URI:         req.URL.RequestURI(),
			Accept:      req.Header.Get("Accept"),
			Gzip:        strings.Contains(req.Header.Get("Accept-Encoding"), "gzip"),
			ContentType: req.Header.Get("Content-Type"),
		}
		one.SetBody(body)
		r.mu.Lock()
		r.kept = append(r.kept, one)
		r.mu.Unlock()
		next.ServeHTTP(&codeWriter{ResponseWriter: w, seen: func(code int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			one.Status = code
		}}, req)
	})
}

// codeWriter tells the code of an answer.
type codeWriter struct {
	http.ResponseWriter
	seen func(code int)
}

func (w *codeWriter) WriteHeader(code int) {
	w.seen(code)
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets the reverse proxy flush.
func (w *codeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// config is that of a client with this name.
func (r *recorder) config(name string) *rest.Config {
	return &rest.Config{Host: r.url, BearerToken: name, TLSClientConfig: rest.TLSClientConfig{CAData: r.ca}}
}

// requests are those that were answered.
func (r *recorder) requests() []recording.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var answered []recording.Request
	for one := range slices.Values(r.kept) {
		if one.Status != 0 {
			answered = append(answered, *one)
		}
	}
	return answered
}

func (r *recorder) close() { _ = r.server.Close() }
