// Command pinniped-agent runs in the cluster, or next to it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	// The image has no CA certificates, so webhook clients would know no public CA without these.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/pinniped-toolkit/pinniped/internal/agent"
)

// version is set by the linker for releases: -X main.version=v1.2.3, which requires a package variable.
var version = "v0.0.0-devel"

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// usageError is an error in the command line. It sets exit code 2.
type usageError struct{ error }

// run returns the exit code: 0 done, 1 failed, 2 usage error.
func run(args []string, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(errOut, "error: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		_, _ = fmt.Fprintf(errOut, "hint: run \"pinniped-agent --help\"\n")
		return 2
	}
	return 1
}

func newRoot() *cobra.Command {
	var tellVersion bool
	root := &cobra.Command{
		Use:   "pinniped-agent",
		Short: "Put a Kubernetes API behind your own certificate",
		Long: "pinniped-agent runs inside or outside a cluster. It serves the certificate that the CredentialIssuer names, " +
			"authenticates people, and forwards their requests to the API server by impersonation.",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			if tellVersion {
				return printVersion(cmd.OutOrStdout())
			}
			return usageError{errors.New("a command is missing: concierge or local-user-authenticator")}
		},
		Args: cobra.ArbitraryArgs,
	}
	// cobra's own --version prints with templates, for which the linker keeps every exported method. That adds a third.
	root.Flags().BoolVar(&tellVersion, "version", false, "print the version")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newConcierge(), newLocalUserAuthenticator(), newVersion())
	return root
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

func newConcierge() *cobra.Command {
	var options agent.Options
	var printConfig bool
	command := &cobra.Command{
		Use:   "concierge",
		Short: "Run the impersonation proxy and the Concierge APIs",
		Example: `  # In a pod that mounts the ConfigMap with the configuration
  pinniped-agent concierge --config=/etc/config/pinniped.yaml

  # Outside a cluster, listening on this machine only
  pinniped-agent concierge --kubeconfig=agent.kubeconfig --bind-address=127.0.0.1

  # Print the configuration, including all defaults
  pinniped-agent concierge --print-config`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := agent.LoadConfig(options.ConfigFile)
			if err != nil {
				return usageError{err}
			}
			if printConfig {
				return config.Print(cmd.OutOrStdout())
			}
			options.LogOutput, options.AuditOutput, options.Version = cmd.ErrOrStderr(), cmd.OutOrStdout(), version
			return agent.Run(cmd.Context(), options, config)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.ConfigFile, "config", "", "configuration file (default: none)")
	flags.StringVar(
		&options.Kubeconfig,
		"kubeconfig",
		"",
		"kubeconfig that the agent uses (default: the pod's service account)",
	)
	flags.StringVar(
		&options.Namespace,
		"namespace",
		os.Getenv("PINNIPED_AGENT_NAMESPACE"),
		"the agent's namespace (environment: PINNIPED_AGENT_NAMESPACE; default: the pod's namespace, else "+
			agent.DefaultNamespace+")",
	)
	flags.StringVar(&options.PodName, "pod-name", os.Getenv("PINNIPED_AGENT_POD_NAME"),
		"name of this replica (environment: PINNIPED_AGENT_POD_NAME; default: the host name)")
	flags.StringVar(&options.BindAddress, "bind-address", "", "IP address to listen on (default: all)")
	flags.BoolVar(&printConfig, "print-config", false, "print the configuration in effect as YAML, and exit")
	return command
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd.OutOrStdout()) },
	}
}

func printVersion(out io.Writer) error {
	_, err := fmt.Fprintln(out, version)
	return err
}
