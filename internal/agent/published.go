package agent

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// offerInterval is how often the offer is updated. All inputs are in memory.
const offerInterval = 2 * time.Second

// loginOffer creates the login information that the proxy serves.
type loginOffer struct {
	issuer  func(context.Context) (*configv1alpha1.CredentialIssuer, bool, error)
	client  client.Reader
	synced  func(context.Context) bool                                             // waits until client is ready
	bundle  func(context.Context, *authenticationv1alpha1.TLSSpec) ([]byte, error) // of a JWTAuthenticator
	serving func() *serving.Certificate
	suffix  string
}

// run updates the offer until ctx ends.
func (o *loginOffer) run(ctx context.Context, publish func(*logininfo.Offer)) {
	if !o.synced(ctx) {
		return
	}
	logged := ""
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		offer, err := o.make(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			logs.Warn(ctx, "Failed to serve kubeconfigs", "problem", logged)
		}
		publish(offer)
	}, offerInterval)
}

// make returns the offer, or nil when the spec has none or the proxy is not published.
func (o *loginOffer) make(ctx context.Context) (*logininfo.Offer, error) {
	issuer, found, err := o.issuer(ctx)
	if err != nil || !found || issuer.Spec.ImpersonationProxy == nil ||
		issuer.Spec.ImpersonationProxy.Kubeconfig == nil {
		return nil, err
	}
	var published *configv1alpha1.ImpersonationProxyInfo
	for _, strategy := range issuer.Status.Strategies {
		if strategy.Type == configv1alpha1.StrategyImpersonationProxy && strategy.Frontend != nil {
			published = strategy.Frontend.ImpersonationProxyInfo
		}
	}
	if published == nil {
		return nil, nil
	}
	spec := issuer.Spec.ImpersonationProxy.Kubeconfig
	info := logininfo.Info{
		ClusterName: spec.ClusterName, Endpoint: published.Endpoint, APIGroupSuffix: o.suffix,
	}
	if info.CABundle, err = base64.StdEncoding.DecodeString(published.CertificateAuthorityData); err != nil {
		return nil, fmt.Errorf("decoding the CA bundle: %w", err)
	}
	for _, login := range spec.Logins {
		one := logininfo.Login{
			Name: login.Name, Authenticator: login.Authenticator, RefreshTrustBundle: login.RefreshTrustBundle,
		}
		if login.OIDC != nil {
			if one.OIDC, err = o.oidc(ctx, &login); apierrors.IsNotFound(err) {
				continue // reported in the status
			}
			if err != nil {
				return nil, fmt.Errorf("reading JWTAuthenticator %q of login %q: %w", login.Authenticator.Name, login.Name, err)
			}
		}
		info.Logins = append(info.Logins, one)
	}
	return logininfo.NewOffer(info, spec.InstallHint, o.verifying(info.CABundle))
}

// oidc returns the settings of a login's JWTAuthenticator.
func (o *loginOffer) oidc(ctx context.Context, login *configv1alpha1.KubeconfigLogin) (*logininfo.OIDC, error) {
	var jwt authenticationv1alpha1.JWTAuthenticator
	if err := o.client.Get(ctx, types.NamespacedName{Name: login.Authenticator.Name}, &jwt); err != nil {
		return nil, err
	}
	bundle, err := o.bundle(ctx, jwt.Spec.TLS)
	return &logininfo.OIDC{
		KubeconfigOIDC: *login.OIDC, Issuer: jwt.Spec.Issuer, Audience: jwt.Spec.Audience, CABundle: bundle,
	}, err
}

// verifying returns the fingerprints of the CAs in the bundle that verify the current certificate, or of all if none
// does.
func (o *loginOffer) verifying(bundle []byte) []string {
	members, _ := certs.ParseBundle(bundle)
	var chain []*x509.Certificate
	if now := o.serving(); now != nil {
		for _, der := range now.Certificate.Certificate {
			if certificate, err := x509.ParseCertificate(der); err == nil {
				chain = append(chain, certificate)
			}
		}
	}
	if anchors := (trustbundle.Policy{Now: time.Now}).Anchors(chain, "", members); len(anchors) > 0 {
		members = anchors
	}
	fingerprints := make([]string, len(members))
	for i, member := range members {
		fingerprints[i] = certs.Fingerprint(member.Raw)
	}
	return fingerprints
}

const (
	enabled  = "enabled"
	disabled = "disabled"
)

// publishedBundle is the CA bundle in the status of the CredentialIssuer, as this replica's informer has it, and its
// document.
type publishedBundle struct {
	bundle   []byte
	found    bool
	document atomic.Value // []byte; nil while there is none
}

// set stores the bundle; found is false while none is published. It is not safe for concurrent use.
func (a *publishedBundle) set(bundle []byte, found bool) {
	if found == a.found && bytes.Equal(bundle, a.bundle) {
		return
	}
	a.bundle, a.found = bundle, found
	var document []byte
	if found {
		var err error
		if document, err = trustbundle.Encode(bundle); err != nil {
			klog.Background().Error(err, "Failed to publish the CA bundle")
		}
	}
	a.document.Store(document)
}

// get returns the document, or nil while there is none.
func (a *publishedBundle) get() []byte {
	document, _ := a.document.Load().([]byte)
	return document
}

// used records that a client uses the proxy of this replica.
func (a *agent) used(name string) {
	if usage, serving := a.usage.Load(), a.holder.Current(); usage != nil && serving != nil {
		usage.Note(name, serving.Certificate.Leaf)
	}
}

// trustBundle returns the source of the trust bundle endpoint's document, or nil if the endpoint is disabled.
func (a *agent) trustBundle() func() []byte {
	if a.config.TrustBundleEndpoint == disabled {
		return nil
	}
	return a.bundle.get
}
