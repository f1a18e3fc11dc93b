// Package version implements `pinniped version`.
package version

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// Info describes a build. The fields are those of Kubernetes' own version answer.
type Info struct {
	Major        string `json:"major"`
	Minor        string `json:"minor"`
	GitVersion   string `json:"gitVersion"`
	GitCommit    string `json:"gitCommit"`
	GitTreeState string `json:"gitTreeState"`
	BuildDate    string `json:"buildDate"`
	GoVersion    string `json:"goVersion"`
	Compiler     string `json:"compiler"`
	Platform     string `json:"platform"`
}

// Options is everything the command needs.
type Options struct {
	genericiooptions.IOStreams
	Output string // "", json or yaml
	Info   Info
}

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{IOStreams: f.IOStreams}
	cmd := factory.WithoutConfig(&cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
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
	cmd.Flags().StringVarP(&o.Output, "output", "o", "", "output format: json or yaml (default: the version alone)")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"output": factory.CompleteValues("json", "yaml")})
	return cmd
}

// Validate refuses unknown output formats.
func (o *Options) Validate() error {
	switch o.Output {
	case "", "json", "yaml":
		return nil
	}
	return factory.OneOf("output", o.Output, "json", "yaml")
}

// Complete reads what the linker and the Go toolchain recorded in the binary.
func (o *Options) Complete(f *factory.Factory) {
	build, _ := debug.ReadBuildInfo()
	o.Info = describe(f.Version, build)
}

// Run prints the version.
func (o *Options) Run() error {
	var text []byte
	var err error
	switch o.Output {
	case "json":
		if text, err = json.MarshalIndent(o.Info, "", "  "); err == nil {
			text = append(text, '\n')
		}
	case "yaml":
		text, err = yaml.Marshal(o.Info)
	default:
		text = []byte(o.Info.GitVersion + "\n")
	}
	if err != nil {
		return fmt.Errorf("encoding the version: %w", err)
	}
	if _, err := o.Out.Write(text); err != nil {
		return fmt.Errorf("writing the version: %w", err)
	}
	return nil
}

// describe joins the version given to the linker, which may be empty, with the toolchain's record, which may be nil.
func describe(linked string, build *debug.BuildInfo) Info {
	info := Info{
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
				info.BuildDate = setting.Value // of the commit: builds are reproducible
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
