// Command pinniped is the CLI: see internal/cli.
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

// version is set by the linker for releases: -X main.version=v1.2.3. It must be a package variable for that.
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

// setVerbosity shows client-go's log lines up to level on stderr; 0 shows none, as our own errors say all. Levels from
// 8 on would print the bodies of requests and responses, credentials among them, and are not available.
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
