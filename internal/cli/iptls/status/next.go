package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Place has the names and facts for NextCommands.
type Place struct {
	Namespace string // the agent's
	Issuer    string // name of the CredentialIssuer for kubectl
	Secret    string // NAME or NAMESPACE/NAME as in the spec
	Service   string
	Endpoint  string // HOST:PORT

	Undo        bool            // "ip-tls undo" helps
	LosesSome   bool            // undo would break clients that work now
	Renewer     *result.Renewer // the controller that fills the Secret; nil if unknown
	OnlyBundle  bool            // the Secret's certificate is in service, so only the CA bundle is wrong
	OwnBundle   bool            // ca.crt of the Secret differs from the CA bundle in the spec
	Renewal     bool            // the prepared certificate is in the same Secret as the one in service
	Kubeconfigs []string        // the values of --kubeconfigs
}

// NextCommands returns the commands to run for a problem with this code. FILE, NAME and the like are placeholders for
// what only the administrator knows.
func NextCommands(code string, at Place) []string {
	secret, inNamespace := cmp.Or(at.Secret, "NAME"), " --namespace="+at.Namespace
	replace := fmt.Sprintf("pinniped ip-tls set --secret %s --cert FILE --key FILE", secret)
	var certificate string // of cert-manager, as arguments of kubectl
	if at.Renewer != nil && at.Renewer.Kind == result.CertManagerCertificate {
		namespace := at.Namespace
		if other, _, found := strings.Cut(at.Secret, "/"); found {
			namespace = other
		}
		certificate = fmt.Sprintf("%s --namespace=%s", at.Renewer.Name, namespace)
		replace = "kubectl describe certificate " + certificate
	}
	pods := "kubectl get pods" + inNamespace
	switch certs.Code(code) {
	case "":
		return []string{"pinniped ip-tls check", "pinniped ip-tls status"}
	case certs.EndpointUnreachable:
		return []string{pods, "kubectl get service,endpointslice" + inNamespace}
	case codeEndpointMoved:
		if at.Undo {
			return []string{"pinniped ip-tls undo"}
		}
		return []string{"pinniped get kubeconfig"}
	case certs.EndpointServesOther:
		return []string{"pinniped ip-tls check --endpoint " + at.Endpoint}
	case certs.BundleDoesNotVerify:
		switch {
		case at.OnlyBundle && at.OwnBundle:
			return []string{fmt.Sprintf("pinniped ip-tls set --secret %s --ca-from-secret", secret)}
		case at.OnlyBundle && at.Undo:
			return []string{"pinniped ip-tls undo"}
		case at.OnlyBundle:
			return []string{fmt.Sprintf("pinniped ip-tls set --secret %s --ca-bundle FILE", secret)}
		}
		return []string{replace}
	case certs.Expired, certs.ExpiresSoon, certs.SecretNotFound:
		return []string{replace}
	case certs.OldClientsBreak:
		return []string{"pinniped kubeconfig rotate " + cmp.Or(strings.Join(at.Kubeconfigs, " "), "FILE")}
	case configv1alpha1.CodeTransitionPrepared:
		switch {
		case !at.Renewal: // it is a configuration change
			return []string{"pinniped ip-tls history", "pinniped ip-tls undo"}
		case certificate != "":
			return []string{"pinniped ip-tls history", "kubectl edit certificates/" + certificate}
		}
		return []string{"pinniped ip-tls history", replace + " --ca-bundle FILE"}
	case codeGeneratedServes: // restore the certificate that was in service before
		switch {
		case !at.Undo:
			return []string{"pinniped ip-tls history"}
		case at.LosesSome:
			return []string{"pinniped ip-tls undo --allow " + string(certs.OldClientsBreak)}
		}
		return []string{"pinniped ip-tls undo"}
	case codeNoResponse:
		return []string{"kubectl get --raw=/readyz", pods}
	case certs.NameNotCovered, certs.NoNames:
		issuer := "ClusterIssuer/NAME"
		if at.Renewer != nil && at.Renewer.Issuer != "" {
			issuer = strings.Replace(at.Renewer.Issuer, " ", "/", 1)
		}
		return []string{fmt.Sprintf("pinniped ip-tls manifest --issuer %s --secret %s", issuer, secret), replace}
	case configv1alpha1.CodePermissionWithdrawn, certs.SecretNotPermitted:
		return []string{"pinniped ip-tls delegate " + secret, "pinniped explain " + secret}
	case configv1alpha1.CodePermissionUnknown:
		return []string{"pinniped explain " + secret, "pinniped ip-tls delegate " + secret}
	case configv1alpha1.CodeServiceNotApplied, configv1alpha1.CodeServiceClassDiffers,
		configv1alpha1.CodeServiceAddressPending, configv1alpha1.CodeServiceAddressInvalid:
		return []string{"kubectl describe service " + at.Service + inNamespace}
	case configv1alpha1.CodeSpecInvalid:
		return []string{"pinniped ip-tls undo", "kubectl edit " + at.Issuer}
	case configv1alpha1.CodeDisabledBySpec, configv1alpha1.CodeDisabledByNodes:
		return []string{"pinniped ip-tls set --mode enabled"}
	default:
		if slices.Contains(certs.Codes(), certs.Code(code)) {
			return []string{"pinniped ip-tls check", replace}
		}
		return []string{pods, "kubectl get events" + inNamespace}
	}
}

