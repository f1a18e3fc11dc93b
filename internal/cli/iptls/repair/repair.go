package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Options is everything `pinniped ip-tls repair` needs; a test fills it directly.
type Options struct {
	genericiooptions.IOStreams
	Progress func() *ui.Progress

	File       string // "-" is In
	Output     string // file; empty or "-" means Out, and so do json and yaml
	PrivateKey bool
	Overwrite  bool
}

// NewCommand returns `pinniped ip-tls repair`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{IOStreams: f.IOStreams, Progress: f.Progress}
	cmd := &cobra.Command{
		Use:   "repair FILE -o NEW",
		Short: "Repair a damaged file of certificates or of a private key",
		Long: `Write the certificates in a file again as every program reads them: PEM, the serving certificate first,
then each one that signed the one before it, and nothing else around them. In a CA bundle the order stays.

It splits what runs into each other; decodes DER, PKCS#7, UTF-16 and base64 of base64; mends line breaks, BEGIN and
END lines, labels and indentation; puts a chain in order; and leaves out what is there twice or does not belong there:
text, requests, a private key. It says each thing that it has done. It never leaves out a certificate, and makes up
nothing: when something cannot be read, for example because the file was cut short, it names that and writes no file.
FILE itself is not changed.

With --private-key it writes the private key that is in the file, in PKCS#8 form; without, it does so when the file
holds no certificate. A file that begins with a private key is kept like a key: it writes the key, then the certificates.

What is inside a certificate stays as it is: "pinniped ip-tls check --cert NEW" says whether it is good.

Exit codes: 0 done, 1 failed or not to be repaired, 2 wrong usage, 130 interrupted.`,
		Example: `  # A chain that somebody sent by mail
  pinniped ip-tls repair received.txt -o fullchain.pem
  pinniped ip-tls check --cert fullchain.pem --name proxy.example.com

  # A key in DER, or in OpenSSH's own format
  pinniped ip-tls repair proxy.key --private-key -o key.pem

  # What is in a Secret
  kubectl get secret proxy-tls -n pinniped-concierge -o jsonpath='{.data.tls\.crt}' | pinniped ip-tls repair -`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.File = args[0]
			return factory.Execute(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	factory.AddFileOutput(cmd, &o.Output, "file for the result, replaced atomically "+
		`(default: stdout); "json" and "yaml" print it for programs, with what was done`)
	flags.BoolVar(&o.PrivateKey, "private-key", false, "write the private key in the file, and leave its "+
		"certificates out")
	flags.BoolVar(&o.Overwrite, "overwrite", false, "replace the file of --output if it exists")
	return cmd
}

func oneFile(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return ui.WithHint(ui.Usage(fmt.Errorf("%d files are given, one is needed", len(args))),
			`write: pinniped ip-tls repair FILE -o NEW ("-" for stdin)`)
	}
	return nil
}

func (o *Options) toStdout() bool {
	return o.Output == "" || o.Output == "-" || result.Machine(o.Output)
}

// Complete has nothing to look up.
func (o *Options) Complete() error { return nil }

// Validate checks that --output can be written. It does so before the file is read.
func (o *Options) Validate() error {
	if o.toStdout() {
		return nil
	}
	switch info, err := os.Stat(o.Output); {
	case err == nil && info.IsDir():
		return ui.Usage(fmt.Errorf("invalid --output %q: it is a directory", o.Output))
	case err == nil && info.Mode().IsRegular() && !o.Overwrite:
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid --output %q: the file exists", o.Output)),
			"name another one, or give --overwrite")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return ui.Usage(fmt.Errorf("invalid --output %q: %w", o.Output, err))
	}
	if info, err := os.Stat(filepath.Dir(o.Output)); err != nil || !info.IsDir() {
		return ui.Usage(fmt.Errorf("invalid --output %q: there is no directory %q", o.Output, filepath.Dir(o.Output)))
	}
	return nil
}

// Run reads, repairs, says what was done, and writes.
func (o *Options) Run(context.Context) error {
	data, err := session.ReadPEMFile("the file", o.File, o.In)
	if err != nil {
		return err
	}
	part := certs.PartAny
	if o.PrivateKey {
		part = certs.PartKey
	}
	repaired, err := certs.Repair(data, part)
	var cannot *certs.RepairError
	if errors.As(err, &cannot) {
		return ui.WithHint(fmt.Errorf("repairing %s: %w", session.NameOf(o.File), err), "%s; nothing was written",
			cannot.Hint)
	}
	if err != nil {
		return fmt.Errorf("repairing %s: %w", session.NameOf(o.File), err)
	}
	if result.Machine(o.Output) {
		made := &result.Repair{
			Done: append([]string{}, repaired.Done...), Certificates: repaired.Certificates, Encrypted: repaired.Encrypted,
			PEM: string(repaired.PEM),
		}
		return result.Print(o.Out, o.Output, made, nil, nil)
	}
	progress := o.Progress()
	for _, step := range repaired.Done {
		progress.Info("%s", step)
	}
	if len(repaired.Done) == 0 {
		progress.Info("There was nothing to repair")
	}
	if err := o.write(repaired.PEM); err != nil {
		return err
	}
	if !o.toStdout() {
		progress.Done("Wrote %s to %q", describe(repaired), o.Output)
	}
	if repaired.Encrypted {
		progress.Warn("The key is still protected by a passphrase: openssl pkey -in FILE -out NEW takes it away")
	}
	return nil
}

func describe(repaired *certs.Repaired) string {
	certificates := fmt.Sprintf("%d certificates", repaired.Certificates)
	switch repaired.Certificates {
	case 0:
		return "the private key"
	case 1:
		certificates = "1 certificate"
	}
	if repaired.Key {
		return "the private key and " + certificates
	}
	return certificates
}

func (o *Options) write(data []byte) error {
	if o.toStdout() {
		if _, err := o.Out.Write(data); err != nil {
			return fmt.Errorf("writing the result: %w", err)
		}
		return nil
	}
	if err := atomicfile.Write(o.Output, data); err != nil {
		return fmt.Errorf("writing %q: %w", o.Output, err)
	}
	return nil
}
