package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

// floor is the value of -other for a reverse proxy of net/http and nothing else: what a proxy in Go costs that checks
// nothing, asks nobody and bounds nothing.
const floor = "floor"

// floorVariable is set in the environment of that proxy, which is this same program started again. Its value is the path
// of its configuration.
const floorVariable = "PINNIPED_BENCH_FLOOR"

// The account that may impersonate, and the certificate that the agent serves with.
const (
	proxyAccount = "pinniped-concierge-impersonation-proxy"
	servedSecret = "pinniped-concierge-impersonation-proxy-tls-serving-certificate"
)

// floorConfig is what the floor needs to know.
type floorConfig struct {
	Listen                  string
	Certificate, Key        []byte
	Server, ServerName      string
	ServerCA, Authorization []byte
}

// build is a program that clients reach the API through.
type build interface {
	PID() int
	Log() string
	ProxyAddress() string
}

type floorProgram struct {
	*devcluster.Program
	address string
}

// ProxyAddress is where it listens.
func (p *floorProgram) ProxyAddress() string { return p.address }

// startFloor starts the floor where the agent runs. The name is that of its files.
func (w *world) startFloor(ctx context.Context, name string) (*floorProgram, error) {
	account, err := w.Cluster.ServiceAccountConfig(ctx, devinstall.Namespace, proxyAccount)
	if err != nil {
		return nil, err
	}
	served, err := w.admin.CoreV1().Secrets(devinstall.Namespace).Get(ctx, servedSecret, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the agent's certificate: %w", err)
	}
	port, err := w.Cluster.ReservePort()
	if err != nil {
		return nil, err
	}
	place := cmp.Or(w.Place, &devinstall.Place{Address: "127.0.0.1", Server: account.Host})
	config := floorConfig{
		Listen:      net.JoinHostPort(place.Address, strconv.Itoa(port)),
		Certificate: served.Data["tls.crt"], Key: served.Data["tls.key"],
		Server: place.Server, ServerName: devinstall.ServerName, ServerCA: w.Cluster.CABundle(),
		Authorization: []byte("Bearer " + account.BearerToken),
	}
	content, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	path := w.file(name + ".json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return nil, fmt.Errorf("writing the floor's configuration: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := append(append([]string{}, place.Enter...), self)
	program, err := w.Cluster.StartProgram(ctx, devcluster.ProgramOptions{
		Name: name, Path: command[0], Args: command[1:], Env: []string{floorVariable + "=" + path},
		Ready: func(ctx context.Context) error {
			dial := w.network.dialer()
			if dial == nil {
				dial = (&net.Dialer{}).DialContext
			}
			conn, err := dial(ctx, "tcp", config.Listen)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	})
	if err != nil {
		return nil, err
	}
	return &floorProgram{program, config.Listen}, nil
}

// isFloor reports whether this process is the floor.
func isFloor() bool { return os.Getenv(floorVariable) != "" }

// beFloor is for the process of the floor. It serves until it is ended.
func beFloor() int {
	err := serveFloor(os.Getenv(floorVariable))
	_, _ = fmt.Fprintln(os.Stderr, "error:", err)
	return exitFailed
}

func serveFloor(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the floor's configuration: %w", err)
	}
	var config floorConfig
	if err := json.Unmarshal(content, &config); err != nil {
		return fmt.Errorf("reading the floor's configuration: %w", err)
	}
	certificate, err := tls.X509KeyPair(config.Certificate, config.Key)
	if err != nil {
		return fmt.Errorf("reading the agent's certificate: %w", err)
	}
	server, err := url.Parse(config.Server)
	if err != nil {
		return fmt.Errorf("reading the API server's address: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.ServerCA)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(server)
			if len(pr.In.TLS.PeerCertificates) == 0 {
				return // the API server knows the token
			}
			// The certificate is not verified. The floor is reached by the bench alone.
			who := pr.In.TLS.PeerCertificates[0].Subject
			pr.Out.Header[transport.ImpersonateUserHeader] = []string{who.CommonName}
			pr.Out.Header[transport.ImpersonateGroupHeader] = append([]string{"system:authenticated"}, who.Organization...)
			pr.Out.Header["Authorization"] = []string{string(config.Authorization)}
		},
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{
				RootCAs: roots, ServerName: config.ServerName, MinVersion: tls.VersionTLS12,
			},
			ForceAttemptHTTP2:  true,
			DisableCompression: true,
		},
		FlushInterval: -1,
	}
	listener := &http.Server{
		Addr: config.Listen, Handler: proxy, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
		},
	}
	if err := listener.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the floor: %w", err)
	}
	return nil
}
