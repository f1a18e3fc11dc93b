package explain

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, code, output string
		fails              bool
		want               string
	}{
		{name: "explains a code in any case", code: "mustSTAPLE", output: "text", want: "MustStaple (warning)"},
		{name: "says what can be allowed", code: "NameNotCovered", output: "text", want: "(error; --allow " +
			"NameNotCovered accepts it)"},
		{name: "lists all", output: "text", want: "HandshakeFailed"},
		{name: "writes YAML", code: "Expired", output: "yaml", want: "code: Expired"},
		{
			name: "explains a code of the agent", code: "transitionprepared", output: "text",
			want: "TransitionPrepared (warning)",
		},
		{name: "explains a code of ip-tls status", code: "NoAnswer", output: "text", want: "kubectl get --raw=/readyz"},
		{name: "refuses unknown codes", code: "x", output: "text", fails: true},
		{name: "refuses unknown formats", code: "Expired", output: "x", fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			o := &Options{IOStreams: genericiooptions.IOStreams{Out: &out}, Code: tt.code, Output: tt.output}
			if err := o.Validate(); err != nil {
				if !tt.fails || ui.ExitCodeOf(err) != ui.ExitUsage {
					t.Errorf("Validate: %v", err)
				}
				return
			}
			if tt.fails {
				t.Fatal("it is accepted")
			}
			if err := o.Run(); err != nil || !strings.Contains(out.String(), tt.want) {
				t.Errorf("%v, %s", err, out.String())
			}
		})
	}
}

func TestListAsJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := &Options{IOStreams: genericiooptions.IOStreams{Out: &out}, Output: "json"}
	if err := o.Run(); err != nil {
		t.Fatal(err)
	}
	var all result.CodeExplanationList
	if err := json.Unmarshal(out.Bytes(), &all); err != nil || len(all.Items) != len(certs.Codes()) {
		t.Errorf("%d explanations, %v", len(all.Items), err)
	}
}
