package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

const (
	// baselineVariable is the environment variable that makes this program the baseline. It is the path of its
	// configuration.
	baselineVariable = "PINNIPED_BENCH_BASELINE"
	// proxyAccount is a service account that may impersonate.
	proxyAccount  = "pinniped-concierge-impersonation-proxy"
	servingSecret = "pinniped-concierge-impersonation-proxy-tls-serving-certificate"
)

// baselineConfig is the configuration of the baseline.
type baselineConfig struct {
	Listen           string
	Certificate, Key []byte
	Server           string
	ServerCA         []byte
	Authorization    string
}

type baselineProcess struct {
	*devcluster.Program
	address string
}

// ProxyAddress returns the address that it listens on.
func (p *baselineProcess) ProxyAddress() string { return p.address }

// startBaseline starts the baseline: a reverse proxy of net/http without checks and limits.
func (e *environment) startBaseline(ctx context.Context) (*baselineProcess, error) {
	account, err := e.Cluster.ServiceAccountConfig(ctx, devinstall.Namespace, proxyAccount)
	if err != nil {
		return nil, err
	}
	serving, err := e.admin.CoreV1().Secrets(devinstall.Namespace).Get(ctx, servingSecret, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the agent's serving certificate: %w", err)
	}
	port, err := e.Cluster.ReservePort()
	if err != nil {
		return nil, err
	}
	config := baselineConfig{
		Listen:      net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Certificate: serving.Data["tls.crt"], Key: serving.Data["tls.key"],
		Server: account.Host, ServerCA: e.Cluster.CABundle(), Authorization: "Bearer " + account.BearerToken,
	}
	content, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(e.dir, "baseline.json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return nil, fmt.Errorf("writing the baseline's configuration: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := e.Cluster.StartProgram(ctx, devcluster.ProgramOptions{
		Name: "baseline", Path: self, Env: append([]string{baselineVariable + "=" + path}, e.AgentEnv...),
		Ready: devcluster.Listening(config.Listen),
	})
	if err != nil {
		return nil, err
	}
	return &baselineProcess{program, config.Listen}, nil
}

// serveBaseline runs the baseline process. It does not verify client certificates: only the bench reaches it.
func serveBaseline(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the baseline's configuration: %w", err)
	}
	var config baselineConfig
	if err := json.Unmarshal(content, &config); err != nil {
		return fmt.Errorf("reading the baseline's configuration: %w", err)
	}
	certificate, err := tls.X509KeyPair(config.Certificate, config.Key)
	if err != nil {
		return fmt.Errorf("reading the serving certificate: %w", err)
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
				return
			}
			subject := pr.In.TLS.PeerCertificates[0].Subject
			pr.Out.Header[transport.ImpersonateUserHeader] = []string{subject.CommonName}
			pr.Out.Header[transport.ImpersonateGroupHeader] = append([]string{"system:authenticated"}, subject.Organization...)
			pr.Out.Header["Authorization"] = []string{config.Authorization}
		},
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2: true, DisableCompression: true,
		},
		FlushInterval: -1,
	}
	listener := &http.Server{
		Addr: config.Listen, Handler: proxy, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
		},
	}
	return fmt.Errorf("serving the baseline: %w", listener.ListenAndServeTLS("", ""))
}
