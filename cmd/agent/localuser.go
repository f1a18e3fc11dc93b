package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/agent"
)

func newLocalUserAuthenticator() *cobra.Command {
	var options agent.LocalUserOptions
	command := &cobra.Command{
		Use:   "local-user-authenticator",
		Short: "Run a TokenReview webhook for trials; its users are Secrets",
		Example: `  # In a pod
  pinniped-agent local-user-authenticator

  # Outside a cluster, reachable as localhost
  pinniped-agent local-user-authenticator --kubeconfig=webhook.kubeconfig --listen-address=127.0.0.1:8443 --serving-name=localhost

  # A user "pinny" of group "developers" with the token "pinny:password123"
  kubectl create secret generic pinny --namespace=local-user-authenticator --from-literal=groups=developers \
    --from-literal=passwordHash="$(htpasswd -nbBC 10 x password123 | sed 's/^x://')"`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options.LogOutput, options.Version = cmd.ErrOrStderr(), version
			return agent.RunLocalUserAuthenticator(cmd.Context(), options)
		},
	}
	flags := command.Flags()
	flags.StringVar(
		&options.Kubeconfig,
		"kubeconfig",
		"",
		"kubeconfig that the webhook uses (default: the pod's service account)",
	)
	flags.StringVar(
		&options.Namespace,
		"namespace",
		os.Getenv("PINNIPED_AGENT_NAMESPACE"),
		"namespace whose Secrets are the users (default: the pod's)",
	)
	flags.StringVar(&options.Address, "listen-address", "", "address to listen on (default: :8443)")
	flags.StringSliceVar(
		&options.ServingNames,
		"serving-name",
		nil,
		"DNS name or IP address that the certificate is valid for, besides those of the Service",
	)
	flags.StringVar(&options.Log.Level, "log-level", "info", "info, debug, trace or all")
	flags.StringVar(&options.Log.Format, "log-format", "json", "json or text")
	return command
}
