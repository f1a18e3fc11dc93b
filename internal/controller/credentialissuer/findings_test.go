package credentialissuer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// credentialIssuerCRD is the file of the CRD.
const credentialIssuerCRD = "config.concierge.pinniped.dev_credentialissuers.yaml"

// olderCRDs returns a directory with the CRD of CredentialIssuer without these status fields, each a path below the
// schema of the status.
func olderCRDs(t *testing.T, without ...string) string {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "deploy", "crds", credentialIssuerCRD)))(t)
	var crd map[string]any
	must.Do(t, yaml.Unmarshal(content, &crd))
	version := crd["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	root := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)["status"].(map[string]any)
	for _, path := range without {
		properties := root["properties"].(map[string]any)
		field, below, nested := strings.Cut(path, ".items.")
		if nested {
			properties = properties[field].(map[string]any)["items"].(map[string]any)["properties"].(map[string]any)
			field = below
		}
		if _, there := properties[field]; !there {
			t.Fatalf("the CRD has no %s", path)
		}
		delete(properties, field)
	}
	content = must.Get(yaml.Marshal(crd))(t)
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, credentialIssuerCRD), content, 0o600))
	return dir
}

// shifted is a clock that can be moved forward.
type shifted struct {
	clock.RealClock
	by atomic.Int64
}

func (s *shifted) Now() time.Time                  { return s.RealClock.Now().Add(time.Duration(s.by.Load())) }
func (s *shifted) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

// statusCounter counts the attempts to apply a status.
type statusCounter struct {
	client.Client
	attempts atomic.Int64
}

func (c *statusCounter) Status() client.SubResourceWriter {
	return &countingStatus{SubResourceWriter: c.Client.Status(), attempts: &c.attempts}
}

type countingStatus struct {
	client.SubResourceWriter
	attempts *atomic.Int64
}

func (c *countingStatus) Apply(
	ctx context.Context,
	object runtime.ApplyConfiguration,
	options ...client.SubResourceApplyOption,
) error {
	c.attempts.Add(1)
	return c.SubResourceWriter.Apply(ctx, object, options...)
}

// TestOlderCRD shows that an agent reports to upstream Pinniped's CRD, which lacks some status fields, without a loop,
// and reports everything after the CRD was upgraded.
func TestOlderCRD(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{}, olderCRDs(t, "objects", "strategies.items.findings",
		"servingCertificate", "revisions", "transition", "observedGeneration"))
	watch, counting := &shifted{}, &statusCounter{}
	leader := startReplicaWith(t, cluster, "default", "leader", true, func(r *Reconciler) {
		counting.Client, r.Client, r.Clock = r.Client, counting, watch
	})
	leader.create(t, enabled())
	read := func() *configv1alpha1.CredentialIssuer { return must.Get(leader.theIssuer(t))(t) }
	if strategy := leader.waitFor(t, "Listening", messageListening); len(strategy.Findings) > 0 {
		t.Errorf("the CRD has findings: %+v", strategy.Findings)
	}
	if got := read().Status; got.Objects != nil || got.ServingCertificate != nil {
		t.Errorf("the status is %+v", got)
	}
	before := counting.attempts.Load()
	version := read().ResourceVersion
	for range 20 {
		leader.notify()
		time.Sleep(50 * time.Millisecond)
	}
	if more := counting.attempts.Load() - before; more > 3 || read().ResourceVersion != version {
		t.Errorf("nothing has changed, and the agent tried %d times to write the status", more)
	}

	crd := filepath.Join("..", "..", "..", "deploy", "crds", credentialIssuerCRD)
	must.Do(t, cluster.Install(t.Context(), crd))
	watch.by.Store(int64(2 * retrySchema))
	testkit.Eventually(t, waitLimit, func() error {
		leader.notify()
		status := read().Status
		if status.Objects == nil || status.ServingCertificate == nil || len(status.Strategies[0].Findings) == 0 {
			return fmt.Errorf("the status is still %+v", status)
		}
		return nil
	})
}

