package localuser

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	// Name is the name of the webhook's Service, and of all its other objects.
	Name = "local-user-authenticator"
	// DefaultNamespace is the namespace that the shipped manifests use.
	DefaultNamespace = Name
	// DefaultAddress is the address that the webhook listens on in its pod.
	DefaultAddress = ":8443"
	// ServingSecretName is the name of the Secret that holds the serving certificate and its CA.
	ServingSecretName = Name + "-tls-serving-certificate"
)

// Options is everything that Run needs.
type Options struct {
	// RestConfig reaches the cluster whose Secrets are the users. Required.
	RestConfig *rest.Config
	// Namespace is where the users and the serving certificate's Secret are. Default: DefaultNamespace.
	Namespace string
	// Address is host:port to listen on. Default: DefaultAddress. Ignored when Listener is set.
	Address string
	// Listener accepts the connections instead of one opened at Address. Run closes it.
	Listener net.Listener
	// ServingNames are DNS names and IP addresses that the serving certificate is valid for, besides those of the Service.
	ServingNames []string
	// Clock tells when the certificate is due. Default: the system's clock.
	Clock clock.Clock
}

// completed is Options with nothing left out.
type completed struct {
	Options
	names certs.SANs
}

func (o Options) complete() (*completed, error) {
	if o.RestConfig == nil {
		return nil, errors.New("no cluster is configured")
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if problems := validation.IsDNS1123Label(o.Namespace); len(problems) > 0 {
		return nil, fmt.Errorf("%q is not a namespace: %s", o.Namespace, strings.Join(problems, "; "))
	}
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	names, err := servingNames(o.Namespace, o.ServingNames)
	if err != nil {
		return nil, err
	}
	return &completed{Options: o, names: names}, nil
}

// servingNames returns the names of the Service in namespace, and the extra ones, each once.
func servingNames(namespace string, extra []string) (certs.SANs, error) {
	service := Name + "." + namespace + ".svc"
	names := certs.SANs{DNSNames: []string{service, service + ".cluster.local"}}
	for _, name := range extra {
		if ip := net.ParseIP(name); ip != nil {
			if !slices.ContainsFunc(names.IPAddresses, ip.Equal) {
				names.IPAddresses = append(names.IPAddresses, ip)
			}
			continue
		}
		dns := strings.ToLower(name)
		if problems := validation.IsDNS1123Subdomain(dns); len(problems) > 0 {
			return certs.SANs{}, fmt.Errorf(
				"serving name %q is neither an IP address nor a DNS name: %s",
				name,
				strings.Join(problems, "; "),
			)
		}
		if !slices.Contains(names.DNSNames, dns) {
			names.DNSNames = append(names.DNSNames, dns)
		}
	}
	return names, nil
}
