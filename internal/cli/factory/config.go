package factory

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// maxConfig is the maximum size of the configuration file in bytes.
const maxConfig = 1 << 20

// Config is the configuration file: defaults for flags of many commands. Each key can also be set in the environment,
// as PINNIPED_ and the key in upper case with underscores.
type Config struct {
	Kubeconfig          string        `mapstructure:"kubeconfig"`
	KubeconfigContext   string        `mapstructure:"kubeconfig-context"`
	APIGroupSuffix      string        `mapstructure:"api-group-suffix"`
	CredentialIssuer    string        `mapstructure:"credential-issuer"`
	Namespace           string        `mapstructure:"namespace"`
	Timeout             time.Duration `mapstructure:"timeout"`
	GeneratedNameSuffix string        `mapstructure:"generated-name-suffix"`
	PinnipedCLIPath     string        `mapstructure:"pinniped-cli-path"`
	InstallHint         string        `mapstructure:"install-hint"`
	ExpectCA            string        `mapstructure:"expect-ca"`
}

// Keys of the configuration, for Bind.
const (
	KeyKubeconfig          = "kubeconfig"
	KeyKubeconfigContext   = "kubeconfig-context"
	KeyAPIGroupSuffix      = "api-group-suffix"
	KeyCredentialIssuer    = "credential-issuer"
	KeyNamespace           = "namespace"
	KeyTimeout             = "timeout"
	KeyGeneratedNameSuffix = "generated-name-suffix"
	KeyPinnipedCLIPath     = "pinniped-cli-path"
	KeyInstallHint         = "install-hint"
	KeyExpectCA            = "expect-ca"
)

// keys returns the keys of the configuration, in the order of Config.
func keys() []string {
	config := reflect.TypeFor[Config]()
	all := make([]string, 0, config.NumField())
	for i := range config.NumField() {
		all = append(all, config.Field(i).Tag.Get("mapstructure"))
	}
	return all
}

const (
	bindAnnotation     = "pinniped.dev/config-key"
	noConfigAnnotation = "pinniped.dev/no-config"
)

// Bind takes the default of a flag from the configuration key. The order is: command line, environment, file, the
// flag's own default.
func Bind(flags *pflag.FlagSet, name, key string) {
	if err := flags.SetAnnotation(name, bindAnnotation, []string{key}); err != nil {
		panic(fmt.Errorf("binding --%s: %w", name, err)) // a bug
	}
}

// WithoutConfig marks cmd and its subcommands as reading no configuration: their arguments are in a kubeconfig that we
// wrote, or they must work with a broken configuration.
func WithoutConfig(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[noConfigAnnotation] = "true"
	return cmd
}

// ApplyConfig reads environment and configuration file, and sets the bound flags of cmd that are not on the command
// line. These flags do not count as changed. The root command calls it before every command.
func (f *Factory) ApplyConfig(v *viper.Viper, cmd *cobra.Command) error {
	if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
		return nil // the completion functions call it for the completed command
	}
	for c := cmd; c != nil; c = c.Parent() {
		if c.Annotations[noConfigAnnotation] != "" {
			return nil
		}
	}
	if err := f.readConfig(v); err != nil {
		return ui.Usage(err)
	}
	var failed error
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		key := flag.Annotations[bindAnnotation]
		if failed != nil || len(key) == 0 || flag.Changed || !v.IsSet(key[0]) {
			return
		}
		if err := flag.Value.Set(v.GetString(key[0])); err != nil {
			failed = ui.Usage(fmt.Errorf("setting --%s from %s: %w", flag.Name, f.origin(v, key[0]), err))
		}
	})
	return failed
}

// origin describes where the value of key is from.
func (f *Factory) origin(v *viper.Viper, key string) string {
	if name := envName(key); f.Getenv(name) != "" {
		return "the environment variable " + name
	}
	return fmt.Sprintf("%q", v.ConfigFileUsed())
}

func envName(key string) string {
	return "PINNIPED_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// readConfig fills v from the configuration file and the environment, and rejects unknown keys and wrong types.
func (f *Factory) readConfig(v *viper.Viper) error {
	if err := f.readConfigFile(v); err != nil {
		return err
	}
	for _, key := range keys() { // viper's BindEnv reads only the process's environment
		if value := f.Getenv(envName(key)); value != "" {
			v.Set(key, value)
		}
	}
	var seen mapstructure.Metadata
	err := v.Unmarshal(&Config{}, func(c *mapstructure.DecoderConfig) { c.Metadata = &seen })
	if len(seen.Unused) > 0 {
		return unknownKeys(v.ConfigFileUsed(), seen.Unused)
	}
	if err != nil {
		return f.wrongValue(v, err)
	}
	return nil
}

// readConfigFile reads the file in PINNIPED_CONFIG, or the default one, if it exists.
func (f *Factory) readConfigFile(v *viper.Viper) error {
	path := f.Getenv("PINNIPED_CONFIG")
	explicit := path != ""
	if !explicit {
		dir, err := f.ConfigDir()
		if err != nil {
			return nil // no home directory, so no file
		}
		path = filepath.Join(dir, "config.yaml")
	}
	path, err := f.ExpandPath(path)
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	v.SetConfigFile(path)
	v.SetConfigType("yaml") // for any file extension
	content, err := atomicfile.ReadInput(path, maxConfig)
	if err == nil {
		err = v.ReadConfig(bytes.NewReader(content))
	}
	var unreadable *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist) && !explicit:
		return nil
	case errors.As(err, &unreadable): // it names the file
		return fmt.Errorf("reading the configuration: %w", err)
	case err != nil:
		return fmt.Errorf("reading the configuration %q: %w", path, err)
	}
	return nil
}

// unknownKeys returns an error with the unknown keys and the nearest known ones.
func unknownKeys(path string, unknown []string) error {
	var quoted, near []string
	for _, key := range unknown {
		quoted = append(quoted, strconv.Quote(key))
		if known := Nearest(key, keys()); known != "" {
			near = append(near, strconv.Quote(known))
		}
	}
	slices.Sort(quoted)
	slices.Sort(near)
	hint := "the keys are " + strings.Join(keys(), ", ")
	if len(near) > 0 {
		hint = fmt.Sprintf("did you mean %s? %s", strings.Join(slices.Compact(near), ", "), hint)
	}
	return ui.WithHint(
		fmt.Errorf("reading the configuration %q: unknown key %s", path, strings.Join(quoted, ", ")),
		"%s",
		hint,
	)
}

// wrongValue returns an error that says which key has a value of the wrong type.
func (f *Factory) wrongValue(v *viper.Viper, err error) error {
	var decoding *mapstructure.DecodeError
	if !errors.As(err, &decoding) {
		return fmt.Errorf("reading the configuration %q: %w", v.ConfigFileUsed(), err)
	}
	key := decoding.Name()
	value := v.Get(key)
	switch value.(type) {
	case []any, map[string]any:
		return fmt.Errorf("reading the configuration: %q in %s must have a single value", key, f.origin(v, key))
	default: // all other keys are strings, which cannot be wrong
		return fmt.Errorf(
			"reading the configuration: invalid value %q for %q in %s: it must be a duration, such as 30s or 10m",
			fmt.Sprint(value),
			key,
			f.origin(v, key),
		)
	}
}
