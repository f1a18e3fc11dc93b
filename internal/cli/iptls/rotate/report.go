package rotate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	files "github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// maxReport bounds the size of a report. It is enough for a hundred thousand kubeconfigs.
const maxReport = 64 << 20

// report is what `pinniped kubeconfig rotate -o json` has printed.
type report struct {
	name string
	result.KubeconfigRotation
}

// readReports reads the files of --report.
func (o *Options) readReports() ([]report, error) {
	var all []report
	for _, path := range o.Reports {
		content, err := session.ReadFile("the report", path, o.Session.In, maxReport)
		if err != nil {
			return nil, err
		}
		one := report{name: session.NameOf(path)}
		err = json.Unmarshal(content, &one.KubeconfigRotation)
		switch {
		case err != nil:
		case one.Kind != result.KindKubeconfigRotation || one.APIVersion != result.APIVersion:
			err = fmt.Errorf("it is %s %q, not %s %q", one.APIVersion, one.Kind, result.APIVersion,
				result.KindKubeconfigRotation)
		case one.Clusters == nil || one.Kubeconfigs == nil:
			err = errors.New("it names no clusters or no kubeconfigs")
		}
		if err != nil {
			return nil, ui.WithHint(ui.Usage(fmt.Errorf("reading the report from %s: %w", one.name, err)),
				"make one: pinniped kubeconfig rotate PATH -o json > report.json")
		}
		all = append(all, one)
	}
	return all, nil
}

// reported says whether every report shows that all kubeconfigs have the new CA.
func (o *Options) reported(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record,
	done *Result,
) (bool, error) {
	info := plan.ProxyInfo(issuer)
	if info == nil {
		return false, errors.New("no endpoint is advertised, so that a report cannot be compared with it")
	}
	good := true
	for _, one := range o.reports {
		at, missing, err := o.Session.Endpoint(ctx, issuer, o.request.Namespace, info.Endpoint)
		if err != nil {
			return false, err
		}
		if missing != "" {
			o.Session.Progress.Warn("%s", missing)
		}
		bundle := one.partOf(at)
		if problem := one.problem(bundle, r); problem != "" {
			good = false
			done.waits("a better report than %s: %s", one.name, problem)
			continue
		}
		count, _ := one.Trusting()
		o.Session.Progress.Done("The report in %s says that %d kubeconfigs have the new CA", one.name, count)
	}
	return good, nil
}

// partOf leaves in a report what is about one endpoint, under all of its names. It returns the CA bundle that all
// clusters of the report which are this endpoint have advertised.
func (one *report) partOf(at files.Endpoint) result.CABundle {
	leads := func(server string) bool {
		where, err := url.Parse(server)
		return err == nil && at.Leads(files.Trust{Server: server, Host: where.Hostname()})
	}
	var bundle result.CABundle
	for _, cluster := range one.Clusters {
		if !leads(cluster.Server) || len(cluster.CABundle) == 0 {
			continue
		}
		if bundle == nil {
			bundle = slices.Clone(cluster.CABundle)
		}
		bundle = slices.DeleteFunc(bundle, func(ca result.CACertificate) bool { return !cluster.CABundle.Has(ca.SHA256) })
	}
	all := one.Kubeconfigs
	one.Kubeconfigs = nil
	for _, kubeconfig := range all {
		had := len(kubeconfig.Entries) > 0
		kubeconfig.Entries = slices.DeleteFunc(slices.Clone(kubeconfig.Entries), func(entry result.Entry) bool {
			return entry.Server != "" && !leads(entry.Server)
		})
		if had && len(kubeconfig.Entries) == 0 {
			kubeconfig.Outcome = result.FileUnrelated
		}
		one.Kubeconfigs = append(one.Kubeconfigs, kubeconfig)
	}
	return bundle
}

// problem says why a report does not show that it is time for step 3; empty when it does.
func (one *report) problem(bundle result.CABundle, r *rotation.Record) string {
	wanted, _ := certs.ParseBundle([]byte(r.NewCA))
	count, without := one.Trusting()
	switch {
	case one.DryRun:
		return "it is of a dry run"
	case len(without) > 0:
		return fmt.Sprintf("%d kubeconfigs have no new CA bundle: %s", len(without), someOf(without))
	case count == 0:
		return "no kubeconfig in it leads to the endpoint"
	}
	for _, member := range wanted {
		if !bundle.Has(certs.Fingerprint(member.Raw)) {
			return "the CA bundle that it tells of lacks the new CA: it was made before step 1, or for another rotation"
		}
	}
	return ""
}

// someOf lists the first of many names.
func someOf(names []string) string {
	const most = 3
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
