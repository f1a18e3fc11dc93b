package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Place is what commands that mend something have to name.
type Place struct {
	Namespace string // the agent's
	Issuer    string // the CredentialIssuer, as kubectl names it
	Secret    string // as the spec names it: NAME or NAMESPACE/NAME
	Service   string
	Endpoint  string // HOST:PORT
	// Renewer is the controller that fills the Secret; nil when none is known.
	Renewer *result.Renewer
	// Kubeconfigs are the files and folders that were looked at.
	Kubeconfigs []string
}

// NextCommands returns the commands to type when something with this code is wrong. FILE, NEW and the like stand for
// what only the administrator knows.
func NextCommands(code string, at Place) []string {
	secret := at.Secret
	if secret == "" {
		secret = "NAME"
	}
	namespace := "--namespace=" + at.Namespace
	replace := fmt.Sprintf("pinniped ip-tls set --secret %s --cert FILE --key FILE", secret)
	if at.Renewer != nil && at.Renewer.Kind == result.CertManagerCertificate {
		of := at.Namespace
		if other, _, found := strings.Cut(at.Secret, "/"); found {
			of = other
		}
		replace = fmt.Sprintf("kubectl describe certificate %s --namespace=%s", at.Renewer.Name, of)
	}
	pods := "kubectl get pods " + namespace
	switch code {
	case "":
		return []string{"pinniped ip-tls check", "pinniped ip-tls status --watch"}
	case codeAgentNotRunning:
		return []string{pods, "kubectl get events " + namespace}
	case string(certs.EndpointUnreachable):
		return []string{pods, "kubectl get service,endpointslice " + namespace}
	case string(certs.EndpointServesOther):
		return []string{"pinniped ip-tls check --endpoint " + at.Endpoint}
	case string(certs.Expired), string(certs.ExpiresSoon), string(certs.SecretNotFound):
		return []string{replace}
	case string(certs.OldClientsBreak):
		if len(at.Kubeconfigs) > 0 {
			return []string{"pinniped kubeconfig rotate " + strings.Join(at.Kubeconfigs, " ")}
		}
		return []string{"pinniped kubeconfig rotate FILE"}
	case string(certs.BundleDoesNotVerify):
		return []string{"pinniped ip-tls rotate --secret NEW"}
	case string(certs.NotACertificate), string(certs.ChainOrder):
		return []string{"pinniped ip-tls repair FILE -o NEW", replace}
	case string(certs.NameNotCovered), string(certs.NoNames):
		return []string{"pinniped ip-tls manifest --secret " + secret, replace}
	case string(certs.SecretNotPermitted), configv1alpha1.CodePermissionUnknown, configv1alpha1.CodePermissionWithdrawn:
		return []string{"pinniped explain " + secret}
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

// next returns the commands for a code, with the names of this installation.
func (l *snapshot) next(code string) []string {
	at := Place{
		Namespace: l.namespace, Issuer: discovery.KubectlName(l.issuer), Endpoint: l.view.At.Host + ":" + l.view.At.Port,
		Renewer: l.RenewedBy, Kubeconfigs: l.paths, Service: "SERVICE",
	}
	if l.spec.TLS != nil {
		at.Secret = l.spec.TLS.SecretName
	}
	if objects := l.issuer.Status.Objects; objects != nil {
		at.Service = objects.LoadBalancerService
		if l.spec.Service.Type == configv1alpha1.ServiceTypeClusterIP {
			at.Service = objects.ClusterIPService
		}
	}
	return NextCommands(code, at)
}
