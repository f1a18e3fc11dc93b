package credentialissuer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/replicas"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// fixedStrategy is an OtherStrategy with a fixed report.
type fixedStrategy struct {
	said configv1alpha1.CredentialIssuerStrategy
}

func (f *fixedStrategy) Type() configv1alpha1.StrategyType { return f.said.Type }

func (f *fixedStrategy) Report(context.Context) configv1alpha1.CredentialIssuerStrategy {
	return f.said
}

func clusterSays(
	status configv1alpha1.StrategyStatus, reason configv1alpha1.StrategyReason, message string,
) *fixedStrategy {
	return &fixedStrategy{said: configv1alpha1.CredentialIssuerStrategy{
		Type:   configv1alpha1.StrategyKubeClusterSigningCertificate,
		Status: status, Reason: reason, Message: message,
	}}
}

func TestStrategiesStandInTheOrderInWhichClientsShouldTryThem(t *testing.T) {
	t.Parallel()
	proxy := proxyStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonListening, messageListening)
	ready := clusterSays(configv1alpha1.StrategySuccess, configv1alpha1.ReasonFetchedKey, "good")
	for _, test := range []struct {
		name   string
		others []OtherStrategy
		want   []configv1alpha1.CredentialIssuerStrategy
	}{
		{name: "the proxy alone", want: []configv1alpha1.CredentialIssuerStrategy{clusterSigningOff(), proxy}},
		{
			name: "with the cluster's signer", others: []OtherStrategy{ready},
			want: []configv1alpha1.CredentialIssuerStrategy{ready.said, proxy},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &Reconciler{OtherStrategies: test.others}
			if diff := cmp.Diff(test.want, r.strategies(t.Context(), proxy)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOldCRDsGetOnlyStrategiesThatTheyKnow(t *testing.T) {
	t.Parallel()
	status := configv1alpha1.CredentialIssuerStatus{
		Strategies: []configv1alpha1.CredentialIssuerStrategy{
			clusterSigningOff(), proxyStrategy("Success", "Listening", "m"), {Type: configv1alpha1.StrategyServiceAccountToken},
		},
		Objects: &configv1alpha1.ObjectNames{RevisionsConfigMap: "m", ServiceAccount: "a"}, ObservedGeneration: 7,
		Revisions: []configv1alpha1.RevisionStatus{{ID: "x"}},
	}
	if got := schemaFull.reduce(status); len(got.Strategies) != 3 || got.ObservedGeneration != 7 ||
		len(got.Revisions) != 1 {
		t.Errorf("a new CRD gets %+v", got)
	}
	got := schemaPinniped.reduce(status)
	if len(got.Strategies) != 2 || got.Strategies[1].Type != configv1alpha1.StrategyImpersonationProxy ||
		got.Strategies[0].Findings != nil || got.Objects != nil || got.ObservedGeneration != 0 ||
		len(got.Revisions) != 0 {
		t.Errorf("Pinniped's CRD gets %+v", got)
	}
	if len(status.Strategies) != 3 || status.Strategies[2].Type != configv1alpha1.StrategyServiceAccountToken ||
		status.Strategies[0].Findings == nil {
		t.Error("the status itself was changed")
	}
}

func TestEventsOfOtherStrategies(t *testing.T) {
	t.Parallel()
	events := record.NewFakeRecorder(10)
	strategy := clusterSays(configv1alpha1.StrategyError, configv1alpha1.ReasonPending, "testing")
	r := &Reconciler{Events: events, OtherStrategies: []OtherStrategy{strategy}}
	issuer := &configv1alpha1.CredentialIssuer{}
	tell := func() {
		r.recordOtherChanges(issuer, r.strategies(t.Context(), proxyStrategy("Success", "Listening", "m")))
	}
	next := func() string {
		select {
		case text := <-events.Events:
			return text
		default:
			return ""
		}
	}
	tell()
	if got := next(); got != "" {
		t.Errorf("something that has not ended yet is told: %s", got)
	}
	strategy.said.Status, strategy.said.Reason, strategy.said.Message = "Success", "FetchedKey", "it signs"
	tell()
	tell() // an unchanged report
	if got := next(); !strings.HasPrefix(got, "Normal FetchedKey ") || !strings.Contains(got, "it signs") {
		t.Errorf("got event %q", got)
	}
	strategy.said.Status, strategy.said.Reason, strategy.said.Message = "Error", "CouldNotFetchKey", "it is away"
	tell()
	if got := next(); !strings.HasPrefix(got, "Warning CouldNotFetchKey ") {
		t.Errorf("got event %q", got)
	}
	if got := next(); got != "" {
		t.Errorf("something is told twice: %s", got)
	}
}

func TestClusterSigning(t *testing.T) {
	t.Parallel()
	refused := errors.New("creating a CertificateSigningRequest: forbidden")
	for _, test := range []struct {
		name   string
		state  signer.ClusterState
		status configv1alpha1.StrategyStatus
		reason configv1alpha1.StrategyReason
		starts string
		says   string
		code   string
		want   *configv1alpha1.TokenCredentialRequestAPIInfo
	}{
		{
			name: "is pending before the test has ended", status: "Error", reason: "Pending",
			starts: "testing the cluster's own signer",
		},
		{
			name:   "fails as on managed clusters when no signer answers",
			state:  signer.ClusterState{Tested: true, Err: refused, Server: "https://kube.example.com", CABundle: []byte("ca")},
			status: "Error", reason: "CouldNotFetchKey",
			starts: "could not find a healthy kube-controller-manager pod (0 candidates): note that this error is the " +
				"expected behavior for some cluster types, including most cloud provider clusters (e.g. GKE, AKS, EKS)",
			says: refused.Error(), code: "ClusterSignerUnavailable",
		},
		{
			name:   "tells first that no signer answers",
			state:  signer.ClusterState{Tested: true, Err: refused, InfoErr: errors.New("no ConfigMap")},
			status: "Error", reason: "CouldNotFetchKey", says: refused.Error(), code: "ClusterSignerUnavailable",
		},
		{
			name:   "fails without an address for clients",
			state:  signer.ClusterState{Tested: true, InfoErr: errors.New("no ConfigMap")},
			status: "Error", reason: "CouldNotGetClusterInfo", says: "no ConfigMap", code: "ClusterInfoUnavailable",
		},
		{
			name:   "tells clients the address",
			state:  signer.ClusterState{Tested: true, Server: "https://kube.example.com", CABundle: []byte("ca")},
			status: "Success", reason: "FetchedKey", starts: "key was fetched successfully", code: "ClusterSignerUsed",
			want: &configv1alpha1.TokenCredentialRequestAPIInfo{
				Server: "https://kube.example.com", CertificateAuthorityData: "Y2E=",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := ClusterSigning{State: func() signer.ClusterState { return test.state }}
			got := c.Report(t.Context())
			if got.Type != c.Type() || got.Status != test.status || got.Reason != test.reason ||
				!strings.HasPrefix(got.Message, test.starts) || !strings.Contains(got.Message, test.says) {
				t.Errorf("got %+v", got)
			}
			var codes []string
			for _, finding := range got.Findings {
				codes = append(codes, finding.Code)
			}
			if strings.Join(codes, ",") != test.code {
				t.Errorf("want finding %q, got %v", test.code, codes)
			}
			var info *configv1alpha1.TokenCredentialRequestAPIInfo
			if got.Frontend != nil && got.Frontend.Type == configv1alpha1.FrontendTokenCredentialRequestAPI {
				info = got.Frontend.TokenCredentialRequestAPIInfo
			}
			if diff := cmp.Diff(test.want, info); diff != "" {
				t.Errorf("frontend (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPublishedBundle(t *testing.T) {
	t.Parallel()
	at := serving.Endpoint{Host: "proxy.example.com"}
	for _, test := range []struct {
		name       string
		strategies []configv1alpha1.CredentialIssuerStrategy
		want       string
		found      bool
	}{
		{"finds none in an empty status", nil, "", false},
		{
			"finds none while the proxy is in error",
			[]configv1alpha1.CredentialIssuerStrategy{proxyStrategy("Error", "Pending", "x")},
			"", false,
		},
		{"finds the bundle", []configv1alpha1.CredentialIssuerStrategy{publishing(at, []byte("PEM"))}, "PEM", true},
		{"finds that there is none to use", []configv1alpha1.CredentialIssuerStrategy{publishing(at, nil)}, "", true},
	} {
		issuer := &configv1alpha1.CredentialIssuer{}
		issuer.Status.Strategies = test.strategies
		if got, found := publishedBundle(issuer); string(got) != test.want || found != test.found {
			t.Errorf("it %s: %q, %v", test.name, got, found)
		}
	}
}

func publishing(at serving.Endpoint, bundle []byte) configv1alpha1.CredentialIssuerStrategy {
	strategy := proxyStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonListening, messageListening)
	strategy.Frontend = frontend(at, bundle)
	return strategy
}

func TestServedStatus(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	then, now := metav1.NewTime(noon), metav1.NewTime(noon.Add(time.Hour))
	ca := must.Get(certs.NewCA("x", noon, time.Hour))(t)
	pair := must.Get(ca.IssueServing(
		certs.SANs{DNSNames: []string{"a.example"}, IPAddresses: []net.IP{net.ParseIP("fd00::1")}},
		noon,
		30*time.Minute,
	))(t)
	certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
	served := func(namespace string, source serving.Source) *serving.Certificate {
		secret := types.NamespacedName{Namespace: namespace, Name: "s"}
		return &serving.Certificate{Certificate: certificate, Source: source, Secret: secret}
	}
	sha := served("", "").SHA256()
	status := func(change func(*configv1alpha1.ServingCertificateStatus)) *configv1alpha1.ServingCertificateStatus {
		s := &configv1alpha1.ServingCertificateStatus{
			Source: "Secret", SecretName: "s", SHA256: sha, ServedSince: now, Replicas: 1, ServingReplicas: 1,
			NotBefore: metav1.NewTime(pair.NotBefore), NotAfter: metav1.NewTime(pair.NotAfter),
			DNSNames: []string{"a.example"}, IPAddresses: []string{"fd00::1"},
		}
		change(s)
		return s
	}
	me := replicas.Report{Name: "me", SHA256: sha}
	many := []replicas.Report{me}
	for i := range 30 {
		many = append(many, replicas.Report{Name: strconv.Itoa(i)})
	}
	for _, test := range []struct {
		name string
		have *configv1alpha1.ServingCertificateStatus
		of   *serving.Certificate
		live []replicas.Report
		want *configv1alpha1.ServingCertificateStatus
	}{
		{name: "says nothing when nothing is served", live: []replicas.Report{me}},
		{
			name: "tells an external certificate", of: served("ns", serving.SourceExternal), live: []replicas.Report{me},
			want: status(func(*configv1alpha1.ServingCertificateStatus) {}),
		},
		{
			name: "names the namespace of a delegated one", of: served("theirs", serving.SourceExternal),
			live: []replicas.Report{me},
			want: status(func(s *configv1alpha1.ServingCertificateStatus) { s.SecretName = "theirs/s" }),
		},
		{
			name: "keeps the time of what was served before", of: served("ns", serving.SourceGenerated),
			live: []replicas.Report{me},
			have: &configv1alpha1.ServingCertificateStatus{Source: "Generated", SecretName: "s", SHA256: sha, ServedSince: then},
			want: status(func(s *configv1alpha1.ServingCertificateStatus) { s.Source, s.ServedSince = "Generated", then }),
		},
		{
			name: "forgets the time of another one", of: served("ns", serving.SourceExternal), live: []replicas.Report{me},
			have: &configv1alpha1.ServingCertificateStatus{
				Source: "Secret", SecretName: "before", SHA256: sha, ServedSince: then,
			},
			want: status(func(*configv1alpha1.ServingCertificateStatus) {}),
		},
		{
			name: "says of the others why", of: served("ns", serving.SourceExternal),
			live: []replicas.Report{{Name: "a", Problem: "KeyMismatch: x"}, {Name: "b"}, {Name: "c", SHA256: "00"}, me},
			want: status(func(s *configv1alpha1.ServingCertificateStatus) {
				s.Replicas = 4
				s.OtherReplicas = []configv1alpha1.OtherReplica{
					{Name: "a", Message: "KeyMismatch: x"},
					{Name: "b", Message: "it serves no certificate yet"},
					{Name: "c", SHA256: "00", Message: "it does not serve this certificate yet"},
				}
			}),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, servedStatus(test.have, test.of, "ns", test.live, now)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	got := servedStatus(nil, served("ns", serving.SourceExternal), "ns", many, now)
	if got.Replicas != 31 || len(got.OtherReplicas) != maxOtherReplicas {
		t.Errorf("of 31 replicas %d are counted and %d listed", got.Replicas, len(got.OtherReplicas))
	}
}

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
