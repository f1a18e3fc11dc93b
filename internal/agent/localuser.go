package agent

import (
	"context"
	"io"

	"github.com/go-logr/logr"

	"github.com/pinniped-toolkit/pinniped/internal/localuser"
)

// LocalUserOptions configures `pinniped-agent local-user-authenticator`.
type LocalUserOptions struct {
	Kubeconfig   string // default: the pod's service account
	Namespace    string // default: the pod's namespace
	Address      string
	ServingNames []string
	Log          LogConfig
	Version      string
	LogOutput    io.Writer
}

// RunLocalUserAuthenticator serves the webhook until ctx ends.
func RunLocalUserAuthenticator(ctx context.Context, options LocalUserOptions) error {
	logger, err := setUpLogging(options.Log, options.LogOutput)
	if err != nil {
		return err
	}
	config, err := clientConfig(options.Kubeconfig, options.Version)
	if err != nil {
		return err
	}
	return localuser.Run(logr.NewContext(ctx, logger), localuser.Options{
		RestConfig:   config,
		Namespace:    namespaceOr(options.Namespace, localuser.DefaultNamespace),
		Address:      options.Address,
		ServingNames: options.ServingNames,
	})
}
