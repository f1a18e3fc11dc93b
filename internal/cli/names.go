package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// rename accepts the names that Pinniped's CLI has for flags of "get kubeconfig", and hides commands that have another
// name.
func rename(root *cobra.Command) {
	child(child(root, "ip-tls"), "explain").Hidden = true // "pinniped explain" explains all there is
	pinnipeds := map[string]string{
		"concierge-api-group-suffix":  "api-group-suffix",
		"concierge-ca-bundle":         "ca-bundle",
		"concierge-credential-issuer": "credential-issuer",
		"concierge-endpoint":          "endpoint",
	}
	child(child(root, "get"), "kubeconfig").Flags().SetNormalizeFunc(
		func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
			return pflag.NormalizedName(cmp.Or(pinnipeds[name], name))
		})
}

func child(cmd *cobra.Command, name string) *cobra.Command {
	for _, below := range cmd.Commands() {
		if below.Name() == name {
			return below
		}
	}
	panic(fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+name)) // a mistake in our code
}
