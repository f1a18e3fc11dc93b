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

// report is what `pinniped kubeconfig rotate -o json` has printed, for one cluster or with --fleet.
type report struct {
	name string
	result.KubeconfigRotation
	fleet *result.FleetRotation
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
		if err == nil && one.Kind == result.KindFleetRotation {
			err = json.Unmarshal(content, &one.fleet)
		}
		switch {
		case err != nil:
		case one.fleet != nil && one.APIVersion == result.APIVersion:
			if one.fleet.Clusters == nil || one.fleet.Kubeconfigs == nil {
				err = errors.New("it names no clusters or no kubeconfigs")
			}
		case one.Kind != result.KindKubeconfigRotation || one.APIVersion != result.APIVersion:
			err = fmt.Errorf("it is %s %q, not %s %q or %q", one.APIVersion, one.Kind, result.APIVersion,
				result.KindKubeconfigRotation, result.KindFleetRotation)
		case one.Endpoint == "" || one.Files == nil:
			err = errors.New("it names no endpoint or no files")
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
		if one.fleet != nil {
			at, missing, err := o.Session.Endpoint(ctx, issuer, o.request.Namespace, info.Endpoint)
			if err != nil {
				return false, err
			}
			if missing != "" {
				o.Session.Progress.Warn("%s", missing)
			}
			one.KubeconfigRotation = partOf(one.fleet, at)
		}
		if problem := one.problem(info.Endpoint, r); problem != "" {
			good = false
			done.waits("a better report than %s: %s", one.name, problem)
			continue
		}
		count, _ := one.Trusting()
		o.Session.Progress.Done("The report in %s says that %d kubeconfigs have the new CA", one.name, count)
	}
	return good, nil
}

// partOf returns the part of a report of --fleet that is about one endpoint, under all of its names. Its CA bundle is
// what all clusters of the report that are this endpoint have advertised.
func partOf(fleet *result.FleetRotation, at files.Endpoint) result.KubeconfigRotation {
	leads := func(server string) bool {
		where, err := url.Parse(server)
		return err == nil && at.Leads(files.Trust{Server: server, Host: where.Hostname()})
	}
	part := result.KubeconfigRotation{Head: fleet.Head, Endpoint: at.URL, DryRun: fleet.DryRun}
	for _, cluster := range fleet.Clusters {
		if !leads(cluster.Server) || len(cluster.CABundle) == 0 {
			continue
		}
		if part.CABundle == nil {
			part.CABundle = slices.Clone(cluster.CABundle)
		}
		part.CABundle = slices.DeleteFunc(part.CABundle, func(ca result.CACertificate) bool {
			return !cluster.CABundle.Has(ca.SHA256)
		})
	}
	for _, one := range fleet.Kubeconfigs {
		file := result.File{Path: one.Where, Outcome: one.Outcome, Reason: one.Reason}
		for _, entry := range one.Entries {
			if entry.Server == "" || leads(entry.Server) {
				file.Entries = append(file.Entries, entry)
			}
		}
		if len(one.Entries) > 0 && len(file.Entries) == 0 {
			file.Outcome = result.FileUnrelated
		}
		part.Files = append(part.Files, file)
	}
	return part
}

// problem says why a report does not show that it is time for step 3; empty when it does.
func (one *report) problem(endpoint string, r *rotation.Record) string {
	wanted, _ := certs.ParseBundle([]byte(r.NewCA))
	count, without := one.Trusting()
	switch {
	case one.DryRun:
		return "it is of a dry run"
	case !files.SameEndpoint(one.Endpoint, endpoint):
		return fmt.Sprintf("it is about %s, not %s", one.Endpoint, endpoint)
	case len(without) > 0:
		return fmt.Sprintf("%d kubeconfigs have no new CA bundle: %s", len(without), someOf(without))
	case count == 0:
		return "no kubeconfig in it leads to the endpoint"
	}
	for _, member := range wanted {
		if !one.CABundle.Has(certs.Fingerprint(member.Raw)) {
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
