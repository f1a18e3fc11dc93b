package kubeconfig

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Target is where clients connect, and what they are to trust there.
type Target struct {
	Endpoint string // https://host[:port]
	CABundle []byte // PEM; empty means the system roots
}

// ErrNotKubeconfig means that a file is something else.
var ErrNotKubeconfig = errors.New("this is not a kubeconfig")

// maxSize bounds what is parsed: a kubeconfig of a thousand clusters has a tenth of it.
const maxSize = 32 << 20

const (
	endpointFlag = "--concierge-endpoint"
	bundleFlag   = "--concierge-ca-bundle-data"
)

// Outcome is what Rotate did with one entry.
type Outcome string

// Outcomes of Rotate.
const (
	Rotated Outcome = "rotated" // it has the target's CA bundle now
	Current Outcome = "current" // it had it already
	Skipped Outcome = "skipped" // it leads to the target, but its trust is not for us to change; Reason says why
)

// Entry is a cluster or a user of a kubeconfig that leads to the target.
type Entry struct {
	Kind    string  `json:"kind"` // cluster or user
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`
}

// Rotation is a kubeconfig whose clients of the target trust the target's CA bundle.
type Rotation struct {
	Content []byte  // what the file must hold
	Entries []Entry // those that lead to the target, in the order of their names, clusters first
}

// Changed reports whether any entry was rotated.
func (r *Rotation) Changed() bool {
	return slices.ContainsFunc(r.Entries, func(e Entry) bool { return e.Outcome == Rotated })
}

// Rotate puts the target's CA bundle into all that leads to the target's endpoint: clusters with that server, and users
// whose credential plugin is "pinniped login" with that --concierge-endpoint. Everything else stays as it is, comments
// and the order of the file included; before the result is returned, it is read again and compared, and a difference
// anywhere else is an error.
//
// What is not a kubeconfig gives ErrNotKubeconfig.
func Rotate(content []byte, to Target) (*Rotation, error) {
	if len(to.CABundle) > 0 {
		if _, err := CountCertificates(to.CABundle); err != nil {
			return nil, fmt.Errorf("checking the CA bundle: %w", err)
		}
	}
	document, err := parse(content)
	if err != nil {
		return nil, err
	}
	before, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("parsing: %w", err)
	}
	wanted, entries := rotateConfig(before, to)
	rotation := &Rotation{Content: content, Entries: entries}
	if !rotation.Changed() {
		return rotation, nil
	}
	after, err := edit(content, document, entries, to)
	if err != nil {
		return nil, err
	}
	written, err := clientcmd.Load(after)
	if err != nil {
		return nil, fmt.Errorf("reading the changed kubeconfig again: %w", err)
	}
	if !equality.Semantic.DeepEqual(wanted, written) {
		return nil, errors.New("changing only the CA bundle: the file is written in a way that this program cannot edit; make the kubeconfig anew")
	}
	rotation.Content = after
	return rotation, nil
}

func parse(content []byte) (*yaml.Node, error) {
	if len(content) > maxSize {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrNotKubeconfig, len(content))
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotKubeconfig, err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, ErrNotKubeconfig
	}
	root := document.Content[0]
	_, kind := field(root, "kind")
	_, clusters := field(root, "clusters")
	if kind != nil && kind.Value != "Config" || kind == nil && clusters == nil {
		return nil, ErrNotKubeconfig
	}
	return root, nil
}

// rotateConfig returns what the kubeconfig must say in the end, and what has to be done for it.
func rotateConfig(before *clientcmdapi.Config, to Target) (*clientcmdapi.Config, []Entry) {
	after := before.DeepCopy()
	var entries []Entry
	for _, name := range names(after.Clusters) {
		cluster := after.Clusters[name]
		if !SameEndpoint(cluster.Server, to.Endpoint) {
			continue
		}
		entry := Entry{Kind: "cluster", Name: name, Outcome: Rotated}
		switch {
		case cluster.InsecureSkipTLSVerify:
			entry.Outcome, entry.Reason = Skipped, "it has insecure-skip-tls-verify"
		case bytes.Equal(cluster.CertificateAuthorityData, to.CABundle) && (len(to.CABundle) > 0 || cluster.CertificateAuthority == ""):
			entry.Outcome = Current
		case len(cluster.CertificateAuthorityData) == 0 && cluster.CertificateAuthority != "":
			entry.Outcome, entry.Reason = Skipped, fmt.Sprintf("it takes its CA bundle from the file %q, which may be others' as well", cluster.CertificateAuthority)
		default:
			cluster.CertificateAuthorityData = nilIfEmpty(to.CABundle)
		}
		entries = append(entries, entry)
	}
	encoded := base64.StdEncoding.EncodeToString(to.CABundle)
	for _, name := range names(after.AuthInfos) {
		exec := after.AuthInfos[name].Exec
		if exec == nil || !logsInAt(exec.Args, to.Endpoint) {
			continue
		}
		entry := Entry{Kind: "user", Name: name, Outcome: Current}
		bundle := slices.IndexFunc(exec.Args, func(arg string) bool { return strings.HasPrefix(arg, bundleFlag+"=") })
		switch {
		case bundle < 0:
			entry.Outcome, entry.Reason = Skipped, "its credential plugin has no "+bundleFlag+"=; make the kubeconfig anew"
		case exec.Args[bundle] != bundleFlag+"="+encoded:
			entry.Outcome = Rotated
			exec.Args[bundle] = bundleFlag + "=" + encoded
		}
		entries = append(entries, entry)
	}
	return after, entries
}

// logsInAt reports whether args are of "pinniped login" at an endpoint.
func logsInAt(args []string, endpoint string) bool {
	return len(args) > 0 && args[0] == "login" && slices.ContainsFunc(args, func(arg string) bool {
		value, ok := strings.CutPrefix(arg, endpointFlag+"=")
		return ok && SameEndpoint(value, endpoint)
	})
}

func nilIfEmpty(bundle []byte) []byte {
	if len(bundle) == 0 {
		return nil
	}
	return bundle
}

// SameEndpoint compares two URLs as a client would connect to them.
func SameEndpoint(a, b string) bool {
	first, ok := canonicalEndpoint(a)
	second, alsoOK := canonicalEndpoint(b)
	return ok && alsoOK && first == second
}

func canonicalEndpoint(text string) (string, bool) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || !strings.EqualFold(u.Scheme, "https") || u.Host == "" {
		return "", false
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".") + " " + port + strings.TrimSuffix(u.Path, "/"), true
}
