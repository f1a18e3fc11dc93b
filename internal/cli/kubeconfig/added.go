package kubeconfig

import (
	"fmt"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// addedBy returns the certificates that changes of a kubeconfig newly trust, once per server.
func addedBy(changes []kubeconfig.Change) []result.AddedCA {
	var all []result.AddedCA
	known := map[[2]string]bool{}
	for _, change := range changes {
		for _, certificate := range trustbundle.Added(change.From, change.To) {
			one := result.AddedCA{Server: change.Server, Certificate: result.CACertificateOf(certificate)}
			if key := [2]string{one.Server, one.Certificate.SHA256}; !known[key] {
				known[key] = true
				all = append(all, one)
			}
		}
	}
	return all
}

// addedTable lists the newly trusted certificates and the number of kubeconfigs that trust them.
func addedTable(out *strings.Builder, dryRun bool, added [][]result.AddedCA) error {
	type key struct{ server, sha256 string }
	counts := map[key]int{}
	var order []result.AddedCA
	for _, file := range added {
		for _, one := range file {
			at := key{one.Server, one.Certificate.SHA256}
			if counts[at]++; counts[at] == 1 {
				order = append(order, one)
			}
		}
	}
	if len(order) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(order))
	for _, one := range order {
		rows = append(rows, []string{
			one.Server, fmt.Sprintf("%.120q", one.Certificate.Subject), one.Certificate.SHA256,
			fmt.Sprint(counts[key{one.Server, one.Certificate.SHA256}]),
		})
	}
	header := "added CA"
	if dryRun {
		header = "CA that would be added"
	}
	if err := ui.Table(out, []string{"cluster", header, "SHA-256", "kubeconfigs"}, rows); err != nil {
		return err
	}
	out.WriteString("\n")
	return nil
}
