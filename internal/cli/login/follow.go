package login

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Kubeconfigs refresh the trust bundle of their cluster: docs/adr/0059-kubeconfigs-refresh-the-trust-bundle.md.

const (
	// bundleTimeout limits the request for the trust bundle, while kubectl waits.
	bundleTimeout = 2 * time.Second
	// checkInterval is the minimum time between two requests of a login, and noticeInterval between two messages.
	checkInterval  = time.Hour
	noticeInterval = 24 * time.Hour
)

// following holds the settings for the refresh of the trust bundle.
type following struct {
	// Follow is the kubeconfig to update: a path, kubeconfig.FollowUsual for kubectl's default file, or empty to only
	// notify the user.
	Follow   string
	Expected []string // fingerprints; see trustbundle.Policy
	Quiet    bool     // print nothing
	// Usual returns kubectl's default files.
	Usual func() []string
}

func (o *following) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(
		&o.Follow,
		"follow",
		"",
		"when the cluster publishes a new CA bundle, write it to the kubeconfig that kubectl uses by default, or to the "+
			"kubeconfig at this absolute path",
	)
	flags.Lookup("follow").NoOptDefVal = kubeconfig.FollowUsual
}

func (o *following) readEnvironment(f *factory.Factory) {
	o.Quiet = f.Getenv("PINNIPED_SKIP_PRINT_LOGIN_URL") == "true"
	if expected := f.Getenv("PINNIPED_EXPECT_CA"); expected != "" {
		var err error
		if o.Expected, err = trustbundle.ParseExpected(strings.Split(expected, ",")); err != nil {
			o.Expected = []string{trustbundle.NoneExpected} // logins must not fail for this
		}
	}
}

func (o *following) validate() error {
	if o.Follow != "" && o.Follow != kubeconfig.FollowUsual && !filepath.IsAbs(o.Follow) {
		return ui.Usage(fmt.Errorf("invalid --follow=%s: it must be the absolute path of a kubeconfig", o.Follow))
	}
	return nil
}

// bundleCheck checks the CA bundle that the cluster publishes, after a login.
type bundleCheck struct {
	*Plugin
	key    string
	notes  *notes
	bundle *trustbundle.Received // nil if none was read
}

// newBundleCheck makes the exchange fetch the CA bundle on its open connection. A login from the cache makes no
// exchange, and so no check.
func (p *Plugin) newBundleCheck(key string) *bundleCheck {
	l := &bundleCheck{Plugin: p, key: key[:16]}
	if p.exchange != nil {
		p.exchange.used = l.fetch
	}
	return l
}

// mayPrint reports whether a user can read messages. It is false while a program such as k9s owns the screen.
func (l *bundleCheck) mayPrint() bool {
	return !l.Quiet && l.info.Spec.Interactive && ui.IsTerminal(l.ErrOut) && ui.LineMode(l.In)
}

