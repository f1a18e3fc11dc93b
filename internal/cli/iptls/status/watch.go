package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// linesOf says in lines that stand by themselves what the picture shows; what passes with time alone is not among them.
func linesOf(r *result.Status, err error) []string {
	if err != nil {
		return []string{"status: " + err.Error()}
	}
	verdict := "in effect"
	if !r.InEffect {
		verdict = "not in effect"
	}
	lines := []string{"users: " + r.Users.Message}
	if r.Configured != nil {
		lines = append(lines, "configuration: "+configuredText(*r.Configured)+", "+verdict)
	}
	for _, problem := range r.Problems {
		lines = append(lines, "problem: "+problem.Message)
	}
	if r.Agent != nil {
		lines = append(lines, "agent: "+agentText(r))
	}
	if r.Advertised != nil {
		lines = append(lines, fmt.Sprintf("advertised: %s, CA bundle %s", r.Advertised.Endpoint,
			bundleText(r.Advertised.CABundle)))
	}
	if c := r.Certificate; c != nil {
		lines = append(lines, fmt.Sprintf("certificate: SHA-256 %s, valid until %s", c.SHA256,
			c.NotAfter.Format(time.RFC3339)))
	}
	if r.Replicas != nil {
		lines = append(lines, "replicas: "+replicasText(r))
	}
	for _, a := range r.Addresses {
		text := "presents " + plan.OrNone(shortHash(a.SHA256))
		if a.Problem != "" {
			text = plan.OrNone(string(a.Code))
		}
		lines = append(lines, fmt.Sprintf("address %s: %s", a.Address, text))
	}
	for _, file := range r.Kubeconfigs {
		for _, k := range entriesOf(file) {
			lines = append(lines, fmt.Sprintf("kubeconfig %s, context %s: %s", file.Path, k.Name, outcomeText(k.Outcome)))
		}
	}
	for _, what := range r.NotKnown {
		lines = append(lines, "not known: "+what)
	}
	return lines
}

// printChange prints one look of a watch: on a terminal the whole picture, in place of the one before; else what is
// new.
func (o *Options) printChange(status *result.Status, failed error, before, lines []string) error {
	var text []byte
	switch {
	case o.Session.Output == "json":
		if slices.Equal(before, lines) {
			return nil
		}
		var err error
		if text, err = result.EncodeLine(document(status, failed)); err != nil {
			return fmt.Errorf("encoding the status: %w", err)
		}
	case o.Session.Output == "yaml":
		if slices.Equal(before, lines) {
			return nil
		}
		encoded, err := result.Encode("yaml", document(status, failed))
		if err != nil {
			return fmt.Errorf("encoding the status: %w", err)
		}
		text = append([]byte("---\n"), encoded...)
	case o.Terminal:
		picture := []byte(o.Style.Bad("error: ") + strings.Join(lines, "\n") + "\n")
		if failed == nil {
			var err error
			if picture, err = o.text(status); err != nil {
				return err
			}
		}
		// Home, then each line over the old one, then clear what is left: no flicker.
		drawn := strings.ReplaceAll(string(picture), "\n", "\x1b[K\n")
		if before == nil {
			drawn = "\x1b[2J" + drawn
		}
		text = []byte("\x1b[H" + drawn + "\x1b[J")
	default:
		var out strings.Builder
		now := o.Session.Now().UTC().Format(time.RFC3339)
		for _, line := range lines {
			if !slices.Contains(before, line) {
				fmt.Fprintf(&out, "%s %s\n", now, line)
			}
		}
		text = []byte(out.String())
	}
	if len(text) == 0 {
		return nil
	}
	if _, err := o.Session.Out.Write(text); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// document is what a program gets of one look.
func document(status *result.Status, failed error) result.Object {
	if failed != nil {
		return result.NewFailure(failed)
	}
	return status
}

// watch prints the status once, and from then on only what has changed.
func (o *Options) watch(ctx context.Context) error {
	var before []string
	first := true
	for {
		status, err := o.gather(ctx)
		if status != nil {
			err = nil // it tells itself that the cluster does not answer
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if first && err != nil && !temporary(err) {
			return err
		}
		first = false
		lines := linesOf(status, err)
		if err := o.printChange(status, err, before, lines); err != nil {
			return err
		}
		before = lines
		timer := time.NewTimer(o.Interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// temporary says whether looking again may help.
func temporary(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || ui.ExitCodeOf(err) == ui.ExitFailed
}
