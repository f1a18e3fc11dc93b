package getkubeconfig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Destination is where the kubeconfig goes.
type Destination struct {
	Output      string // file; stdout if it is empty, "-", json, yaml or formSummary
	MergeInto   string // existing kubeconfig
	SetCurrent  bool
	Check, Diff bool          // compare with the file, and write nothing
	LockTimeout time.Duration // for a file that another program is changing
}

// formSummary is the value of --output for a summary. "./summary" is a file.
const formSummary = "summary"

func (d *Destination) addFlags(cmd *cobra.Command) {
	factory.AddFileOutput(
		cmd,
		&d.Output,
		"write the kubeconfig atomically to this file (default: stdout); \"json\", \"yaml\" and \"summary\" print it to "+
			"stdout in that format",
	)
	flags := cmd.Flags()
	flags.StringVar(&d.MergeInto, "merge-into", "", "add context, cluster and user to this file, and change "+
		"nothing else")
	flags.BoolVar(&d.SetCurrent, "set-current", false, "with --merge-into: make the context current")
	flags.BoolVar(
		&d.Check,
		"check",
		false,
		"only compare the result with the --output or --merge-into file (exit code 0 or 6)",
	)
	flags.BoolVar(&d.Diff, "diff", false, "like --check, and print the differences")
}

func (d *Destination) compares() bool { return d.Check || d.Diff }

// file returns the path for the kubeconfig; empty for stdout and for a summary alone.
func (d *Destination) file() string {
	if d.MergeInto != "" {
		return d.MergeInto
	}
	if slices.Contains([]string{"", "-", formSummary}, d.Output) || result.Machine(d.Output) {
		return ""
	}
	return d.Output
}

