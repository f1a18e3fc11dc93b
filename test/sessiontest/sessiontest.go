// Package sessiontest creates sessions for tests of commands in a world of package iptlstest.
package sessiontest

import (
	"bytes"
	"context"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// New returns a session that uses the cluster of w and prints to r.
func New(w *iptlstest.World, r *iptlstest.Run) *session.Session {
	return &session.Session{
		IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &r.Out, ErrOut: &r.ErrOut},
		Suffix:    "pinniped.dev", Output: "text", Timeout: 20 * time.Second,
		Connect: func(factory.ClusterFlags, string) (session.Cluster, func(time.Time) time.Time, error) {
			return w.Cluster, func(time.Time) time.Time { return time.Time{} }, nil
		},
		Network: session.RealNetwork{}, Now: time.Now, Poll: 5 * time.Millisecond,
		NewProgress: func() *ui.Progress { return &ui.Progress{Out: &r.ErrOut} },
	}
}

// Run runs a command in a world as the command line does.
func Run(ctx context.Context, w *iptlstest.World, command func(*session.Session) factory.Command) *iptlstest.Run {
	r := &iptlstest.Run{}
	return r.Do(ctx, command(New(w, r)))
}
