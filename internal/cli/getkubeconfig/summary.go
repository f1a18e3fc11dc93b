package getkubeconfig

import (
	"fmt"
	"strings"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// summarise prints a summary of the kubeconfig.
func (o *Options) summarise(config *clientcmdapi.Config, input *kubeconfig.Input) error {
	kubeContext := config.Contexts[config.CurrentContext]
	cluster := config.Clusters[kubeContext.Cluster]
	lines := [][2]string{
		{"Context", config.CurrentContext},
		{"Cluster", kubeContext.Cluster},
		{"User", kubeContext.AuthInfo},
		{"Endpoint", cluster.Server},
	}
	lines = append(lines, bundleLines(cluster)...)
	if c := input.Exec.Concierge; c != nil && input.TokenFile == "" {
		lines = append(lines, [2]string{"Mode", string(o.mode)})
		if c.Endpoint != cluster.Server {
			lines = append(lines, [2]string{"Exchange at", c.Endpoint})
		}
		lines = append(lines, [2]string{"Authenticator", c.AuthenticatorType + " " + c.AuthenticatorName})
	}
	lines = append(lines, loginLines(input)...)
	if input.TokenFile == "" {
		lines = append(lines, [2]string{"Command", input.Exec.Command})
	}
	lines = append(lines, o.tried...)
	var text strings.Builder
	for _, line := range lines {
		if line[1] != "" {
			fmt.Fprintf(&text, "%-15s %s\n", line[0]+":", ui.Plain(line[1]))
		}
	}
	if _, err := fmt.Fprint(o.Out, text.String()); err != nil {
		return fmt.Errorf("writing the summary: %w", err)
	}
	return nil
}

func bundleLines(cluster *clientcmdapi.Cluster) [][2]string {
	if cluster.InsecureSkipTLSVerify {
		return [][2]string{{"CA", "nothing is verified (insecure-skip-tls-verify)"}}
	}
	members, _ := certs.ParseBundle(cluster.CertificateAuthorityData)
	if len(members) == 0 {
		return [][2]string{{"CA", "the system roots"}}
	}
	var lines [][2]string
	for _, member := range members {
		text := fmt.Sprintf("%s, until %s, SHA-256 %s",
			member.Subject, member.NotAfter.UTC().Format(time.RFC3339), certs.Fingerprint(member.Raw))
		lines = append(lines, [2]string{"CA", text})
	}
	return lines
}

func loginLines(input *kubeconfig.Input) [][2]string {
	switch {
	case input.TokenFile != "":
		return [][2]string{{"Login", "token in the file " + input.TokenFile}}
	case input.Exec.OIDC != nil:
		oidc := input.Exec.OIDC
		return [][2]string{
			{"Login", "OpenID Connect"},
			{"Issuer", oidc.Issuer},
			{"Client", oidc.ClientID},
			{"Scopes", strings.Join(oidc.Scopes, " ")},
			{"Audience", oidc.RequestAudience},
			{"Provider", strings.TrimSpace(oidc.UpstreamType + " " + oidc.UpstreamName)},
			{"Flow", oidc.UpstreamFlow},
		}
	case input.Exec.Static != nil && input.Exec.Static.TokenEnv != "":
		return [][2]string{{"Login", "token in the environment variable " + input.Exec.Static.TokenEnv}}
	}
	return [][2]string{{"Login", "token in the kubeconfig"}}
}
