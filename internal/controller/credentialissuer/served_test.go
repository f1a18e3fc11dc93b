package credentialissuer

import (
	"crypto/tls"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/replicas"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

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
		return &serving.Certificate{
			Certificate: certificate,
			Source:      source,
			Secret:      types.NamespacedName{Namespace: namespace, Name: "s"},
		}
	}
	sha := served("", "").SHA256()
	status := func(change func(*configv1alpha1.ServingCertificateStatus)) *configv1alpha1.ServingCertificateStatus {
		s := &configv1alpha1.ServingCertificateStatus{
			Source:          "Secret",
			SecretName:      "s",
			SHA256:          sha,
			NotBefore:       metav1.NewTime(pair.NotBefore),
			NotAfter:        metav1.NewTime(pair.NotAfter),
			DNSNames:        []string{"a.example"},
			IPAddresses:     []string{"fd00::1"},
			ServedSince:     now,
			Replicas:        1,
			ServingReplicas: 1,
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
			name: "names the namespace of a delegated one", of: served(
				"theirs", serving.SourceExternal,
			), live: []replicas.Report{me},
			want: status(func(s *configv1alpha1.ServingCertificateStatus) { s.SecretName = "theirs/s" }),
		},
		{
			name: "keeps the time of what was served before", of: served(
				"ns", serving.SourceGenerated,
			), live: []replicas.Report{me},
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
	if got := servedStatus(
		nil,
		served("ns", serving.SourceExternal),
		"ns",
		many,
		now,
	); got.Replicas != 31 ||
		len(got.OtherReplicas) != maxOtherReplicas {
		t.Errorf("of 31 replicas %d are counted and %d listed", got.Replicas, len(got.OtherReplicas))
	}
}
