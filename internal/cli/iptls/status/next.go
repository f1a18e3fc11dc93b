package status

import (
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
	// Undo is true if "ip-tls undo" helps, LosesSome if it would break clients that work now.
	Undo, LosesSome bool
	// Renewer is the controller that fills the Secret; nil if unknown.
	Renewer *result.Renewer
	// OnlyBundle is true if the Secret's certificate is in service, so only the CA bundle is wrong. OwnBundle is true
	// if ca.crt of the Secret differs from the CA bundle in the spec.
	OnlyBundle, OwnBundle bool
	// Renewal is true if the prepared certificate is in the same Secret as the one in service.
	Renewal bool
	// Kubeconfigs are the values of --kubeconfigs.
	Kubeconfigs []string
}

// NextCommands returns the commands to run for a problem with this code. FILE, NAME and the like are placeholders for
// what only the administrator knows.
func NextCommands(code string, at Place) []string {
	secret := at.Secret
	if secret == "" {
		secret = "NAME"
	}
	namespace := "--namespace=" + at.Namespace
	replace := fmt.Sprintf("pinniped ip-tls set --secret %s --cert FILE --key FILE", secret)
	if at.Renewer != nil && at.Renewer.Kind == result.CertManagerCertificate {
		replace = fmt.Sprintf("kubectl describe certificate %s --namespace=%s", at.Renewer.Name, at.secretNamespace())
	}
	pods := "kubectl get pods " + namespace
	switch code {
	case "":
		return []string{"pinniped ip-tls check", "pinniped ip-tls status"}
	case codeAgentNotRunning:
		return []string{pods, "kubectl get events " + namespace}
	case string(certs.EndpointUnreachable):
		return []string{pods, "kubectl get service,endpointslice " + namespace}
	case codeEndpointMoved:
		if at.Undo {
			return []string{"pinniped ip-tls undo"}
		}
		return []string{"pinniped get kubeconfig"}
	case string(certs.EndpointServesOther):
		return []string{"pinniped ip-tls check --endpoint " + at.Endpoint}
	case string(certs.BundleDoesNotVerify):
		switch {
		case at.OnlyBundle && at.OwnBundle:
			return []string{fmt.Sprintf("pinniped ip-tls set --secret %s --ca-from-secret", secret)}
		case at.OnlyBundle && at.Undo:
			return []string{"pinniped ip-tls undo"}
		case at.OnlyBundle:
			return []string{fmt.Sprintf("pinniped ip-tls set --secret %s --ca-bundle FILE", secret)}
		}
		return []string{replace}
	case string(certs.Expired), string(certs.ExpiresSoon), string(certs.SecretNotFound):
		return []string{replace}
	case string(certs.OldClientsBreak):
		files := "FILE"
		if len(at.Kubeconfigs) > 0 {
			files = strings.Join(at.Kubeconfigs, " ")
		}
		return []string{"pinniped kubeconfig rotate " + files}
	case configv1alpha1.CodeTransitionPrepared:
		if !at.Renewal { // it is a configuration change
			return []string{"pinniped ip-tls history", "pinniped ip-tls undo"}
		}
		if at.Renewer != nil && at.Renewer.Kind == result.CertManagerCertificate {
			return []string{
				"pinniped ip-tls history", "kubectl edit certificates/" + at.Renewer.Name + " --namespace=" + at.secretNamespace(),
			}
		}
		return []string{"pinniped ip-tls history", replace + " --ca-bundle FILE"}
	case codeGeneratedServes:
		return []string{at.back()}
	case codeNoResponse:
		return []string{"kubectl get --raw=/readyz", pods}
	case string(certs.NotACertificate), string(certs.ChainOrder):
		return []string{"pinniped ip-tls check", replace}
	case string(certs.NameNotCovered), string(certs.NoNames):
		issuer := "ClusterIssuer/NAME"
		if at.Renewer != nil && at.Renewer.Issuer != "" {
			issuer = strings.Replace(at.Renewer.Issuer, " ", "/", 1)
		}
		return []string{fmt.Sprintf("pinniped ip-tls manifest --issuer %s --secret %s", issuer, secret), replace}
	case configv1alpha1.CodePermissionWithdrawn, string(certs.SecretNotPermitted):
		return []string{"pinniped ip-tls delegate " + secret, "pinniped explain " + secret}
	case configv1alpha1.CodePermissionUnknown:
		return []string{"pinniped explain " + secret, "pinniped ip-tls delegate " + secret}
	case configv1alpha1.CodeServiceNotApplied, configv1alpha1.CodeServiceClassDiffers,
		configv1alpha1.CodeServiceAddressPending, configv1alpha1.CodeServiceAddressInvalid:
		return []string{fmt.Sprintf("kubectl describe service %s %s", at.Service, namespace)}
	case configv1alpha1.CodeSpecInvalid:
		return []string{"pinniped ip-tls undo", "kubectl edit " + at.Issuer}
	case configv1alpha1.CodeDisabledBySpec, configv1alpha1.CodeDisabledByNodes:
		return []string{"pinniped ip-tls set --mode enabled"}
	}
	if slices.Contains(certs.Codes(), certs.Code(code)) {
		return []string{"pinniped ip-tls check", replace}
	}
	return []string{pods, "kubectl get events " + namespace}
}

