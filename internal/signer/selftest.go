package signer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// selfTestUser is the user of the self-test's certificate. It is in no group but system:authenticated.
const selfTestUser = "concierge.pinniped.dev:self-test"

// selfTest gets a certificate as a login would, and asks the API server which user it authenticates.
func (c *Cluster) selfTest(ctx context.Context) error {
	pair, err := c.issue(ctx, certs.ClientIdentity{Username: selfTestUser}, minClusterLife)
	if err != nil {
		return err
	}
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	if err := c.tryCertificate(ctx, pair); err != nil {
		return fmt.Errorf("testing a certificate from the cluster's signer: %w", err)
	}
	return nil
}

// tryCertificate returns nil if the API server authenticates the user of the certificate.
func (c *Cluster) tryCertificate(ctx context.Context, pair *certs.KeyPair) error {
	config := rest.AnonymousClientConfig(c.config)
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return err
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	tlsConfig.Certificates = []tls.Certificate{certificate}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	// A separate transport, because client-go would cache one for each certificate forever.
	transport := &http.Transport{
		TLSClientConfig: tlsConfig, Proxy: proxy, DialContext: config.Dial, DisableKeepAlives: true,
		TLSHandshakeTimeout: 10 * time.Second,
	}
	client, err := authenticationv1client.NewForConfigAndClient(config, &http.Client{Transport: transport})
	if err != nil {
		return err
	}
	review, err := client.SelfSubjectReviews().
		Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), fmt.Sprintf("%q", selfTestUser)):
		return nil // the API server has authenticated the user
	case apierrors.IsNotFound(err):
		return nil // Kubernetes before 1.28 does not serve this API
	case err != nil:
		return err
	case review.Status.UserInfo.Username != selfTestUser:
		return fmt.Errorf("the API server authenticates it as %q", review.Status.UserInfo.Username)
	}
	return nil
}
