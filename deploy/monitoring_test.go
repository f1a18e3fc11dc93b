package deploy

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestMetricsExist checks that the metrics of alerts and panels are in the reference, which is generated from the
// agent.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	reference := must.Get(os.ReadFile("../docs/reference/metrics.md"))(t)
	expressions := append(alertExpressions(t), panelExpressions(t)...)
	if len(expressions) < 20 {
		t.Fatalf("found %d expressions only", len(expressions))
	}
	named := regexp.MustCompile(`pinniped_[a-z_]+`)
	for _, expression := range expressions {
		for _, metric := range named.FindAllString(expression, -1) {
			metric = strings.TrimSuffix(metric, "_bucket")
			if !strings.Contains(string(reference), "| `"+metric+"` |") {
				t.Errorf("%s: the agent has no metric %s", expression, metric)
			}
		}
	}
}

// TestEveryAlertFires checks that the tests of `make alerts` expect each alert to fire.
func TestEveryAlertFires(t *testing.T) {
	t.Parallel()
	rules := must.Get(os.ReadFile("monitoring/alerts.yaml"))(t)
	tests := must.Get(os.ReadFile("monitoring/alerts_test.yaml"))(t)
	alerts := regexp.MustCompile(`(?m)^ *- alert: (\w+)\b`).FindAllStringSubmatch(string(rules), -1)
	for _, alert := range alerts {
		if !strings.Contains(string(tests), `alertname="`+alert[1]+`"`) {
			t.Errorf("no test makes %s fire", alert[1])
		}
	}
	if len(alerts) < 10 {
		t.Errorf("found %d alerts only", len(alerts))
	}
}

func alertExpressions(t *testing.T) []string {
	t.Helper()
	content := must.Get(os.ReadFile("monitoring/alerts.yaml"))(t)
	var file struct {
		Groups []struct {
			Rules []struct {
				Expr        string
				Annotations struct {
					Runbook string `json:"runbook_url"`
				}
			}
		}
	}
	must.Do(t, yaml.Unmarshal(content, &file))
	var expressions []string
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			expressions = append(expressions, rule.Expr)
			runbook, ours := strings.CutPrefix(
				rule.Annotations.Runbook,
				"https://github.com/pinniped-toolkit/pinniped/blob/main/",
			)
			if _, err := os.Stat("../" + runbook); err != nil || !ours {
				t.Errorf("%s: its runbook %q: %v", rule.Expr, rule.Annotations.Runbook, err)
			}
		}
	}
	return expressions
}

func panelExpressions(t *testing.T) []string {
	t.Helper()
	content := must.Get(os.ReadFile("monitoring/dashboard.json"))(t)
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must.Do(t, json.Unmarshal(content, &dashboard))
	var expressions []string
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			expressions = append(expressions, target.Expr)
		}
	}
	return expressions
}