// codeGeneratedServes means that the generated certificate is in service, but revisions in use have another one.
const codeGeneratedServes = "GeneratedServes"

// secretNamespace returns the namespace of Secret.
func (p Place) secretNamespace() string {
	if other, _, found := strings.Cut(p.Secret, "/"); found {
		return other
	}
	return p.Namespace
}

// back returns the command that restores the certificate that was in service before the generated one.
func (p Place) back() string {
	switch {
	case !p.Undo:
		return "pinniped ip-tls history"
	case p.LosesSome:
		return "pinniped ip-tls undo --allow " + string(certs.OldClientsBreak)
	}
	return "pinniped ip-tls undo"
}

// next returns the commands for a code, with the names of this installation.
func (l *snapshot) next(code string) []string {
	at := Place{
		Namespace: l.namespace, Issuer: discovery.KubectlName(l.issuer), Endpoint: l.view.At.Host + ":" + l.view.At.Port,
		Renewer: l.RenewedBy, Kubeconfigs: l.paths, Service: "SERVICE",
	}
	if l.spec.TLS != nil {
		at.Secret = l.spec.TLS.SecretName
	}
	at.OnlyBundle, at.OwnBundle = l.onlyBundle()
	if inService := l.issuer.Status.ServingCertificate; inService != nil && l.Transition != nil {
		at.Renewal = inService.SecretName != "" && inService.SecretName == l.Transition.SecretName
	}
	switch to := plan.Previous(l.history, &l.spec); {
	case to == nil:
	case code == codeGeneratedServes && !plan.ServesGenerated(to.Spec.TLS):
		at.Undo, at.LosesSome = true, l.losesSome(to.Spec.TLS.SecretName)
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
	refused := func(s result.ClientState) bool { return s.Refused() }
	if code == string(certs.OldClientsBreak) && slices.ContainsFunc(l.Clients, refused) {
		commands = append(commands, "pinniped ip-tls history") // to find revisions to retire
	}
	return commands
}

// onlyBundle returns Place.OnlyBundle and Place.OwnBundle.
func (l *snapshot) onlyBundle() (only, own bool) {
	inService := l.issuer.Status.ServingCertificate
	if len(l.chain) == 0 || inService == nil || l.spec.TLS == nil {
		return false, false
	}
	bundle := l.secret.Data[plan.CABundleKey]
	return strings.EqualFold(certs.Fingerprint(l.chain[0].Raw), inService.SHA256),
		len(bundle) > 0 && !plan.SameBase64(l.spec.TLS.CertificateAuthorityData, bundle)
}
