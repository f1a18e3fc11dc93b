package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// renamed has the flags whose names have changed, by command: what was said before, and what is said now. The old names
// go on working, and the help does not show them. One thing has one name in all commands; Pinniped's CLI knows the old
// ones of "get kubeconfig".
func renamed() map[string]map[string]string {
	return map[string]map[string]string{
		"get kubeconfig": {
			"concierge-api-group-suffix":  "api-group-suffix",
			"concierge-ca-bundle":         "ca-bundle",
			"concierge-credential-issuer": "credential-issuer",
			"concierge-endpoint":          "endpoint",
		},
		"ip-tls rotate": {"abort": "undo"},
		"ip-tls status": {"kubeconfigs-from": "kubeconfigs"},
	}
}

// rename gives the flags of the commands below root their names of today, and hides commands that have another.
func rename(root *cobra.Command) {
	child(child(root, "ip-tls"), "explain").Hidden = true // "pinniped explain" explains all there is
	for path, names := range renamed() {
		cmd := root
		for name := range strings.FieldsSeq(path) {
			cmd = child(cmd, name)
		}
		cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
			if now, ok := names[name]; ok {
				name = now
			}
			return pflag.NormalizedName(name)
		})
	}
}

func child(cmd *cobra.Command, name string) *cobra.Command {
	for _, below := range cmd.Commands() {
		if below.Name() == name {
			return below
		}
	}
	panic(fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+name)) // a mistake in our code
}