// validate finds errors before the command waits for minutes.
func (d *Destination) validate() error {
	file := d.file()
	switch {
	case d.MergeInto != "" && !slices.Contains([]string{"", formSummary}, d.Output):
		return ui.Usage(errors.New("--merge-into and --output cannot be combined"))
	case d.SetCurrent && d.MergeInto == "":
		return ui.Usage(errors.New("--set-current requires --merge-into"))
	case d.compares() && file == "":
		return ui.WithHint(
			ui.Usage(errors.New("--check and --diff need a file to compare with")),
			"name it with --output or --merge-into",
		)
	case file == "":
		return nil
	}
	flag := "output"
	if d.MergeInto != "" {
		flag = "merge-into"
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return ui.Usage(fmt.Errorf("invalid --%s %q: it is a directory", flag, file))
	}
	if d.MergeInto != "" {
		return nil // its directory will be created
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil || !info.IsDir() {
		return ui.Usage(fmt.Errorf("invalid --%s %q: there is no directory %q", flag, file, filepath.Dir(file)))
	}
	return nil
}

func writeJSON(w io.Writer, config *clientcmdapi.Config) error {
	var text, indented bytes.Buffer
	err := kubeconfig.Write(&text, config)
	if err != nil {
		return err
	}
	content, err := yaml.YAMLToJSON(text.Bytes())
	if err == nil {
		err = json.Indent(&indented, content, "", "  ")
	}
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	if _, err := fmt.Fprintln(w, indented.String()); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}

// deliver writes the kubeconfig, or compares it with the file.
func (o *Options) deliver(ctx context.Context, config *clientcmdapi.Config, input *kubeconfig.Input) error {
	d := &o.Destination
	switch {
	case d.compares():
		return o.compare(config)
	case d.MergeInto != "":
		if err := o.merge(ctx, config); err != nil {
			return err
		}
	case d.file() != "":
		if err := kubeconfig.WriteFile(d.Output, config); err != nil {
			return err
		}
		o.Progress.Done("wrote %q", d.Output)
	case d.Output == "json":
		return writeJSON(o.Out, config)
	case d.Output != formSummary:
		return kubeconfig.Write(o.Out, config)
	}
	if d.Output == formSummary {
		return o.summarise(config, input)
	}
	return nil
}

func (o *Options) merge(ctx context.Context, config *clientcmdapi.Config) error {
	d := &o.Destination
	ctx, cancel := context.WithTimeout(ctx, d.LockTimeout)
	defer cancel()
	merged, err := kubeconfig.MergeFile(ctx, d.MergeInto, config, d.SetCurrent)
	if err != nil {
		return o.explainMerge(err, config)
	}
	if !merged.Changed() {
		o.Progress.Done("%q is up to date", d.MergeInto)
	}
	for _, entry := range merged.Entries {
		if entry.Outcome != kubeconfig.Current {
			o.Progress.Done("%s %s %q in %q", entry.Outcome, entry.Kind, entry.Name, d.MergeInto)
		}
	}
	switch {
	case merged.CurrentContext != merged.CurrentContextBefore:
		o.Progress.Done("made %q the current context", merged.CurrentContext)
	case merged.CurrentContext != config.CurrentContext:
		o.Progress.Info(
			"the current context of %q is still %q: to use the new context, run kubectl --context %s or pass --set-current",
			d.MergeInto,
			merged.CurrentContext,
			ui.ShellWord(config.CurrentContext),
		)
	}
	return nil
}

// explainMerge adds a hint to an error of a merge.
func (o *Options) explainMerge(err error, config *clientcmdapi.Config) error {
	var foreign *kubeconfig.ForeignEntryError
	var other *kubeconfig.OtherClusterError
	switch {
	case errors.As(err, &other):
		return ui.WithHint(err, "run: %s", o.withNames(config))
	case errors.As(err, &foreign):
		return ui.WithHint(err, "give the new entry another name with --%s-name", foreign.Kind)
	case errors.Is(err, kubeconfig.ErrDamaged):
		return ui.WithHint(err, "fix the file first; nothing was written")
	}
	return err
}

// withNames returns this command line with names that no other cluster has.
func (o *Options) withNames(config *clientcmdapi.Config) string {
	entry := config.Contexts[config.CurrentContext]
	host := config.Clusters[entry.Cluster].Server
	if at, err := url.Parse(host); err == nil {
		host = strings.ReplaceAll(at.Host, ":", "-")
	}
	words := []string{"pinniped"}
	for i := 0; i < len(o.Args); i++ {
		name, _, joined := strings.Cut(o.Args[i], "=")
		if slices.Contains([]string{"--cluster-name", "--context-name", "--user-name"}, name) {
			if !joined {
				i++
			}
			continue
		}
		words = append(words, ui.ShellWord(o.Args[i]))
	}
	if o.StaticToken != "" || len(o.Args) == 0 { // never print a secret
		words = []string{"pinniped get kubeconfig ... --merge-into", ui.ShellWord(o.Destination.MergeInto)}
	}
	return strings.Join(append(words,
		"--cluster-name", ui.ShellWord(entry.Cluster+"-"+host),
		"--context-name", ui.ShellWord(config.CurrentContext+"-"+host),
		"--user-name", ui.ShellWord(entry.AuthInfo+"-"+host)), " ")
}

// compare compares the kubeconfig with the file.
func (o *Options) compare(config *clientcmdapi.Config) error {
	d := &o.Destination
	differences, err := d.differences(config)
	if err != nil {
		return o.explainMerge(err, config)
	}
	if len(differences) == 0 {
		o.Progress.Done("%q is up to date", d.file())
		return nil
	}
	if d.Diff {
		if _, err := fmt.Fprintf(o.Out, "--- %s\n+++ what the cluster has now\n%s", d.file(),
			strings.Join(differences, "")); err != nil {
			return fmt.Errorf("writing the differences: %w", err)
		}
	}
	hint := "use --diff to see the differences, or omit --check to write the file"
	if d.Diff {
		hint = "run the same command without --diff to write the file"
	}
	return ui.WithHint(
		ui.WithReason(fmt.Errorf("%q differs from a new kubeconfig", d.file()), ui.ExitDiffers,
			ui.ReasonDiffers), "%s", hint,
	)
}

func (d *Destination) differences(config *clientcmdapi.Config) ([]string, error) {
	if d.MergeInto != "" {
		merged, err := kubeconfig.PreviewMerge(d.MergeInto, config, d.SetCurrent)
		if err != nil {
			return nil, err
		}
		return kubeconfig.Differences(merged.Before, merged.After), nil
	}
	have := clientcmdapi.NewConfig()
	if _, err := os.Stat(d.Output); err == nil {
		if have, err = kubeconfig.LoadAsWritten(d.Output); err != nil {
			return nil, err
		}
	}
	return kubeconfig.Differences(have, config), nil
}

// summarise prints a summary of the kubeconfig.
func (o *Options) summarise(config *clientcmdapi.Config, input *kubeconfig.Input) error {
	kubeContext := config.Contexts[config.CurrentContext]
	cluster := config.Clusters[kubeContext.Cluster]
	lines := [][2]string{
		{"Context", config.CurrentContext},
		{"Cluster", kubeContext.Cluster},
		{"User", kubeContext.AuthInfo},
		{"Endpoint", cluster.Server},
	}
	lines = append(lines, bundleLines(cluster)...)
	if c := input.Exec.Concierge; c != nil && input.TokenFile == "" {
		lines = append(lines, [2]string{"Mode", string(o.mode)})
		if c.Endpoint != cluster.Server {
			lines = append(lines, [2]string{"Exchange at", c.Endpoint})
		}
		lines = append(lines, [2]string{"Authenticator", c.AuthenticatorType + " " + c.AuthenticatorName})
	}
	lines = append(lines, loginLines(input)...)
	if input.TokenFile == "" {
		lines = append(lines, [2]string{"Command", input.Exec.Command})
	}
	lines = append(lines, o.tried...)
	var text strings.Builder
	for _, line := range lines {
		if line[1] != "" {
			fmt.Fprintf(&text, "%-15s %s\n", line[0]+":", ui.Plain(line[1]))
		}
	}
	if _, err := fmt.Fprint(o.Out, text.String()); err != nil {
		return fmt.Errorf("writing the summary: %w", err)
	}
	return nil
}

func bundleLines(cluster *clientcmdapi.Cluster) [][2]string {
	if cluster.InsecureSkipTLSVerify {
		return [][2]string{{"CA", "nothing is verified (insecure-skip-tls-verify)"}}
	}
	members, _ := certs.ParseBundle(cluster.CertificateAuthorityData)
	if len(members) == 0 {
		return [][2]string{{"CA", "the system roots"}}
	}
	var lines [][2]string
	for _, member := range members {
		text := fmt.Sprintf("%s, until %s, SHA-256 %s",
			member.Subject, member.NotAfter.UTC().Format(time.RFC3339), certs.Fingerprint(member.Raw))
		lines = append(lines, [2]string{"CA", text})
	}
	return lines
}

func loginLines(input *kubeconfig.Input) [][2]string {
	switch {
	case input.TokenFile != "":
		return [][2]string{{"Login", "token in the file " + input.TokenFile}}
	case input.Exec.OIDC != nil:
		oidc := input.Exec.OIDC
		return [][2]string{
			{"Login", "OpenID Connect"},
			{"Issuer", oidc.Issuer},
			{"Client", oidc.ClientID},
			{"Scopes", strings.Join(oidc.Scopes, " ")},
			{"Audience", oidc.RequestAudience},
			{"Provider", strings.TrimSpace(oidc.UpstreamType + " " + oidc.UpstreamName)},
			{"Flow", oidc.UpstreamFlow},
		}
	case input.Exec.Static != nil && input.Exec.Static.TokenEnv != "":
		return [][2]string{{"Login", "token in the environment variable " + input.Exec.Static.TokenEnv}}
	}
	return [][2]string{{"Login", "token in the kubeconfig"}}
}
