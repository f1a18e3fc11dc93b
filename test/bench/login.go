package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	authenticatorName = "bench"
	staticToken       = "any"
	loginsAtOnce      = 20
)

// webhook is a server that the agent or the API server asks.
type webhook struct {
	server *http.Server
	url    string
	ca     []byte
}

func startWebhook(ctx context.Context, address string, handler http.HandlerFunc) (*webhook, error) {
	now := time.Now()
	ca, err := certs.NewCA("bench", now, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	pair, err := ca.IssueServing(certs.SANs{IPAddresses: []net.IP{net.ParseIP(address)}}, now, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, err
	}
	h := &webhook{url: "https://" + listener.Addr().String(), ca: ca.CertPEM()}
	h.server = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ErrorLog:          log.New(io.Discard, "", 0), // the agent goes away first
		Handler:           handler,
	}
	go func() { _ = h.server.ServeTLS(listener, "", "") }()
	return h, nil
}

// openLogin makes a webhook that vouches for everybody, and returns when users can log in by it.
func (w *world) openLogin(ctx context.Context) error {
	if w.webhook != nil {
		return nil
	}
	answer, err := json.Marshal(authenticationv1beta1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1beta1", Kind: "TokenReview"},
		Status: authenticationv1beta1.TokenReviewStatus{
			Authenticated: true, User: authenticationv1beta1.UserInfo{Username: "pinny", Groups: []string{group}},
		},
	})
	if err != nil {
		return err
	}
	// It vouches for every token, at no cost worth measuring.
	w.webhook, err = startWebhook(ctx, w.network.listenAddress(), func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	})
	if err != nil {
		return fmt.Errorf("starting a webhook: %w", err)
	}
	resource := schema.GroupVersionResource{
		Group:    "authentication.concierge.pinniped.dev",
		Version:  "v1alpha1",
		Resource: "webhookauthenticators",
	}
	err = w.create(ctx, resource, map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": "WebhookAuthenticator",
		"metadata": map[string]any{"name": authenticatorName},
		"spec": map[string]any{
			"endpoint": w.webhook.url,
			"tls":      map[string]any{"certificateAuthorityData": base64.StdEncoding.EncodeToString(w.webhook.ca)},
		},
	})
	if err != nil {
		return fmt.Errorf("making the authenticator: %w", err)
	}
	c, err := w.anonymousClient(1)
	if err != nil {
		return err
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return poll(ctx, "the authenticator", func() error { return logIn(ctx, c, 0) })
}

// anonymousClient is for those who have no credential yet, through the proxy.
func (w *world) anonymousClient(connections int) (*client, error) {
	return newClient(rest.AnonymousClientConfig(w.throughProxy(w.Cluster.AdminConfig())), connections)
}

const credentialRequests = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests"

// logIn exchanges a token for a credential.
func logIn(ctx context.Context, c *client, connection int) error {
	return logInAs(ctx, c, connection, loginBody(authenticatorName, staticToken))
}

// loginBody asks an authenticator for a credential.
func loginBody(authenticator, token string) string {
	return fmt.Sprintf(
		`{"apiVersion":"login.concierge.pinniped.dev/v1alpha1","kind":"TokenCredentialRequest","spec":{"token":%q,`+
			`"authenticator":{"apiGroup":"authentication.concierge.pinniped.dev","kind":"WebhookAuthenticator","name":%q}}}`,
		token,
		authenticator,
	)
}

func logInAs(ctx context.Context, c *client, connection int, body string) error {
	answer, err := c.open(
		ctx,
		connection,
		request{method: http.MethodPost, path: credentialRequests, body: []byte(body), want: http.StatusCreated},
	)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read to its end
	var got struct {
		Status struct {
			Credential *struct{} `json:"credential"`
			Message    string    `json:"message"`
		} `json:"status"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil {
		return fmt.Errorf("reading the credential: %w", err)
	}
	if got.Status.Credential == nil {
		return fmt.Errorf("no credential was given: %s", got.Status.Message)
	}
	return nil
}

// measureLogin exchanges tokens, one after the other and all at once.
func measureLogin(ctx context.Context, w *world, r *report) error {
	if err := w.openLogin(ctx); err != nil {
		return err
	}
	c, err := w.anonymousClient(loginsAtOnce)
	if err != nil {
		return err
	}
	defer c.close()
	var single, all []time.Duration
	for round := range w.options.Rounds + 1 {
		for range loginsAtOnce {
			began := time.Now()
			if err := logIn(ctx, c, 0); err != nil {
				return err
			}
			if round > 0 { // the first makes connections
				single = append(single, time.Since(began))
			}
		}
		began := time.Now()
		if err := parallel(ctx, loginsAtOnce, loginsAtOnce, func(i int) error { return logIn(ctx, c, i) }); err != nil {
			return err
		}
		if round > 0 {
			all = append(all, time.Since(began))
		}
	}
	r.addFigure(
		"login",
		proxied,
		figure{
			name:   "TokenCredentialRequest, one after the other, each",
			unit:   "ms",
			value:  median(milliseconds(single)),
			atMost: 4,
		},
	)
	r.addFigure(
		"login",
		proxied,
		figure{name: "TokenCredentialRequest, 20 at once, all", unit: "ms", value: median(milliseconds(all)), atMost: 40},
	)
	return nil
}
