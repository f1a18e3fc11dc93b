// Command bench measures the impersonation proxy on a local control plane: the same requests direct and proxied in
// turn, in one run, with the processor time of the proxy for each. Ratios hold from one machine to another, absolute
// figures do not. Every request goes to 127.0.0.1, and nothing is left behind.
//
// It is run by `make bench`, which builds the programs first. docs/performance.md tells what the figures mean.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// The exit codes of the CLI.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitTimedOut    = 124
	exitInterrupted = 130
)

func main() {
	if isAttacker() {
		os.Exit(beAttacker())
	}
	if isFloor() {
		os.Exit(beFloor())
	}
	silenceLibraries()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// silenceLibraries is called before anything runs. client-go complains of every session in a pod that ends.
func silenceLibraries() { klog.SetLogger(logr.Discard()) }

// beAttacker is for the process of an attack.
func beAttacker() int {
	if err := runAttacker(os.Stdin, os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		return exitFailed
	}
	return exitDone
}

func run(args []string, out, errOut io.Writer) int {
	if len(args) > 0 && args[0] == "compare" {
		return compareFiles(args[1:], out, errOut)
	}
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parseOptions(args, errOut)
	if errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "error:", err)
		return exitUsage
	}
	if code, done := elsewhere(o, args, out, errOut); done {
		return code
	}
	ctx, cancel := context.WithTimeout(interrupted, o.Timeout)
	defer cancel()
	err = bench(ctx, o, out, errOut)
	switch {
	case err == nil:
		return exitDone
	case interrupted.Err() != nil:
		_, _ = fmt.Fprintln(errOut, "Interrupted.")
		return exitInterrupted
	case errors.Is(err, context.DeadlineExceeded):
		_, _ = fmt.Fprintln(errOut, "error:", err)
		return exitTimedOut
	}
	_, _ = fmt.Fprintln(errOut, "error:", err)
	return exitFailed
}

// elsewhere runs the program in a network namespace, if it is to run there and does not yet.
func elsewhere(o *options, args []string, out, errOut io.Writer) (code int, done bool) {
	if os.Getenv(insideVariable) != "" {
		o.Network = networkNamespaces
		return 0, false
	}
	if o.Network == networkLoopback {
		return 0, false
	}
	err := mayMakeNamespaces()
	if err == nil {
		code, err = rerunInside(args, out, errOut)
	}
	if err == nil {
		return code, true
	}
	if o.Network == networkNamespaces {
		_, _ = fmt.Fprintln(errOut, "error:", err)
		return exitFailed, true
	}
	_, _ = fmt.Fprintf(errOut, "• All parts are on loopback, which flatters: %v\n", err)
	o.Network = networkLoopback
	return 0, false
}

// bench runs the loads that were chosen, and prints what they gave: also when one of them fails, before its error.
func bench(ctx context.Context, o *options, out, errOut io.Writer) (err error) {
	w, err := newWorld(ctx, o, errOut)
	if w != nil {
		defer func() { err = errors.Join(err, w.close()) }()
	}
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	r := newReport(ctx, o)
	r.Network = w.network.String()
	for _, l := range loads() {
		if !o.wants(l.name) {
			continue
		}
		w.say("%s: %s", l.name, l.about)
		if err = l.run(ctx, w, r); err != nil {
			err = fmt.Errorf("load %q: %w", l.name, err)
			break
		}
		if !w.agent.Running() {
			err = fmt.Errorf("load %q: the agent has ended; its log says:\n%s", l.name, tail(w.agent.Log()))
			break
		}
	}
	r.finish()
	if o.Save != "" {
		path, saveErr := r.save(o.Save)
		err = errors.Join(err, saveErr)
		if saveErr == nil {
			w.say("The results are kept in %s", path)
		}
	}
	return errors.Join(r.write(out, o.Output), err)
}

func (r *report) write(out io.Writer, form string) error {
	switch form {
	case outputJSON:
		return r.writeJSON(out)
	case outputMarkdown:
		return r.writeMarkdown(out)
	default:
		return r.writeText(out)
	}
}
