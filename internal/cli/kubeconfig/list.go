// Package kubeconfig implements `pinniped kubeconfig`: commands for existing kubeconfigs.
package kubeconfig

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(&cobra.Command{
		Use:     "kubeconfig",
		Short:   "List kubeconfigs, and update their CA bundles",
		Example: "  pinniped kubeconfig ls\n  pinniped kubeconfig rotate ~/.kube/config",
	})
	cmd.AddCommand(newListCommand(f), newRotateOptions(f).command(f))
	return cmd
}

// ListOptions holds the inputs of `pinniped kubeconfig ls`; a test fills it directly.
type ListOptions struct {
	genericiooptions.IOStreams
	Progress func() *ui.Progress
	Now      func() time.Time
	LookPath func(string) (string, error)
	Inputs   *atomicfile.Inputs

	Paths         []string // files, folders and patterns
	Connect       bool
	ExpiresWithin time.Duration
	Output        string
	Timeout       time.Duration
}

func newListCommand(f *factory.Factory) *cobra.Command {
	o := &ListOptions{IOStreams: f.IOStreams, Progress: f.Progress, Now: f.Now, LookPath: exec.LookPath, Inputs: f.Inputs}
	cmd := &cobra.Command{
		Use:     "ls [FILE|FOLDER|PATTERN...]",
		Aliases: []string{"list"},
		Short:   "List the contexts of kubeconfigs, each with a verdict",
		Long: `List the contexts of kubeconfigs. For each context, the command prints the cluster, endpoint, login, trusted CA and a
verdict. Without arguments, it reads the files that kubectl uses: those in KUBECONFIG, or else ~/.kube/config. A FOLDER
stands for all kubeconfigs in it and in its subfolders. A PATTERN such as 'clusters/*.yaml' stands for all files that match.

Without --connect, the command contacts no cluster. With --connect, it reads the certificate of each endpoint, without a
credential. If the CA bundle does not verify that certificate, the bundle is outdated. The command never prints secrets.

Verdicts, worst first:

  unreadable    the file cannot be read
  incomplete    a cluster or user is missing
  outdated      the CA bundle does not verify the endpoint's certificate
  expired       a CA or client certificate has expired
  unreachable   the endpoint does not respond
  noPlugin      the credential plugin is not on this computer
  expiring      a CA or client certificate expires within --expires-within
  insecure      the context skips TLS verification
  notKnown      the credential plugin is unknown, and so is the CA that it trusts
  ok

The text below the table has the reason for each verdict and, if known, a command that fixes the problem.

Exit codes: 0 listed, regardless of the verdicts (see "pinniped help exit-codes")`,
		Example: `  pinniped kubeconfig ls
  pinniped kubeconfig ls kubeconfigs/ --connect

  # Files that need a new CA bundle
  pinniped kubeconfig ls 'clusters/*.yaml' --connect -o json | jq -r '.contexts[] | select(.verdict == "outdated") | .path'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Paths, err = f.ExpandPaths(args); err != nil {
				return err
			}
			if len(args) == 0 {
				o.Paths = defaultPaths(f)
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.Connect, "connect", false, "check the certificate of each endpoint")
	flags.DurationVar(
		&o.ExpiresWithin,
		"expires-within",
		30*24*time.Hour,
		"report certificates that expire within this time",
	)
	flags.DurationVar(&o.Timeout, "timeout", 30*time.Second, "total time limit for --connect (0: none)")
	factory.AddOutput(cmd, &o.Output, factory.Formats()...)
	return cmd
}

// defaultPaths returns kubectl's default files.
func defaultPaths(f *factory.Factory) []string {
	if paths := filepath.SplitList(f.Getenv("KUBECONFIG")); len(paths) > 0 {
		return slices.DeleteFunc(paths, func(path string) bool { _, err := os.Stat(path); return err != nil })
	}
	home, err := f.HomeDir()
	path := filepath.Join(home, ".kube", "config")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return nil
	}
	return []string{path}
}

// Validate checks the flags.
func (o *ListOptions) Validate() error {
	if err := factory.CheckOutput(o.Output, factory.Formats()...); err != nil {
		return err
	}
	if len(o.Paths) == 0 {
		return ui.WithHint(errors.New("finding kubeconfigs: there are none"),
			"run \"pinniped kubeconfig ls FOLDER\", or create one with \"pinniped get kubeconfig\"")
	}
	return nil
}

// Run reads the files, and connects to the endpoints.
func (o *ListOptions) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	files, err := kubeconfig.Find(ctx, expand(o.Paths))
	if err != nil {
		return err
	}
	list := &result.KubeconfigList{At: o.Now().UTC(), Contexts: []result.KubeconfigContext{}}
	var failed error
	var clusters []*clientcmdapi.Cluster // of the contexts, in the same order
	for _, file := range files {
		contexts, of, err := o.read(file)
		if err != nil && file.Named && failed == nil {
			failed = err
		}
		list.Contexts, clusters = append(list.Contexts, contexts...), append(clusters, of...)
	}
	if o.Connect {
		o.connect(ctx, list.Contexts, clusters)
	}
	if failed != nil {
		failed = explainFile(failed)
	}
	return result.Print(o.Out, o.Output, list, failed, func() ([]byte, error) { return textOf(list) })
}

// expand expands patterns. One without a match stays, so that it is reported as missing.
func expand(paths []string) []string {
	var all []string
	for _, path := range paths {
		matches, err := filepath.Glob(path)
		if _, missing := os.Stat(path); missing == nil || err != nil || len(matches) == 0 {
			matches = []string{path}
		}
		all = append(all, matches...)
	}
	return all
}

// read returns the contexts of a file, and their clusters. A file in a directory that is not a kubeconfig has none.
func (o *ListOptions) read(file kubeconfig.Found) ([]result.KubeconfigContext, []*clientcmdapi.Cluster, error) {
	if file.Hidden {
		o.Progress().Info("Skipped hidden folder %q: pass its path if it has kubeconfigs", file.Path)
		return nil, nil, nil
	}
	config, err := file.Load(o.Inputs)
	unusable := result.KubeconfigContext{Path: file.Path}
	switch {
	case errors.Is(err, kubeconfig.ErrNotKubeconfig) && !file.Named:
		return nil, nil, nil
	case err != nil:
		blame(&unusable, result.VerdictUnreadable, "%v", err)
	case len(config.Contexts) == 0:
		blame(&unusable, result.VerdictIncomplete, "it has no context")
	}
	if unusable.Verdict != "" {
		return []result.KubeconfigContext{unusable}, []*clientcmdapi.Cluster{nil}, err
	}
	var rows []result.KubeconfigContext
	var clusters []*clientcmdapi.Cluster
	for _, name := range slices.Sorted(maps.Keys(config.Contexts)) {
		row := o.describe(config, name)
		row.Path, row.Context, row.Current = file.Path, name, name == config.CurrentContext
		rows = append(rows, row)
		clusters = append(clusters, config.Clusters[row.Cluster])
	}
	return rows, clusters, nil
}

// connect connects to every endpoint once for each CA bundle, several at a time.
func (o *ListOptions) connect(ctx context.Context, rows []result.KubeconfigContext, clusters []*clientcmdapi.Cluster) {
	type target struct{ server, name, proxy, bundle string }
	users := map[target][]int{} // indexes of rows
	for i, cluster := range clusters {
		if cluster == nil || cluster.InsecureSkipTLSVerify || cluster.Server == "" || rows[i].CABundle == nil {
			continue
		}
		bundle, err := kubeconfig.BundleOf(cluster)
		if err != nil {
			continue
		}
		at := target{cluster.Server, cluster.TLSServerName, cluster.ProxyURL, string(bundle)}
		users[at] = append(users[at], i)
	}
	var group errgroup.Group
	group.SetLimit(8)
	for at, indexes := range users {
		group.Go(func() error {
			err := try(ctx, clusters[indexes[0]], []byte(at.bundle))
			for _, i := range indexes {
				switch {
				case err == nil:
				case discovery.Permanent(err):
					blame(&rows[i], result.VerdictOutdated, "the CA bundle does not verify the endpoint's certificate: %v", err)
					rows[i].Fix = "pinniped kubeconfig rotate " + ui.ShellWord(rows[i].Path)
				default:
					blame(&rows[i], result.VerdictUnreachable, "the endpoint does not respond: %v", err)
				}
			}
			return nil
		})
	}
	_ = group.Wait()
}

func try(ctx context.Context, cluster *clientcmdapi.Cluster, bundle []byte) error {
	client, err := discovery.NewHTTPClient(cluster, bundle)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return discovery.Try(ctx, client, cluster.Server)
}

// blame adds a problem. The worst problem determines the verdict and is listed first.
func blame(row *result.KubeconfigContext, verdict result.Verdict, format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	order := result.Verdict("").Enum()
	if row.Verdict == "" || slices.Index(order, string(verdict)) < slices.Index(order, string(row.Verdict)) {
		row.Verdict, row.Problems = verdict, slices.Insert(row.Problems, 0, problem)
		return
	}
	row.Problems = append(row.Problems, problem)
}

func textOf(list *result.KubeconfigList) ([]byte, error) {
	var rows [][]string
	var notes strings.Builder
	for _, c := range list.Contexts {
		name := c.Context
		if c.Current {
			name += " *"
		}
		rows = append(rows, []string{c.Path, name, c.Cluster, c.Endpoint, c.Login, bundleText(c), string(c.Verdict)})
		for _, problem := range c.Problems {
			where := c.Path
			if c.Context != "" {
				where += ", context " + c.Context
			}
			ui.Fprintf(&notes, "%s: %s: %s\n", where, c.Verdict, problem)
		}
		if c.Fix != "" {
			ui.Fprintf(&notes, "  run: %s\n", c.Fix)
		}
	}
	if len(rows) == 0 {
		return nil, nil
	}
	var out bytes.Buffer
	header := []string{"kubeconfig", "context", "cluster", "endpoint", "login", "CA", "verdict"}
	if err := ui.PlainTable(&out, header, rows); err != nil {
		return nil, err
	}
	if notes.Len() > 0 {
		out.WriteString("\n" + notes.String())
	}
	return out.Bytes(), nil
}

// bundleText returns the CA that expires first.
func bundleText(c result.KubeconfigContext) string {
	switch {
	case c.CABundle == nil:
		return "-"
	case len(c.CABundle) == 0:
		return "system roots"
	}
	first := slices.MinFunc(c.CABundle, func(a, b result.CACertificate) int { return a.NotAfter.Compare(b.NotAfter) })
	text := fmt.Sprintf("%.40s until %s", first.Subject, first.NotAfter.Format("2006-01-02"))
	if more := len(c.CABundle) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// describe evaluates a context of a kubeconfig, without a network.
func (o *ListOptions) describe(config *clientcmdapi.Config, name string) result.KubeconfigContext {
	kubeContext := config.Contexts[name]
	row := result.KubeconfigContext{Cluster: kubeContext.Cluster, User: kubeContext.AuthInfo}
	if cluster := config.Clusters[kubeContext.Cluster]; cluster == nil || cluster.Server == "" {
		blame(&row, result.VerdictIncomplete, "cluster %q is missing or has no server", kubeContext.Cluster)
	} else {
		row.Endpoint = cluster.Server
		o.judgeCluster(&row, cluster)
	}
	if user := config.AuthInfos[kubeContext.AuthInfo]; user == nil {
		blame(&row, result.VerdictIncomplete, "there is no user %q", kubeContext.AuthInfo)
	} else {
		o.judgeUser(&row, user)
	}
	if row.Verdict == "" {
		row.Verdict = result.VerdictOK
	}
	return row
}

func (o *ListOptions) judgeCluster(row *result.KubeconfigContext, cluster *clientcmdapi.Cluster) {
	if cluster.InsecureSkipTLSVerify {
		blame(row, result.VerdictInsecure, "it has insecure-skip-tls-verify, so an on-path attacker can read everything")
		return
	}
	bundle, err := kubeconfig.BundleOf(cluster)
	if err == nil && len(bundle) > 0 {
		_, err = kubeconfig.CountCertificates(bundle)
	}
	if err != nil {
		blame(row, result.VerdictUnreadable, "reading the CA bundle of cluster %q: %v", row.Cluster, err)
		return
	}
	row.CABundle = result.BundleOf(bundle)
	for _, ca := range row.CABundle {
		o.judgeExpiry(row, "the CA "+ca.Subject, ca.NotAfter)
	}
}

func (o *ListOptions) judgeExpiry(row *result.KubeconfigContext, what string, notAfter time.Time) {
	day := notAfter.UTC().Format("2006-01-02")
	switch left := notAfter.Sub(o.Now()); {
	case left <= 0:
		blame(row, result.VerdictExpired, "%s expired on %s", what, day)
	case left < o.ExpiresWithin:
		blame(row, result.VerdictExpiring, "%s expires on %s", what, day)
	}
}

// judgeUser describes how the user logs in. It prints no secret.
func (o *ListOptions) judgeUser(row *result.KubeconfigContext, user *clientcmdapi.AuthInfo) {
	switch {
	case user.Exec != nil:
		row.Login = pluginText(user)
		if _, err := o.LookPath(user.Exec.Command); err != nil {
			blame(row, result.VerdictNoPlugin, "the credential plugin %q is not on this computer", user.Exec.Command)
		}
		if program := kubeconfig.UnknownPlugin(user); program != "" {
			blame(row, result.VerdictNotKnown,
				"the credential plugin %q is unknown, and so is the CA that it trusts", program)
		}
	case user.AuthProvider != nil:
		row.Login = "auth provider " + user.AuthProvider.Name
		blame(row, result.VerdictNoPlugin, "kubectl no longer supports auth providers: recreate the kubeconfig")
	case len(user.ClientCertificateData) > 0, user.ClientCertificate != "":
		o.judgeCertificate(row, user)
	case user.TokenFile != "":
		row.Login = "token in " + user.TokenFile
	case user.Token != "":
		row.Login = "token"
	case user.Username != "":
		row.Login = "password of " + user.Username
	default:
		row.Login = "nobody"
	}
	if user.Impersonate != "" {
		row.Login += ", as " + user.Impersonate
	}
}

func (o *ListOptions) judgeCertificate(row *result.KubeconfigContext, user *clientcmdapi.AuthInfo) {
	row.Login = "client certificate"
	text := user.ClientCertificateData
	var err error
	if len(text) == 0 {
		text, err = kubeconfig.ReadNamed(user.ClientCertificate)
	}
	var certificate *x509.Certificate
	if err == nil {
		block, _ := pem.Decode(text)
		if block == nil {
			err = fmt.Errorf("it is not PEM")
		} else {
			certificate, err = x509.ParseCertificate(block.Bytes)
		}
	}
	if err != nil {
		blame(row, result.VerdictUnreadable, "reading the client certificate of user %q: %v", row.User, err)
		return
	}
	row.Login += " of " + certificate.Subject.CommonName
	o.judgeExpiry(row, "the client certificate", certificate.NotAfter)
}

// pluginText names a credential plugin and, for "pinniped login", the source of its token.
func pluginText(user *clientcmdapi.AuthInfo) string {
	plugin := user.Exec
	if !kubeconfig.RunsPinniped(user) {
		return "plugin " + filepath.Base(strings.ReplaceAll(plugin.Command, `\`, "/"))
	}
	values := map[string]string{}
	text := "pinniped static"
	for i, arg := range plugin.Args {
		if arg == "oidc" && i > 0 && plugin.Args[i-1] == "login" {
			text = "pinniped oidc"
		}
		name, value, _ := strings.Cut(arg, "=")
		values[name] = value
	}
	switch {
	case values["--issuer"] != "":
		return text + ", " + values["--issuer"]
	case values["--token-env"] != "":
		return text + ", $" + values["--token-env"]
	}
	return text
}
