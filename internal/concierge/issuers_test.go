package concierge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// clusterIssuing is a fake of the cluster's own signer.
type clusterIssuing struct {
	err   error
	asked []certs.ClientIdentity
}

func (c *clusterIssuing) IssueClientCertificate(
	_ context.Context,
	identity certs.ClientIdentity,
	_ time.Duration,
) (*certs.KeyPair, error) {
	c.asked = append(c.asked, identity)
	return &certs.KeyPair{CertPEM: []byte("the cluster's")}, c.err
}

func TestWhoSigns(t *testing.T) {
	t.Parallel()
	const group = "login.concierge.pinniped.dev"
	refused := fmt.Errorf("%w: Denied", signer.ErrRefused)
	for _, test := range []struct {
		name        string
		at          string // the API group of the proxy through which the login goes
		noCluster   bool
		clusterErr  error
		agentErr    error
		want        string
		asksCluster bool
		warns       string
		says        string
	}{
		{name: "the cluster, for a login at the API server", want: signedByCluster, asksCluster: true},
		{name: "the agent, for a login at the proxy", at: group, want: signedByAgent},
		{
			name: "the cluster, for a login at the proxy of another installation",
			at:   "login.concierge.other.example.com", want: signedByCluster, asksCluster: true,
		},
		{name: "the agent, when it is not configured otherwise", noCluster: true, want: signedByAgent},
		{
			name: "the agent, when the cluster does not respond", clusterErr: errors.New("no response"),
			want: signedByAgent, asksCluster: true, warns: "the cluster's own signer issues no certificates at the moment",
		},
		{
			name: "none, when the cluster refuses the user", clusterErr: refused, asksCluster: true,
			says: "the request was refused",
		},
		{
			name: "none, when both cannot", clusterErr: errors.New("no response"), agentErr: signer.ErrNotLoaded,
			asksCluster: true, says: "no response",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cluster, agent := &clusterIssuing{err: test.clusterErr}, &issuing{err: test.agentErr}
			i := issuers{agent: agent, cluster: cluster, group: group}
			if test.noCluster {
				i.cluster = nil
			}
			client := &user.DefaultInfo{Name: user.Anonymous}
			if test.at != "" {
				client.Extra = map[string][]string{signer.AtProxyKey: {test.at}}
			}
			var warnings said
			ctx := warning.WithWarningRecorder(genericapirequest.WithUser(t.Context(), client), &warnings)
			ann := certs.ClientIdentity{Username: "ann", Groups: []string{"dev"}, OrganizationalUnits: []string{"k=v"}}
			pair, by, err := i.issue(ctx, ann, time.Minute)
			if test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) ||
				test.says == "" && (err != nil || pair == nil) || by != test.want {
				t.Errorf("signed by %q, %v", by, err)
			}
			var asked []certs.ClientIdentity
			if test.asksCluster {
				asked = []certs.ClientIdentity{ann}
			}
			if diff := cmp.Diff(asked, cluster.asked); diff != "" {
				t.Errorf("the cluster was asked for (-want +got):\n%s", diff)
			}
			if got := strings.Join(warnings, ";"); !strings.Contains(got, test.warns) || test.warns == "" && got != "" {
				t.Errorf("want a warning with %q, got %q", test.warns, got)
			}
		})
	}
}