// fetch reads the trust bundle endpoint if that is due. It never fails the login.
func (l *bundleCheck) fetch(ctx context.Context, client *http.Client) {
	if l.Follow == "" && !l.mayPrint() {
		return
	}
	notes := readNotes(l.CachePath, l.Now)
	if notes.fresh(l.key+" checked") || l.Follow == "" && notes.fresh(l.key+" notified") {
		return
	}
	l.notes = notes
	ctx, cancel := context.WithTimeout(ctx, bundleTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(
		ctx,
		http.MethodGet,
		l.exchange.endpoint.JoinPath(trustbundle.Path).String(),
		nil,
	)
	if err != nil {
		return
	}
	request.Header.Set("User-Agent", "pinniped")
	request.Header.Set("Accept-Encoding", "identity") // decompress nothing from an unverified server
	response, err := client.Do(request)
	if err != nil {
		l.debugf("reading the cluster's CA bundle: %v", err)
		return
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return
	}
	bundle, err := trustbundle.Decode(response.Body)
	if err != nil {
		l.debugf("reading the cluster's CA bundle: %v", err)
		return
	}
	l.bundle = &trustbundle.Received{
		Policy: trustbundle.Policy{Now: l.Now, Expected: l.Expected}, Chain: response.TLS.PeerCertificates, PEM: bundle,
	}
}

// finish updates the kubeconfig, or notifies the user about a new CA. It runs after the response to kubectl, and never
// fails a login.
func (l *bundleCheck) finish(ctx context.Context) {
	if l.notes == nil {
		return
	}
	noted := l.notes.note(l.key+" checked", checkInterval)
	if l.bundle == nil || !l.changed() {
		return
	}
	own := kubeconfig.Trust{Host: l.exchange.serverName(), CABundle: l.exchange.caBundle}
	err := l.bundle.Unexpected(l.bundle.PEM)
	if err == nil {
		err = l.bundle.Accepts(own)
	}
	added := trustbundle.Names(trustbundle.Added(own.CABundle, l.bundle.PEM))
	switch {
	case l.Follow != "":
		if err == nil {
			err = l.rotate(ctx, added)
		}
		if err != nil {
			l.print(noted, "this kubeconfig does not refresh the trust bundle of %s: %v", l.exchange.endpoint, err)
		}
	case err != nil:
		l.debugf("the published CA bundle: %v", err)
	case added != "":
		l.print(
			noted,
			"%s is about to use CA %s, which your kubeconfig does not trust yet: run \"pinniped kubeconfig rotate %s\", or "+
				"get a new kubeconfig",
			l.exchange.endpoint,
			added,
			l.origin(),
		)
	}
}

// changed reports whether the published CA bundle differs from that of the login, or of kubectl.
func (l *bundleCheck) changed() bool {
	cluster := l.exchange.cluster
	return !certs.SameBundle(l.exchange.caBundle, l.bundle.PEM) ||
		cluster != nil && !cluster.InsecureSkipTLSVerify && !certs.SameBundle(cluster.CertificateAuthorityData, l.bundle.PEM)
}

// print prints a message, once a day.
func (l *bundleCheck) print(noted bool, format string, args ...any) {
	l.debugf(format, args...)
	if l.mayPrint() && noted && !l.notes.fresh(l.key+" notified") && l.notes.note(l.key+" notified", noticeInterval) {
		l.say(format, args...)
	}
}

// rotate writes the CA bundle into the kubeconfig: the user of this login, and the clusters of this user's contexts.
// Each entry's old CA bundle must permit it.
func (l *bundleCheck) rotate(ctx context.Context, added string) error {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	files, err := l.entries()
	if err != nil {
		return err
	}
	target := kubeconfig.Target{
		Endpoint: kubeconfig.Endpoint{URL: l.concierge.Endpoint}, CABundle: l.bundle.PEM,
		Accepts: func(trust kubeconfig.Trust) error {
			if trust.Kind == "user" { // it uses the same connection as this login
				trust.Host = l.exchange.serverName()
			}
			return l.bundle.Accepts(trust)
		},
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		rotation, err := kubeconfig.UpdateFile(ctx, path, kubeconfig.FileUpdate{
			Change: func(content []byte) (*kubeconfig.Rotation, error) {
				return kubeconfig.RotateOnly(
					content,
					func(t kubeconfig.Trust) bool { return files[path][t.Kind+"/"+t.Name] },
					target,
				)
			},
		})
		if err != nil {
			return err
		}
		if rotation.Changed() && l.mayPrint() && added != "" {
			l.say("kubeconfig %q now trusts CA %s of %s", path, added, l.exchange.endpoint)
		}
		for _, entry := range rotation.Entries {
			if entry.Outcome == kubeconfig.Skipped && entry.Code != kubeconfig.SkipInsecure {
				return fmt.Errorf("in %q, %s %q stays unchanged: %s", path, entry.Kind, entry.Name, entry.Reason)
			}
		}
	}
	return nil
}

// entries returns, by file, the users with exactly this login, and the clusters of their contexts, after merging the
// files as kubectl does.
func (l *bundleCheck) entries() (map[string]map[string]bool, error) {
	paths := []string{l.Follow}
	if l.Follow == kubeconfig.FollowUsual {
		paths = l.Usual()
	}
	config, err := (&clientcmd.ClientConfigLoadingRules{Precedence: paths}).Load()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	found := map[string]map[string]bool{}
	add := func(path, entry string) {
		if found[path] == nil {
			found[path] = map[string]bool{}
		}
		found[path][entry] = true
	}
	for name, user := range config.AuthInfos {
		if user.Exec == nil || !slices.Equal(user.Exec.Args, l.Args) {
			continue
		}
		add(user.LocationOfOrigin, "user/"+name)
		for _, kubeContext := range config.Contexts {
			if cluster := config.Clusters[kubeContext.Cluster]; kubeContext.AuthInfo == name && cluster != nil {
				add(cluster.LocationOfOrigin, "cluster/"+kubeContext.Cluster)
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf(
			"no user in %s has this login: name the kubeconfig with --follow=FILE in the arguments of \"pinniped login\"",
			strings.Join(paths, ", "),
		)
	}
	return found, nil
}

// serverName returns the name that the endpoint's certificate must cover.
func (e *exchange) serverName() string {
	if e.cluster != nil && e.cluster.TLSServerName != "" {
		return e.cluster.TLSServerName
	}
	return e.endpoint.Hostname()
}

// notes records until when things need not be done again, in a file next to the credential cache. It holds no secret,
// and needs no lock: if a note is lost, the thing is done once more.
type notes struct {
	path  string // empty: nothing is recorded
	now   func() time.Time
	until map[string]time.Time
}

// maxNotes is the maximum size of the file, ten times that for a hundred clusters.
const maxNotes = 256 << 10

func readNotes(cache string, now func() time.Time) *notes {
	n := &notes{now: now, until: map[string]time.Time{}}
	if cache == "" {
		return n
	}
	n.path = cache + ".followed"
	content, err := atomicfile.ReadFile(n.path, maxNotes)
	if err != nil || json.Unmarshal(content, &n.until) != nil || n.until == nil {
		n.until = map[string]time.Time{}
	}
	return n
}

// fresh reports whether what need not be done yet.
func (n *notes) fresh(what string) bool { return n.good(n.until[what]) }

// good rejects times in the far future, from when the clock was wrong.
func (n *notes) good(until time.Time) bool {
	left := until.Sub(n.now())
	return left > 0 && left <= noticeInterval
}

// note records that what was done now, and reports whether it was recorded.
func (n *notes) note(what string, again time.Duration) bool {
	if n.path == "" {
		return false
	}
	maps.DeleteFunc(n.until, func(_ string, until time.Time) bool { return !n.good(until) })
	n.until[what] = n.now().Add(again).UTC()
	content, err := json.Marshal(n.until)
	if err != nil {
		return false
	}
	file, err := atomicfile.Open(n.path, maxNotes)
	if err != nil {
		return false
	}
	defer file.Close()
	return !file.Linked && file.ReplacePrivate(append(content, '\n')) == nil
}
