package factory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// Config is the configuration file: defaults of flags that many commands have. Every key is also read from the
// environment, as PINNIPED_ and the key in upper case with underscores.
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
)

func keys() []string {
	return []string{
		KeyKubeconfig, KeyKubeconfigContext, KeyAPIGroupSuffix, KeyCredentialIssuer, KeyNamespace, KeyTimeout,
		KeyGeneratedNameSuffix, KeyPinnipedCLIPath, KeyInstallHint,
	}
}

const (
	bindAnnotation     = "pinniped.dev/config-key"
	noConfigAnnotation = "pinniped.dev/no-config"
)

// Bind gives the flag called name its default from the configuration: command line, then environment, then file,
// then the flag's own default.
func Bind(flags *pflag.FlagSet, name, key string) {
	if err := flags.SetAnnotation(name, bindAnnotation, []string{key}); err != nil {
		panic(fmt.Errorf("binding --%s: %w: %w", name, errNoFlag, err)) // a mistake in our code
	}
}

// WithoutConfig marks cmd, and what is below it, as a command that reads no configuration: because its arguments
// were written by us into a kubeconfig, or because it must work when the configuration is broken.
func WithoutConfig(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[noConfigAnnotation] = "true"
	return cmd
}

// ApplyConfig reads environment and configuration file, and sets the bound flags of cmd that were not given on the
// command line. They do not count as changed. The root command calls it before every command.
func (f *Factory) ApplyConfig(v *viper.Viper, cmd *cobra.Command) error {
	if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
		return nil // the functions that complete read it for the command that is completed
	}
	for c := cmd; c != nil; c = c.Parent() {
		if c.Annotations[noConfigAnnotation] != "" {
			return nil
		}
	}
	path, err := f.readConfig(v)
	if err != nil {
		return ui.Usage(err)
	}
	var failed error
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		key := flag.Annotations[bindAnnotation]
		if failed != nil || len(key) == 0 || flag.Changed || !v.IsSet(key[0]) {
			return
		}
		if err := flag.Value.Set(v.GetString(key[0])); err != nil {
			failed = ui.Usage(fmt.Errorf("setting --%s from %s: %w", flag.Name, f.origin(key[0], path), err))
		}
	})
	return failed
}

// origin names where the value of key comes from.
func (f *Factory) origin(key, path string) string {
	if name := envName(key); f.Getenv(name) != "" {
		return "the environment variable " + name
	}
	return fmt.Sprintf("%q", path)
}

func envName(key string) string {
	return "PINNIPED_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// readConfig fills v and returns the path of the configuration file.
func (f *Factory) readConfig(v *viper.Viper) (string, error) {
	path := f.Getenv("PINNIPED_CONFIG")
	explicit := path != ""
	if !explicit {
		dir, err := f.ConfigDir()
		if err != nil {
			dir = "" // no home directory, hence no file
		}
		path = filepath.Join(dir, "config.yaml")
		if dir == "" {
			path = ""
		}
	}
	if path != "" {
		if err := readConfigFile(v, path, explicit); err != nil {
			return path, err
		}
	}
	for _, key := range keys() {
		if value := f.Getenv(envName(key)); value != "" {
			v.Set(key, value)
		}
	}
	var config Config
	if err := v.UnmarshalExact(&config, viper.DecodeHook(mapstructure.StringToTimeDurationHookFunc())); err != nil {
		return path, f.configError(v, path, err)
	}
	return path, nil
}

func readConfigFile(v *viper.Viper, path string, mustExist bool) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !mustExist {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	defer func() { _ = file.Close() }()
	v.SetConfigType("yaml")
	if err := v.ReadConfig(file); err != nil {
		return fmt.Errorf("reading the configuration %q: %w", path, err)
	}
	return nil
}

// configError says in our words what is wrong: an unknown key, or a value of the wrong type.
func (f *Factory) configError(v *viper.Viper, path string, err error) error {
	var unknown, near []string
	for _, key := range v.AllKeys() {
		if slices.Contains(keys(), key) {
			continue
		}
		unknown = append(unknown, fmt.Sprintf("%q", key))
		if known := Nearest(key, keys()); known != "" {
			near = append(near, fmt.Sprintf("%q", known))
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		slices.Sort(near)
		hint := "the keys are " + strings.Join(keys(), ", ")
		if len(near) > 0 {
			hint = fmt.Sprintf("did you mean %s? %s", strings.Join(slices.Compact(near), ", "), hint)
		}
		return ui.WithHint(fmt.Errorf("reading the configuration %q: unknown key %s", path, strings.Join(unknown, ", ")), "%s", hint)
	}
	for _, key := range keys() {
		where := f.origin(key, path)
		switch value := v.Get(key).(type) {
		case nil:
		case string:
			if _, err := time.ParseDuration(value); key == KeyTimeout && err != nil {
				return fmt.Errorf("reading the configuration: invalid value %q for %q in %s: it must be a duration, such as 30s or 10m", value, key, where)
			}
		case []any, map[string]any:
			return fmt.Errorf("reading the configuration: the value of %q in %s must be a single one", key, where)
		}
	}
	return fmt.Errorf("reading the configuration %q: %s", path, strings.Join(strings.Fields(err.Error()), " "))
}