// next returns the commands for a code, with the names of this installation.
func (o *Options) next(ctx context.Context, l *snapshot, code string) []string {
	at := Place{
		Namespace: l.namespace, Issuer: discovery.KubectlName(l.issuer),
		Endpoint: l.view.At.String(), Renewer: l.RenewedBy, Kubeconfigs: o.KubeconfigsFrom, Service: "SERVICE",
	}
	tls, inService := l.spec.TLS, l.issuer.Status.ServingCertificate
	if tls != nil {
		at.Secret = tls.SecretName
	}
	if len(l.chain) > 0 && inService != nil && tls != nil {
		at.OnlyBundle = strings.EqualFold(certs.Fingerprint(l.chain[0].Raw), inService.SHA256)
		bundle := l.secret.Data[plan.CABundleKey]
		at.OwnBundle = len(bundle) > 0 && !plan.SameBase64(tls.CertificateAuthorityData, bundle)
	}
	if inService != nil && l.Transition != nil {
		at.Renewal = inService.SecretName != "" && inService.SecretName == l.Transition.SecretName
	}
	switch to := plan.Previous(l.history, &l.spec); {
	case to == nil:
	case code == codeGeneratedServes && !plan.ServesGenerated(to.Spec.TLS):
		at.Undo, at.LosesSome = true, o.losesSome(ctx, l, to.Spec.TLS.SecretName)
	case code == codeEndpointMoved: // undo cannot restore an address that the cloud has changed
		at.Undo = slices.ContainsFunc(l.Clients, func(s result.ClientState) bool { return s.ID == to.ID && s.Refused() }) &&
			(to.Spec.LoadBalancerIP != l.spec.Service.LoadBalancerIP || to.Spec.ServiceType != l.spec.Service.Type)
	case code == string(certs.BundleDoesNotVerify):
		at.Undo = true
	}
	if objects := l.issuer.Status.Objects; objects != nil {
		at.Service = objects.LoadBalancerService
		if l.spec.Service.Type == configv1alpha1.ServiceTypeClusterIP {
			at.Service = objects.ClusterIPService
		}
	}
	commands := NextCommands(code, at)
	if code == string(certs.OldClientsBreak) &&
		slices.ContainsFunc(l.Clients, func(s result.ClientState) bool { return s.Refused() }) {
		commands = append(commands, "pinniped ip-tls history") // to find revisions to retire
	}
	return commands
}
