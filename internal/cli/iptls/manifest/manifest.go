// Package manifest implements `pinniped ip-tls manifest`, which prints manifests for the CredentialIssuer: a
// cert-manager Certificate, or a route through an ingress to the impersonation proxy.
package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The values of --for.
const (
	forCertManager  = "cert-manager"
	forContour      = "contour"
	forGatewayAPI   = "gateway-api"
	forIngressNginx = "ingress-nginx"
)

func targets() []string { return []string{forCertManager, forContour, forGatewayAPI, forIngressNginx} }

// The values of --key-algorithm.
const (
	algorithmECDSA = "ecdsa"
	algorithmRSA   = "rsa"
)

// defaultSecret is the Secret for the certificate if none is named.
const defaultSecret = "proxy-tls"

// Options holds the inputs of `pinniped ip-tls manifest`; a test fills it directly.
type Options struct {
	Session          *session.Session
	For              string
	Issuer           string // KIND/NAME, or KIND.GROUP/NAME
	Secret           string
	ExternalEndpoint string
	KeyAlgorithm     string
	Gateway          string // [NAMESPACE/]NAME

	issuer issuerRef
	unread bool // the configured Secret could not be read
}

// NewCommand returns `pinniped ip-tls manifest`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{Session: session.New(f)}
	cmd := &cobra.Command{
		Use:   "manifest",
		Short: "Print a Certificate or ingress route for the proxy",
		Long: `Print a manifest that fits the CredentialIssuer, for "kubectl apply" or GitOps. The command changes nothing.
--for selects the kind:

  - cert-manager: a Certificate with every name that clients use, signed by --issuer. It uses the Secret in --secret,
    or else one that is not in service, so that nothing changes for clients until you run "pinniped ip-tls set"
  - contour: an HTTPProxy
  - gateway-api: a TLSRoute
  - ingress-nginx: an Ingress

The last three pass TLS through to the impersonation proxy, so that client certificates reach it. They need
spec.impersonationProxy.service.type ClusterIP.

A Certificate also has the names of the certificate in service, so that existing kubeconfigs keep working. It omits the
addresses of a load balancer behind an external endpoint, because clients do not use them and a public CA does not
certify them. If the Secret is the one in service, the command says that cert-manager will overwrite it.

Exit codes: 0 printed (see "pinniped help exit-codes")`,
		Example: `  # A certificate by cert-manager
  pinniped ip-tls manifest --issuer ClusterIssuer/company-ca --external-endpoint proxy.example.com | kubectl apply -f -
  pinniped ip-tls set --secret proxy-tls --external-endpoint proxy.example.com

  # A route through Contour to a proxy without a load balancer of its own
  pinniped ip-tls manifest --for contour --external-endpoint proxy.example.com | kubectl apply -f -`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return factory.Execute(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.For, "for", forCertManager, "what to print: "+strings.Join(targets(), ", "))
	flags.StringVar(&o.Issuer, "issuer", "",
		"cert-manager's issuer: Issuer/NAME, ClusterIssuer/NAME, or KIND.GROUP/NAME of another controller")
	flags.StringVar(&o.Secret, "secret", "",
		"Secret for the certificate: NAME in the agent's namespace, or NAMESPACE/NAME "+
			"(default: "+defaultSecret+", or "+defaultSecret+"-2 and so on if the one before is in service)")
	flags.StringVar(&o.ExternalEndpoint, "external-endpoint", "",
		"where clients will reach the impersonation proxy: HOST or HOST:PORT (default: as configured)")
	flags.StringVar(&o.KeyAlgorithm, "key-algorithm", algorithmECDSA,
		"key algorithm of the certificate: "+algorithmECDSA+", or "+algorithmRSA+" for clients that support only RSA")
	flags.StringVar(&o.Gateway, "gateway", "", "with --for "+forGatewayAPI+": the Gateway, [NAMESPACE/]NAME")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"for":               factory.CompleteValues(targets()...),
		"key-algorithm":     factory.CompleteValues(algorithmECDSA, algorithmRSA),
		"issuer":            cobra.NoFileCompletions,
		"external-endpoint": cobra.NoFileCompletions,
		"gateway":           cobra.NoFileCompletions,
	})
	o.Session.AddFlags(cmd, f, 30*time.Second, "yaml", "json")
	o.Session.CompleteSecrets(cmd, f)
	return cmd
}

