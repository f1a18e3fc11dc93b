package devcluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options configures a cluster. The zero value is suitable for most tests.
type Options struct {
	// Dir is the directory for data, keys, kubeconfig and logs. It must be empty or not exist, and Stop does not remove
	// it. If Dir is "", a temporary directory is used, which Stop removes; a failed start keeps its logs.
	Dir string

	// Log receives a line for each step; nil discards them. The logs of the programs are files in the cluster's
	// directory.
	Log io.Writer

	// StartTimeout is the timeout of each program's start; zero means two minutes.
	StartTimeout time.Duration

	// AuditPolicy is an audit.k8s.io Policy (YAML or JSON). If set, the API server writes an audit log with one JSON
	// event per line to Cluster.AuditLog. An event is in the file before the response to its request.
	AuditPolicy []byte

	// DisableAnonymous makes the API server refuse requests without credentials. By default they are authenticated as
	// system:anonymous, as on most clusters.
	DisableAnonymous bool

	// ExtraAPIServerArgs are additional flags of the kube-apiserver, each as "--name=value". They replace flags that
	// this package sets.
	ExtraAPIServerArgs []string

	// ControllerManager also starts the kube-controller-manager: service accounts, namespace deletion, and signing of
	// certificate signing requests with the client CA.
	ControllerManager bool
}

const defaultStartTimeout = 2 * time.Minute

// complete validates the options and sets defaults. It reports whether the directory is temporary.
func (o Options) complete() (completed Options, temporary bool, err error) {
	for _, arg := range o.ExtraAPIServerArgs {
		if !strings.HasPrefix(arg, "--") || flagName(arg) == "" {
			return o, false, fmt.Errorf("extra API server argument %q is not of the form \"--name=value\"", arg)
		}
	}
	if o.StartTimeout < 0 {
		return o, false, fmt.Errorf("start timeout %s is negative", o.StartTimeout)
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = defaultStartTimeout
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Dir == "" {
		o.Dir, err = os.MkdirTemp("", "pinniped-devcluster-")
		if err != nil {
			return o, false, fmt.Errorf("making the cluster's directory: %w", err)
		}
		return o, true, nil
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, false, fmt.Errorf("finding the cluster's directory: %w", err)
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return o, false, fmt.Errorf("reading the cluster's directory: %w", err)
	}
	if len(entries) > 0 {
		return o, false, fmt.Errorf("directory %q is not empty: remove it, or name another one", o.Dir)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return o, false, fmt.Errorf("making the cluster's directory: %w", err)
	}
	return o, false, nil
}

// mergeArgs returns the defaults that extra does not set, followed by extra.
func mergeArgs(defaults, extra []string) []string {
	replaced := map[string]bool{}
	for _, arg := range extra {
		replaced[flagName(arg)] = true
	}
	merged := make([]string, 0, len(defaults)+len(extra))
	for _, arg := range defaults {
		if !replaced[flagName(arg)] {
			merged = append(merged, arg)
		}
	}
	return append(merged, extra...)
}

// flagName returns "name" for "--name=value" and "--name".
func flagName(arg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
	return name
}
