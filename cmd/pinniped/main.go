// Command pinniped is the CLI. See package internal/cli.
package main

import (
	"context"
	"flag"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// version is set by the linker for releases: -X main.version=v1.2.3, which requires a package variable.
var version string

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	setVerbosity(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	f := factory.New(args)
	f.Version = version
	f.SetVerbosity = setVerbosity
	return cli.Main(ctx, f)
}

// setVerbosity prints client-go's log up to level on stderr; 0 prints none. Levels from 8 on are not available, because
// they print the bodies of requests and responses with credentials.
func setVerbosity(level int) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if level <= 0 {
		_ = flags.Set("logtostderr", "false")
		_ = flags.Set("alsologtostderr", "false")
		_ = flags.Set("stderrthreshold", "FATAL")
		klog.SetOutput(io.Discard)
		return
	}
	_ = flags.Set("logtostderr", "true")
	_ = flags.Set("v", strconv.Itoa(min(level, 7)))
}
