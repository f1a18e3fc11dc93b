// Command bench measures the impersonation proxy on a local control plane. One run measures every load directly at the
// API server, through this build and, if given, through a baseline and another build, in turn. Results are in Go's
// benchmark format, for benchstat. docs/performance.md explains the figures.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	if path := os.Getenv(baselineVariable); path != "" {
		exit(serveBaseline(path))
	}
	klog.SetLogger(logr.Discard()) // client-go logs the end of each exec session
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, o, os.Stdout, os.Stderr)
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type options struct {
	loads    []string
	rounds   int
	duration time.Duration
	workers  int
	objects  int
	listed   int
	watches  int
	procs    int
	agent    string
	other    string
	baseline bool
	deploy   string
}

func parseOptions(args []string, errOut io.Writer) (*options, error) {
	o := &options{}
	var chosen string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&chosen, "loads", strings.Join(loadNames(), ","), "loads to run, separated by commas")
	flags.IntVar(&o.rounds, "rounds", 6, "rounds; each target has its turn in each of them")
	flags.DurationVar(&o.duration, "duration", time.Second, "how long one target is measured in one round")
	flags.IntVar(&o.workers, "workers", 16, "concurrent workers, each of which waits for its response")
	flags.IntVar(&o.objects, "objects", 1000, "ConfigMaps of 1 kB, for the load names")
	flags.IntVar(&o.listed, "listed", 480, "ConfigMaps of 2.8 kB, for the load list")
	flags.IntVar(&o.watches, "watches", 300, "watches of the load watch")
	flags.IntVar(&o.procs, "procs", 0, "GOMAXPROCS of the agents (default: as the shipped Deployment sets it)")
	flags.StringVar(&o.agent, "agent", "bin/pinniped-agent", "the agent's program")
	flags.StringVar(&o.other, "other", "", "another build of the agent, measured in turn")
	flags.BoolVar(&o.baseline, "baseline", false, "measure a bare reverse proxy of net/http in turn")
	flags.StringVar(&o.deploy, "deploy", "deploy", "folder of the manifests")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	o.loads = strings.Split(chosen, ",")
	for _, name := range o.loads {
		if !slices.Contains(loadNames(), name) {
			return nil, fmt.Errorf("unknown load %q: use %s", name, strings.Join(loadNames(), ", "))
		}
	}
	if min(o.rounds, int(o.duration), o.workers, o.objects, o.listed, o.watches) <= 0 || o.procs < 0 {
		return nil, errors.New("numbers must be greater than zero")
	}
	return o, nil
}

// run measures the loads, and prints each result immediately.
func run(ctx context.Context, o *options, out, errOut io.Writer) (err error) {
	e, err := newEnvironment(ctx, o, errOut)
	if e != nil {
		defer func() { err = errors.Join(err, e.close()) }()
	}
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := writeHeader(out, e); err != nil {
		return err
	}
	for _, l := range loads() {
		if !slices.Contains(o.loads, l.name) {
			continue
		}
		e.say("%s: %s", l.name, l.about)
		if err := e.measure(ctx, l, out); err != nil {
			return fmt.Errorf("load %q: %w", l.name, err)
		}
	}
	return nil
}

// measure runs a load against all targets in turn. The first round warms up and does not count.
func (e *environment) measure(ctx context.Context, l load, out io.Writer) error {
	var clean []func()
	defer func() {
		for _, f := range clean {
			f()
		}
	}()
	measurements := map[*target]measurement{}
	for _, t := range e.targets {
		one, stop, err := l.start(ctx, e, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		measurements[t], clean = one, append(clean, stop)
	}
	for round := range e.options.rounds + 1 {
		for _, t := range e.targets {
			s, err := measurements[t](ctx, cmp.Or(e.options.duration, time.Second))
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			if round == 0 {
				continue
			}
			if err := s.write(out, l.name, t); err != nil {
				return err
			}
		}
	}
	return nil
}
