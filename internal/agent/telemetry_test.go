package agent

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pinniped-toolkit/pinniped/internal/concierge"
	"github.com/pinniped-toolkit/pinniped/internal/privilege"
	"github.com/pinniped-toolkit/pinniped/internal/proxy"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// described parses the text of a prometheus.Desc, which has no accessors.
var described = regexp.MustCompile(
	`^Desc\{fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*"), .*constLabels: \{(.*?)\}, variableLabels: \{(.*?)\}\}$`,
)

// apiMetrics are the metrics of the Concierge APIs.
func apiMetrics() []prometheus.Collector {
	port := listener.New(flowcontrol.New(flowcontrol.APILimitsFor(flowcontrol.DefaultMemory, 2)))
	return []prometheus.Collector{concierge.NewLoginLimits(port.FlowControl()), concierge.ClientMetrics{Port: port}}
}

// TestMetricsAreDocumented compares the table in docs/reference/metrics.md with the registered metrics. UPDATE_GOLDEN=1
// rewrites the table.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	a := &agent{options: Options{Version: "v1"}, holder: &serving.Holder{}, leader: &leadership{}}
	registry := a.newRegistry(append(apiMetrics(), proxy.NewMetrics(), &selfCheck{}))
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		registry.Describe(descriptions)
	}()
	var rows []string
	for description := range descriptions {
		parts := described.FindStringSubmatch(description.String())
		if parts == nil {
			t.Fatalf("not understood: %s", description)
		}
		help := strings.ReplaceAll(strings.ReplaceAll(strings.Trim(parts[2], `"`), `\"`, "`"), "|", `\|`)
		var labels []string
		for label := range strings.SplitSeq(parts[3], ",") {
			if name, _, ok := strings.Cut(label, "="); ok {
				labels = append(labels, "`"+name+"`")
			}
		}
		for label := range strings.SplitSeq(parts[4], ",") {
			if label != "" {
				labels = append(labels, "`"+label+"`")
			}
		}
		rows = append(
			rows,
			fmt.Sprintf("| `%s` | %s | %s | %s |", parts[1], kind(parts[1]), strings.Join(labels, ", "), help),
		)
	}
	slices.Sort(rows)
	table := "| metric | kind | labels | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n"

	path := filepath.Join("..", "..", "docs", "reference", "metrics.md")
	content := must.Get(os.ReadFile(path))(t)
	const begin, end = "<!-- the table is made by go test ./internal/agent -->\n", "<!-- end of the table -->"
	before, rest, ok := strings.Cut(string(content), begin)
	written, after, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s has no place for the table", path)
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		must.Do(t, os.WriteFile(path, []byte(before+begin+table+end+after), 0o644))
		return
	}
	if diff := cmp.Diff(written, table); diff != "" {
		t.Errorf("%s (-documented +registered), UPDATE_GOLDEN=1 accepts it:\n%s", path, diff)
	}
}

func kind(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_seconds") && !strings.HasSuffix(name, "_timestamp_seconds"):
		return "histogram"
	}
	return "gauge"
}

// TestMetricsAreWellNamed checks names, units and help texts with Prometheus' own linter.
func TestMetricsAreWellNamed(t *testing.T) {
	t.Parallel()
	a := &agent{options: Options{Version: "v1"}, holder: &serving.Holder{}, leader: &leadership{}}
	metrics := proxy.NewMetrics()
	registry := a.newRegistry(append(apiMetrics(), metrics, &selfCheck{}))
	problems := must.Get(testutil.GatherAndLint(registry))(t)
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

// TestMetricsOfTheAgent gathers the metrics in each state.
func TestMetricsOfTheAgent(t *testing.T) {
	t.Parallel()
	a := &agent{options: Options{Version: "v1.2.3"}, holder: &serving.Holder{}, leader: &leadership{}}
	check := &selfCheck{}
	registry := a.newRegistry([]prometheus.Collector{check})
	expect := func(want map[string]float64) {
		t.Helper()
		families := must.Get(registry.Gather())(t)
		got := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				name := strings.TrimPrefix(family.GetName(), "pinniped_agent_")
				for _, label := range metric.GetLabel() {
					if label.GetName() != "goversion" {
						name += " " + label.GetValue()
					}
				}
				got[name] = metric.GetGauge().GetValue()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	expect(map[string]float64{"build_info v1.2.3": 1, "leader": 0, "proxy_wanted": 0})

	ca := must.Get(certs.NewCA("ca", time.Unix(1_800_000_000, 0), 10*time.Hour))(t)
	pair := must.Get(
		ca.IssueServing(certs.SANs{DNSNames: []string{"localhost"}}, time.Unix(1_800_000_000, 0), time.Hour))(t)
	certificate := tlsCertificate(t, pair)
	a.holder.Serve(&serving.Certificate{Certificate: certificate, Source: serving.SourceExternal})
	a.holder.Note(serving.Evaluation{Refusal: &serving.Refusal{Finding: certs.Finding{Code: certs.KeyMismatch}}})
	a.leader.held = func() bool { return true }
	a.leader.begin(t.Context())
	check.last.Store(&privilege.Report{Excess: []privilege.Excess{{What: "get secrets"}, {What: "list secrets"}}})
	expect(map[string]float64{
		"build_info v1.2.3": 1, "leader": 1, "proxy_wanted": 0, "upstream_credential_excess_rules": 2,
		"serving_certificate_expiry_timestamp_seconds external": float64(certificate.Leaf.NotAfter.Unix()),
		"serving_certificate_findings KeyMismatch error":        1,
	})
	a.holder.Note(serving.Evaluation{Waiting: &serving.Waiting{Until: time.Unix(1_800_000_000, 0)}})
	expect(map[string]float64{
		"build_info v1.2.3": 1, "leader": 1, "proxy_wanted": 0, "upstream_credential_excess_rules": 2,
		"serving_certificate_expiry_timestamp_seconds external":   float64(certificate.Leaf.NotAfter.Unix()),
		"serving_certificate_findings TransitionPrepared warning": 1,
		"serving_certificate_transition_until_timestamp_seconds":  1_800_000_000,
	})
	a.holder.Withdraw()
	a.leader.end()
	check.last.Store(&privilege.Report{})
	expect(
		map[string]float64{"build_info v1.2.3": 1, "leader": 0, "proxy_wanted": 0, "upstream_credential_excess_rules": 0},
	)
}

func tlsCertificate(t *testing.T, pair *certs.KeyPair) tls.Certificate {
	t.Helper()
	return must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
}
