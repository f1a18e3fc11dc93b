package version

import (
	"bytes"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	built := &debug.BuildInfo{
		Main: debug.Module{Version: "v0.9.1-0.20261121100000-abcdefabcdef"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abcdef"},
			{Key: "vcs.time", Value: "2026-11-21T10:00:00Z"},
			{Key: "vcs.modified", Value: "true"},
		},
	}
	for _, test := range []struct {
		name   string
		linked string
		build  *debug.BuildInfo
		want   result.Version
	}{
		{
			name: "prefers the linker's version", linked: "v1.2.3", build: built,
			want: result.Version{
				Major: "1", Minor: "2", GitVersion: "v1.2.3", GitCommit: "abcdef", GitTreeState: "dirty",
				BuildDate: "2026-11-21T10:00:00Z",
			},
		},
		{
			name: "takes the toolchain's", build: built,
			want: result.Version{
				Major: "0", Minor: "9", GitVersion: "v0.9.1-0.20261121100000-abcdefabcdef", GitCommit: "abcdef",
				GitTreeState: "dirty", BuildDate: "2026-11-21T10:00:00Z",
			},
		},
		{
			name: "knows a clean tree",
			build: &debug.BuildInfo{
				Main: debug.Module{Version: "v2.0.0"}, Settings: []debug.BuildSetting{{Key: "vcs.modified", Value: "false"}},
			},
			want: result.Version{Major: "2", Minor: "0", GitVersion: "v2.0.0", GitTreeState: "clean", BuildDate: "1970-01-01T00:00:00Z"},
		},
		{
			name: "has something to say without either", build: &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}},
			want: result.Version{Major: "0", Minor: "0", GitVersion: "v0.0.0-devel", BuildDate: "1970-01-01T00:00:00Z"},
		},
		{
			name: "needs no build information",
			want: result.Version{Major: "0", Minor: "0", GitVersion: "v0.0.0-devel", BuildDate: "1970-01-01T00:00:00Z"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := describe(test.linked, test.build)
			if got.GoVersion == "" || got.Compiler == "" || got.Platform == "" {
				t.Errorf("want the toolchain described, got %+v", got)
			}
			got.GoVersion, got.Compiler, got.Platform = "", "", ""
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("info (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	info := result.Version{Major: "1", Minor: "2", GitVersion: "v1.2.3", Platform: "linux/amd64"}
	for output, want := range map[string]string{
		"": "v1.2.3\n",
		"json": `{
  "apiVersion": "cli.pinniped.dev/v1",
  "kind": "Version",
  "major": "1",
  "minor": "2",
  "gitVersion": "v1.2.3",
  "gitCommit": "",
  "gitTreeState": "",
  "buildDate": "",
  "goVersion": "",
  "compiler": "",
  "platform": "linux/amd64"
}
`,
		"yaml": "apiVersion: cli.pinniped.dev/v1\nbuildDate: \"\"\ncompiler: \"\"\ngitCommit: \"\"\ngitTreeState: \"\"\ngitVersion: v1.2.3\ngoVersion: " +
			"\"\"\nkind: Version\nmajor: \"1\"\nminor: \"2\"\nplatform: linux/amd64\n",
	} {
		t.Run("prints "+output, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			o := &Options{IOStreams: genericiooptions.IOStreams{Out: &out}, Output: output, Info: info}
			if err := o.Run(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}
