package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// rename accepts the flag names of Pinniped's CLI for "get kubeconfig", and hides commands with a second name.
func rename(root *cobra.Command) {
	child(child(root, "ip-tls"), "explain").Hidden = true // "pinniped explain" does the same
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
	panic(fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+name)) // a bug
}