func TestObjects(t *testing.T) {
	t.Parallel()
	want := &configv1alpha1.ObjectNames{
		Namespace: "ns", LoadBalancerService: "lb", ClusterIPService: "ip", GeneratedCertificateSecret: "generated-tls",
		GeneratedCASecret: "generated-ca", LastKnownGoodCertificateSecret: "last-known-good",
		RevisionsConfigMap: "handed-out",
	}
	if diff := cmp.Diff(want, (&Reconciler{Namespace: "ns", Names: testNames}).objects()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFindingsOf(t *testing.T) {
	t.Parallel()
	refused := func(code certs.Code) error {
		return &serving.Refusal{Finding: certs.Finding{Code: code, Message: "m", Hint: "h"}}
	}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "s", errors.New("x"))
	for _, test := range []struct {
		name string
		err  error
		want []string
	}{
		{name: "has nothing to say of no error"},
		{name: "takes the catalogue's code", err: refused(certs.KeyMismatch), want: []string{"KeyMismatch: m (h)"}},
		{
			name: "takes the code of an error", err: fmt.Errorf("a: %w", coded("X", errors.New("b"))), want: []string{"X: a: b"},
		},
		{
			name: "takes the outermost code", err: coded("Y", fmt.Errorf("a: %w", coded("X", errors.New("b")))),
			want: []string{"Y: a: b"},
		},
		{
			name: "takes joined errors apart", err: errors.Join(
				coded("X", errors.New("a")), errors.Join(refused(certs.Expired), errors.New("b")),
			),
			want: []string{"X: a", "Expired: m (h)", "SetupFailed: b"},
		},
		{name: "does not take apart what one error wraps", err: coded(
			"X", fmt.Errorf("a: %w: %w", errRevoked, errNotLeader),
		), want: []string{
			"WaitingForLeader: a: " + errRevoked.Error() + ": " + errNotLeader.Error(),
		}},
		{name: "tells a conflict from what was about to be written", err: coded(
			"X", fmt.Errorf("a: %w", conflict),
		), want: []string{
			"WriteConflict: a: " + conflict.Error(),
		}},
		{
			name: "tells that an address is waited for", err: serving.ErrPending,
			want: []string{"ServiceAddressPending: " + serving.ErrPending.Error()},
		},
		{name: "writes nothing that JSON would change", err: errors.New("a\xffb"), want: []string{"SetupFailed: ab"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, finding := range findingsOf(test.err) {
				got = append(got, finding.Code+": "+finding.Message)
				if finding.Severity != configv1alpha1.FindingError {
					t.Errorf("%+v is no error", finding)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithFindings(t *testing.T) {
	t.Parallel()
	codes := func(findings []configv1alpha1.StrategyFinding) (all []string) {
		for _, finding := range findings {
			all = append(all, string(finding.Severity)+" "+finding.Code)
		}
		return all
	}
	evaluation := serving.Evaluation{
		Refusal:  &serving.Refusal{Finding: certs.NewFinding(certs.KeyMismatch, "a")},
		Further:  []certs.Finding{certs.NewFinding(certs.Expired, "b")},
		Warnings: []certs.Finding{certs.NewFinding(certs.NameNotCovered, "c"), certs.NewFinding(certs.BundleEmpty, "d")},
	}
	info := newFinding("I", configv1alpha1.FindingInfo, "i")
	strategy := withFindings(configv1alpha1.CredentialIssuerStrategy{Findings: []configv1alpha1.StrategyFinding{info}},
		append(findingsOf(evaluation.Refusal), besides(evaluation, nil, &info)...)...)
	want := []string{"Error KeyMismatch", "Error Expired", "Warning NameNotCovered", "Info I", "Info BundleEmpty"}
	if diff := cmp.Diff(want, codes(strategy.Findings)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	var many []configv1alpha1.StrategyFinding
	for i := range maxFindings + 5 {
		many = append(many, newFinding("X", configv1alpha1.FindingWarning, strconv.Itoa(i)))
	}
	exact := withFindings(configv1alpha1.CredentialIssuerStrategy{}, many[:maxFindings]...)
	if len(exact.Findings) != maxFindings || exact.Findings[maxFindings-1].Code != "X" {
		t.Errorf("as many as fit give %d, the last %+v", len(exact.Findings), exact.Findings[len(exact.Findings)-1])
	}
	clipped := withFindings(configv1alpha1.CredentialIssuerStrategy{}, many...)
	if last := clipped.Findings[len(clipped.Findings)-1]; len(clipped.Findings) != maxFindings ||
		last.Message != "6 more findings are not listed" {
		t.Errorf("too many give %d, the last %+v", len(clipped.Findings), last)
	}
	if long := newFinding("X", configv1alpha1.FindingInfo, strings.Repeat("ä", maxEvent)); len(long.Message) > maxEvent {
		t.Errorf("a long message has %d bytes", len(long.Message))
	}
}
