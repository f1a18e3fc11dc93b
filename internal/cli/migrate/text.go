package migrate

import (
	"fmt"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// installed describes what is installed, in a sentence.
func installed(m *result.Migration) string {
	switch m.Stage {
	case result.StagePinniped:
		return fmt.Sprintf("Pinniped is installed in namespace %q (%s).", m.Namespace, m.Image)
	case result.StageRollingOut:
		return fmt.Sprintf("The agent is being rolled out in namespace %q (%s).", m.Namespace, m.Image)
	case result.StageAgent:
		return fmt.Sprintf("The agent serves in namespace %q (%s).", m.Namespace, m.Image)
	case result.StageNone:
	}
	if m.Namespace != "" {
		return fmt.Sprintf("The Concierge APIs are served from namespace %q.", m.Namespace)
	}
	return "Neither Pinniped nor the agent is installed."
}

func (o *Options) text(m *result.Migration) []byte {
	var out strings.Builder
	ui.Fprintf(&out, "%s\n", installed(m))
	for _, finding := range m.Findings {
		mark := "note"
		if finding.InTheWay {
			mark = o.Style.Bad("blocking")
		}
		ui.Fprintf(&out, "\n%s (%s): %s.\n", o.Style.Bold(string(finding.Reason)), mark, finding.Message)
		for _, object := range finding.Objects {
			ui.Fprintf(&out, "  - %s\n", object)
		}
		for i, command := range finding.Commands {
			if i == 0 {
				out.WriteString("\n")
			}
			ui.Fprintf(&out, "  %s\n", command)
		}
	}
	if m.Next != "" {
		ui.Fprintf(&out, "\nNext: %s.\n", m.Next)
	}
	return []byte(out.String())
}

// script returns the commands as a shell script, with comments.
func script(m *result.Migration) []byte {
	var out strings.Builder
	for _, finding := range m.Findings {
		if len(finding.Commands) > 0 {
			ui.Fprintf(&out, "# %s: %s.\n", finding.Reason, finding.Message)
			out.WriteString(strings.Join(finding.Commands, "\n") + "\n")
		}
	}
	return []byte(out.String())
}
