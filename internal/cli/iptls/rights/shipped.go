package rights

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// shipped is the installation of deploy/concierge, with the Secret that the documents call proxy-tls.
func shipped() Subject {
	const namespace, app = "pinniped-concierge", "pinniped-concierge"
	return Subject{
		Groups: apis.GroupsFor(apis.DefaultGroupSuffix), Issuer: app + "-config", Search: true, Locate: true,
		Namespace:    namespace,
		Services:     []string{app + "-impersonation-proxy-load-balancer", app + "-impersonation-proxy-cluster-ip"},
		Secrets:      []types.NamespacedName{{Namespace: namespace, Name: "proxy-tls"}},
		Certificates: []types.NamespacedName{{Namespace: namespace, Name: "proxy-tls"}},
		GeneratedCA:  app + "-impersonation-proxy-ca-certificate",
		HandedOut:    app + "-handed-out",
		Writes:       "proxy-tls",
	}
}

// Viewer returns the manifest of the Roles for users who look, and read no Secret: each holds a private key.
func Viewer() string {
	on := shipped()
	on.Secrets, on.Certificates, on.LookOnly = nil, nil, true // who renews it stands in the Secret
	return Manifest("pinniped-ip-tls-viewer", together(on, "status", "clients", "history", "manifest"))
}

// Operator returns the manifest of the Roles for users who look, and change the certificate. Secrets are named one by
// one: those of the agent's namespace also hold the key that signs users' client certificates.
func Operator() string {
	return Manifest("pinniped-ip-tls-operator",
		together(shipped(), "set", "status", "clients", "check", "history", "manifest", "unset", "undo", "apply", "rotate"))
}

// together returns what the commands need, each right once: as needed, when it is optional for some of them.
func together(on Subject, commands ...string) []Rule {
	var all []Rule
	for _, command := range commands {
		for _, rule := range Needed(command, on) {
			known := false
			for _, one := range all {
				known = known || one.Resource == rule.Resource && one.Why == rule.Why && one.Namespace == rule.Namespace &&
					(rule.Optional || !one.Optional)
			}
			if !known {
				all = append(all, rule)
			}
		}
	}
	return all
}