// Validate checks the flags.
func (o *Options) Validate() error {
	err := cmp.Or(o.Session.Validate("yaml", "json"), factory.CheckOneOf("for", o.For, targets()...),
		factory.CheckOneOf("key-algorithm", o.KeyAlgorithm, algorithmECDSA, algorithmRSA),
		session.ValidateEndpoint("external-endpoint", o.ExternalEndpoint))
	switch {
	case err != nil:
		return err
	case o.For == forCertManager && o.Issuer == "":
		return ui.WithHint(ui.Usage(errors.New("--issuer is missing")),
			"name the issuer that signs the certificate: --issuer ClusterIssuer/NAME "+
				`("kubectl get issuers,clusterissuers --all-namespaces" lists them)`)
	case o.For != forCertManager && o.Issuer != "":
		return ui.Usage(fmt.Errorf("--issuer applies only to --for %s", forCertManager))
	case o.For == forGatewayAPI && o.Gateway == "":
		return ui.WithHint(ui.Usage(errors.New("--gateway is missing")),
			"name the Gateway that clients reach: --gateway NAMESPACE/NAME")
	case o.For != forGatewayAPI && o.Gateway != "":
		return ui.Usage(fmt.Errorf("--gateway applies only to --for %s", forGatewayAPI))
	}
	o.issuer, err = parseIssuer(o.Issuer)
	return err
}

// parseIssuer parses KIND/NAME. cert-manager's own kinds may be in lower case.
func parseIssuer(text string) (issuerRef, error) {
	if text == "" {
		return issuerRef{}, nil
	}
	kind, name, found := strings.Cut(text, "/")
	kind, group, foreign := strings.Cut(kind, ".")
	if !found || kind == "" || name == "" || strings.Contains(name, "/") || foreign && group == "" {
		return issuerRef{}, ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --issuer", text)),
			"write Issuer/NAME, ClusterIssuer/NAME, or KIND.GROUP/NAME of another controller")
	}
	if foreign {
		return issuerRef{Kind: kind, Name: name, Group: group}, nil
	}
	for _, known := range []string{"Issuer", "ClusterIssuer"} {
		if strings.EqualFold(kind, known) {
			return issuerRef{Kind: known, Name: name, Group: "cert-manager.io"}, nil
		}
	}
	return issuerRef{}, ui.WithHint(
		ui.Usage(fmt.Errorf("invalid value %q for --issuer: cert-manager has no kind %q", text, kind)),
		"write Issuer/NAME or ClusterIssuer/NAME; a kind of another controller needs its API group: %s.GROUP/%s", kind, name)
}

// Complete loads the kubeconfig.
func (o *Options) Complete() error { return o.Session.Open() }

// Run reads the CredentialIssuer and prints the manifest.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	request := plan.Request{Secret: o.Secret}
	if o.ExternalEndpoint != "" {
		request.Endpoint = &o.ExternalEndpoint
	}
	if err := o.Session.Locate(ctx, &request); err != nil {
		return session.WithCodes(err)
	}
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return err
	}
	st := &plan.Snapshot{Issuer: issuer}
	if st.Service, err = o.Session.Service(ctx, issuer, request.Namespace); err != nil {
		return err
	}
	if tls := st.Issuer.Spec.ImpersonationProxy.TLS; tls != nil && o.For == forCertManager {
		// The status has most of what is in service, so a user who may not read the Secret can continue without.
		if name, err := delegation.SecretName(tls.SecretName, request.Namespace); err == nil {
			st.Secret, err = session.ReadSecret(ctx, o.Session.Cluster, name.Namespace, name.Name)
			o.unread = err != nil
		}
	}
	made, err := o.make(request, st)
	if err != nil {
		return err
	}
	return ui.PrintAs(o.Session.Out, o.Session.Output, made)
}

// make returns the manifest. A Certificate covers the names in use, in service and of earlier revisions in use.
func (o *Options) make(request plan.Request, st *plan.Snapshot) (map[string]any, error) {
	spec := st.Issuer.Spec.ImpersonationProxy
	if o.For != forCertManager {
		return o.route(request, st)
	}
	used := plan.Names(request, st)
	names, left := required(slices.Concat(used, inService(st)))
	if len(names) == 0 {
		return nil, ui.WithHint(errors.New("the impersonation proxy has no name that clients could use yet"),
			"set it: --external-endpoint proxy.example.com")
	}
	for _, name := range left {
		o.Session.Progress.Info("Omitted %s (%s), because kubeconfigs use %s", name.Value, name.Source,
			cmp.Or(o.ExternalEndpoint, spec.ExternalEndpoint))
	}
	known, _ := required(used)
	for _, name := range names[len(known):] {
		o.Session.Progress.Info("Added %s (%s), because kubeconfigs may use it", name.Value, name.Source)
	}
	for _, name := range names {
		if private(name.Value) {
			o.Session.Progress.Warn("%s is a private address, so an ACME issuer, like any public CA, rejects the request; "+
				"use a name: --external-endpoint proxy.example.com", name.Value)
		}
	}
	configured := ""
	if spec.TLS != nil {
		configured = spec.TLS.SecretName
	}
	secret, err := delegation.SecretName(cmp.Or(request.Secret, unused(configured)), request.Namespace)
	if err != nil {
		return nil, ui.Usage(fmt.Errorf("invalid value for --secret: %w", err))
	}
	if configured != "" && request.Secret == "" {
		o.Session.Progress.Info("The certificate goes to Secret %q. Secret %q stays in service until you run: pinniped "+
			"ip-tls set --secret %s (to have cert-manager write to the Secret in service instead, pass --secret %s)",
			secret.Name, configured, secret.Name, configured)
	}
	now, err := delegation.SecretName(configured, request.Namespace)
	if err == nil && now == secret && (o.unread || st.Secret != nil) {
		o.warnOfOverwriting(secret, st.Secret)
	}
	return certificate(secret, names, o.issuer, o.KeyAlgorithm), nil
}

