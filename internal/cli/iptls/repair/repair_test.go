package repair

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestRepair(t *testing.T) {
	t.Parallel()
	ca, err := certs.NewCA("Company CA", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	broken := append([]byte("\xef\xbb\xbf"), pair.CertPEM...)
	for _, tt := range []struct {
		name   string
		file   []byte // of the name "file"; nil for none
		stdin  []byte
		change func(o *Options, dir string)
		code   int
		says   []string // on stderr or in the error
		out    []byte   // on stdout
		wrote  []byte   // to "new"
	}{
		{
			name: "writes a file", file: broken, says: []string{"byte order mark", "Wrote 1 certificate to"},
			wrote: pair.CertPEM,
		},
		{
			name: "writes to stdout", file: broken, out: pair.CertPEM, change: func(o *Options, _ string) { o.Output = "-" },
			says: []string{"byte order mark"},
		},
		{name: "reads stdin", stdin: broken, wrote: pair.CertPEM, change: func(o *Options, _ string) { o.File = "-" }},
		{
			name: "writes what was right already", file: pair.CertPEM, says: []string{"There was nothing to repair"},
			wrote: pair.CertPEM,
		},
		{
			name: "brings out the key of a file that holds both", file: append(broken, pair.KeyPEM...), wrote: pair.KeyPEM,
			change: func(o *Options, _ string) { o.PrivateKey = true }, says: []string{"Wrote the private key to"},
		},
		{
			name: "warns of a key beside a certificate", file: append(broken, pair.KeyPEM...), wrote: pair.CertPEM,
			says: []string{"left out a private key"},
		},
		{
			name: "keeps the key of a file that begins with it", file: slices.Concat(pair.KeyPEM, broken),
			wrote: slices.Concat(pair.KeyPEM, pair.CertPEM), says: []string{"Wrote the private key and 1 certificate to"},
		},
		{
			name: "writes nothing when something is missing", file: pair.CertPEM[:200], code: 1,
			says: []string{"cut short", "nothing was written"},
		},
		{name: "wants a file", code: 2, says: []string{"reading the file"}},
		{name: "wants something in it", file: []byte("\n"), code: 2, says: []string{"is empty"}},
		{
			name: "does not replace a file", file: broken, code: 2, says: []string{"the file exists", "--overwrite"},
			change: func(o *Options, _ string) { o.Output = o.File },
		},
		{
			name: "replaces a file when asked to", file: broken, wrote: nil, says: []string{"Wrote 1 certificate"},
			change: func(o *Options, _ string) { o.Output, o.Overwrite = o.File, true },
		},
		{
			name: "refuses a directory", file: broken, code: 2, says: []string{"is a directory"},
			change: func(o *Options, dir string) { o.Output = dir },
		},
		{
			name: "refuses a path without a directory", file: broken, code: 2, says: []string{"there is no directory"},
			change: func(o *Options, dir string) { o.Output = filepath.Join(dir, "a", "b") },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file, output := filepath.Join(dir, "file"), filepath.Join(dir, "new")
			if tt.file != nil {
				if err := os.WriteFile(file, tt.file, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			streams, in, out, errOut := genericiooptions.NewTestIOStreams()
			in.Write(tt.stdin)
			o := &Options{
				IOStreams: streams, File: file, Output: output,
				Progress: func() *ui.Progress { return ui.NewProgress(errOut, os.Getenv, false) },
			}
			if tt.change != nil {
				tt.change(o, dir)
			}
			err := factory.Execute(t.Context(), o)
			said := errOut.String()
			if err != nil {
				said += err.Error() + ui.HintOf(err)
			}
			if (err != nil) != (tt.code != 0) || err != nil && ui.ExitCodeOf(err) != tt.code {
				t.Errorf("got %v, want exit code %d", err, tt.code)
			}
			for _, want := range tt.says {
				if !strings.Contains(said, want) {
					t.Errorf("%q is not said in %q", want, said)
				}
			}
			if !bytes.Equal(out.Bytes(), tt.out) {
				t.Errorf("stdout is %q", out)
			}
			wrote, err := os.ReadFile(output)
			if !bytes.Equal(wrote, tt.wrote) || tt.wrote == nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("wrote %q, %v", wrote, err)
			}
			if o.Overwrite {
				if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, pair.CertPEM) {
					t.Errorf("the file is not replaced: %v", err)
				}
			}
			if strings.Contains(said, "MIG") {
				t.Error("key material is shown")
			}
		})
	}
}
