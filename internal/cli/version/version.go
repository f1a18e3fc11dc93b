// Package version implements `pinniped version`.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
)

// Options holds the inputs of the command.
type Options struct {
	genericiooptions.IOStreams
	Output string
	Info   result.Version
}

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{IOStreams: f.IOStreams}
	cmd := factory.WithoutConfig(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  pinniped version
  pinniped version -o json`,
		Args: factory.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			o.Complete(f)
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run()
		},
	})
	factory.AddOutput(cmd, &o.Output, factory.Formats()...)
	return cmd
}

// Validate rejects unknown output formats.
func (o *Options) Validate() error { return factory.CheckOutput(o.Output, factory.Formats()...) }

// Complete reads the version from the binary.
func (o *Options) Complete(f *factory.Factory) { o.Info = Of(f) }

// Of returns the version of this build.
func Of(f *factory.Factory) result.Version {
	build, _ := debug.ReadBuildInfo()
	return describe(f.Version, build)
}

// Run prints the version.
func (o *Options) Run() error {
	return result.Print(o.Out, o.Output, &o.Info, nil, func() ([]byte, error) {
		return []byte(o.Info.GitVersion + "\n"), nil
	})
}

// describe merges the version given to the linker, which may be empty, with the toolchain's build info, which may be
// nil.
func describe(linked string, build *debug.BuildInfo) result.Version {
	info := result.Version{
		GitVersion: linked,
		GoVersion:  runtime.Version(),
		Compiler:   runtime.Compiler,
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	}
	if build != nil {
		if info.GitVersion == "" && build.Main.Version != "(devel)" {
			info.GitVersion = build.Main.Version
		}
		for _, setting := range build.Settings {
			switch setting.Key {
			case "vcs.revision":
				info.GitCommit = setting.Value
			case "vcs.time":
				info.BuildDate = setting.Value // commit time: builds are reproducible
			case "vcs.modified":
				info.GitTreeState = "clean"
				if setting.Value == "true" {
					info.GitTreeState = "dirty"
				}
			}
		}
	}
	if info.GitVersion == "" {
		info.GitVersion = "v0.0.0-devel"
	}
	if info.BuildDate == "" {
		info.BuildDate = time.Unix(0, 0).UTC().Format(time.RFC3339)
	}
	if major, rest, ok := strings.Cut(strings.TrimPrefix(info.GitVersion, "v"), "."); ok {
		info.Major = major
		info.Minor, _, _ = strings.Cut(rest, ".")
	}
	return info
}