// unused returns a name for a Secret that is not configured: the default, or the default with the next number.
func unused(configured string) string {
	if configured == defaultSecret {
		return defaultSecret + "-2"
	}
	number, numbered := strings.CutPrefix(configured, defaultSecret+"-")
	if n, err := strconv.Atoi(number); numbered && err == nil && n > 1 {
		return defaultSecret + "-" + strconv.Itoa(n+1)
	}
	return defaultSecret
}

// private reports whether a name is an IP address that no public CA issues certificates for.
func private(name string) bool {
	ip, err := netip.ParseAddr(name)
	return err == nil && (ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast())
}

// inService returns the names in the certificate in service, in the configured Secret's certificate, and of revisions
// in use. It leaves out a generated certificate, which covers only names that clients use.
func inService(st *plan.Snapshot) []certs.Name {
	var names []certs.Name
	add := func(source string, values ...string) {
		for _, value := range values {
			names = append(names, certs.Name{Value: value, Source: source})
		}
	}
	serving := st.Issuer.Status.ServingCertificate
	if serving != nil && serving.Source == configv1alpha1.ServingCertificateSecret {
		add("the certificate in service covers it", serving.DNSNames...)
		add("the certificate in service covers it", serving.IPAddresses...)
	}
	for _, revision := range st.Issuer.Status.Revisions {
		if revision.Until != nil && revision.LastUsed == nil {
			continue // no clients
		}
		for _, name := range revision.Names {
			// A private address that no client is known to have used: a public CA would refuse the request.
			if private(name) && revision.LastUsed == nil {
				continue
			}
			add("a revision published it", name)
		}
	}
	if st.Secret == nil {
		return names
	}
	if chain, _ := certs.ParseBundle(st.Secret.Data[corev1.TLSCertKey]); len(chain) > 0 {
		source := fmt.Sprintf("the certificate in Secret %s/%s covers it", st.Secret.Namespace, st.Secret.Name)
		add(source, chain[0].DNSNames...)
		for _, ip := range chain[0].IPAddresses {
			add(source, ip.String())
		}
	}
	return names
}

// warnOfOverwriting warns if cert-manager would replace another issuer's certificate. found is nil if not readable.
func (o *Options) warnOfOverwriting(secret types.NamespacedName, found *corev1.Secret) {
	if found != nil {
		by, issuer := session.IssuedBy(found), o.issuer.Kind+" "+o.issuer.Name
		if by != nil && by.Kind == result.CertManagerCertificate && by.Name == secret.Name && by.Issuer == issuer {
			return
		}
	}
	o.Session.Progress.Warn("Secret %q is in service. As soon as you apply the manifest, cert-manager will replace its "+
		"certificate with one from %s %q. If the new certificate is from another CA, the agent serves it only when all "+
		"kubeconfigs in use verify it, unless caTransition is Immediate. With another Secret (--secret), nothing changes "+
		"until you run \"pinniped ip-tls set\"", secret, o.issuer.Kind, o.issuer.Name)
}

func (o *Options) route(request plan.Request, st *plan.Snapshot) (map[string]any, error) {
	spec := st.Issuer.Spec.ImpersonationProxy
	endpoint := cmp.Or(o.ExternalEndpoint, spec.ExternalEndpoint)
	host, _, err := certs.ParseEndpoint(endpoint)
	if err != nil {
		return nil, ui.WithHint(errors.New("the CredentialIssuer has no external endpoint, which the route needs"),
			"set it: --external-endpoint proxy.example.com")
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil, ui.WithHint(
			fmt.Errorf("the external endpoint %q is an IP address, but an ingress routes by host name", endpoint),
			"use a DNS name of the ingress: --external-endpoint proxy.example.com")
	}
	if kind := plan.ServiceType(spec); kind != configv1alpha1.ServiceTypeClusterIP {
		o.Session.Progress.Warn("spec.impersonationProxy.service.type is %s, so the route has no backend until the type is "+
			"ClusterIP. Change it: pinniped ip-tls set --service-type ClusterIP --mode enabled", kind)
	}
	objects, _ := discovery.Objects(st.Issuer, request.Namespace)
	name := types.NamespacedName{Namespace: objects.Namespace, Name: "impersonation-proxy"}
	switch o.For {
	case forContour:
		return httpProxy(name, host, objects.ClusterIPService), nil
	case forGatewayAPI:
		return tlsRoute(name, host, objects.ClusterIPService, o.Gateway), nil
	default:
		return ingress(name, host, objects.ClusterIPService), nil
	}
}
