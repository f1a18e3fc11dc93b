package change

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// kubeconfigsVerify reports whether every kubeconfig of --kubeconfigs that uses the endpoint verifies the new
// certificate. It is false if none uses it.
func (c *Change) kubeconfigsVerify(ctx context.Context, p *Proposal, issuer *configv1alpha1.CredentialIssuer) (
	files []result.File, verify bool, err error,
) {
	url, _, _ := serving.Frontend(serving.Strategy(issuer))
	if url == "" {
		return nil, false, errors.New("no endpoint is published to compare the kubeconfigs with")
	}
	endpoint, missing, err := c.Session.Endpoint(ctx, issuer, p.Plan.Request.Namespace, url)
	if err != nil {
		return nil, false, err
	}
	if missing != "" {
		c.Session.Progress.Warn("%s", missing)
	}
	all, err := c.Session.ReadKubeconfigs(ctx, c.Flags.Kubeconfigs)
	if err != nil {
		return nil, false, fmt.Errorf("reading --kubeconfigs: %w", err)
	}
	next, bad := serving.Served{Chain: p.Plan.Next.Chain()}, 0
	for _, file := range all {
		one := evaluateKubeconfig(file, endpoint, next, c.Session.Now())
		if one.Outcome == result.FileUnrelated {
			continue
		}
		if files = append(files, one); one.Outcome != result.FileWorks {
			bad++
			c.Session.Progress.Warn("kubeconfig %q: %s", one.Path, one.Reason)
		}
	}
	switch {
	case len(files) == 0:
		c.Session.Progress.Warn("no kubeconfig in --kubeconfigs uses %s", url)
	case bad == 0:
		c.Session.Progress.Done("All %d kubeconfigs for %s verify the new certificate", len(files), url)
	}
	return files, len(files) > 0 && bad == 0, nil
}

// evaluateKubeconfig checks whether all entries of a kubeconfig that use the endpoint verify the new certificate.
func evaluateKubeconfig(file session.Kubeconfig, endpoint kubeconfig.Endpoint, next serving.Served,
	now time.Time,
) result.File {
	one := result.File{Path: file.File, Outcome: result.FileWorks}
	if file.Err != nil {
		one.Outcome, one.Reason = result.FileFailed, file.Err.Error()
		return one
	}
	places := kubeconfig.Trusts(file.Config, endpoint)
	if len(places) == 0 {
		one.Outcome = result.FileUnrelated
	}
	for _, place := range places {
		entry := result.Entry{Kind: result.EntryKind(place.Kind), Name: place.Name, Outcome: result.FileWorks}
		client := serving.Client{Name: place.Host, Bundle: place.CABundle}
		switch {
		case place.Uncertain:
			entry.Outcome, entry.Reason = result.FileNotKnown, fmt.Sprintf(
				"connects to %q, which only a wildcard covers, so it may be another endpoint", place.Host)
		case place.Insecure:
		case place.Err != nil:
			entry.Outcome, entry.Reason = result.FileBroken, place.Err.Error()
		default:
			switch client.Meets(next, now) {
			case "":
			case certs.NameNotCovered:
				entry.Outcome = result.FileWillBreak
				entry.Reason = fmt.Sprintf("expects the name %q, which the new certificate does not cover", place.Host)
			default:
				entry.Outcome = result.FileWillBreak
				entry.Reason = "trusts " + describeTrust(place.CABundle) + ", which does not verify the new certificate"
			}
		}
		one.Entries = append(one.Entries, entry)
		if entry.Reason != "" && one.Reason == "" {
			one.Outcome, one.Reason = entry.Outcome, place.Where+" "+entry.Reason
		}
	}
	for _, entry := range unknownPlugins(file.Config, places) {
		one.Entries = append(one.Entries, entry)
		if one.Reason == "" {
			one.Outcome, one.Reason = entry.Outcome, fmt.Sprintf("context %q %s", entry.Name, entry.Reason)
		}
	}
	return one
}

// unknownPlugins returns the contexts that use the endpoint and an unknown credential plugin.
func unknownPlugins(config *clientcmdapi.Config, places []kubeconfig.Trust) []result.Entry {
	var found []result.Entry
	for _, name := range slices.Sorted(maps.Keys(config.Contexts)) {
		of := config.Contexts[name]
		program := kubeconfig.UnknownPlugin(config.AuthInfos[of.AuthInfo])
		leads := slices.ContainsFunc(places, func(place kubeconfig.Trust) bool {
			return place.Kind == string(result.EntryCluster) && place.Name == of.Cluster
		})
		if program == "" || !leads {
			continue
		}
		found = append(found, result.Entry{
			Kind: result.EntryContext, Name: name, Outcome: result.FileNotKnown,
			Reason: fmt.Sprintf("logs in with the plugin %q, whose trusted CAs are unknown", program),
		})
	}
	return found
}

func describeTrust(bundle []byte) string {
	if len(bundle) == 0 {
		return "the system roots"
	}
	return serving.Describe(bundle)
}
