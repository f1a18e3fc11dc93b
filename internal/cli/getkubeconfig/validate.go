package getkubeconfig

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// tryConnection connects to the cluster as kubectl will, without a credential. It retries until the timeout, as the
// cluster may be starting, except after permanent errors such as an untrusted certificate.
func (o *Options) tryConnection(ctx context.Context, config *clientcmdapi.Config) error {
	cluster := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	client, err := discovery.NewHTTPClient(cluster, cluster.CertificateAuthorityData)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var task *ui.Task
	defer func() {
		if task != nil {
			task.Stop()
		}
	}()
	var cause error // of the last complete attempt
	for {
		err := discovery.Try(ctx, client, cluster.Server)
		if err == nil {
			// Fetch the trust bundle: the agent records a client of the revision only when it was fetched. Servers
			// without this path return an error, which does not matter.
			_ = discovery.Try(ctx, client, strings.TrimSuffix(cluster.Server, "/")+trustbundle.Path)
			o.Progress.Done("validated connection to the cluster")
			return nil
		}
		over := factory.Over(ctx)
		if over == nil && discovery.Permanent(err) {
			return discovery.Explain(fmt.Errorf("validating the connection to %q: %w", cluster.Server, err))
		}
		if over == nil || cause == nil {
			cause = err
		}
		if over != nil {
			return o.gaveUp(over, cluster.Server, cause)
		}
		if task == nil {
			task = o.Progress.Start(
				"could not immediately connect to the cluster but it may be initializing, will retry until timeout: %v",
				err,
			)
		} else {
			task.Update("could not connect to cluster, retrying: %v", err)
		}
		select {
		case <-ctx.Done():
			return o.gaveUp(ctx.Err(), cluster.Server, cause)
		case <-time.After(o.PollInterval):
		}
	}
}

// gaveUp returns the error when time has run out. over is the error of the context, cause that of the last complete
// attempt.
func (o *Options) gaveUp(over error, server string, cause error) error {
	if errors.Is(over, context.Canceled) {
		return fmt.Errorf("validating the connection to %q: %w", server, over)
	}
	err := fmt.Errorf("validating the connection to %q (--timeout %s): %w: %w", server, o.Timeout, over, cause)
	return ui.WithHint(
		err,
		"check whether this address is reachable from here, or skip the test with --skip-validation",
	)
}

// Validation is how the command tests the kubeconfig.
type Validation string

// The kinds of validation.
const (
	ValidateConnection Validation = "connection" // connect like kubectl, without a credential; the default
	ValidateLogin      Validation = "login"      // and log in, like kubectl
	ValidateNothing    Validation = "none"
)

// tryLogin runs the credential plugin like kubectl, and asks the cluster for the identity.
func (o *Options) tryLogin(ctx context.Context, config *clientcmdapi.Config) error {
	config, err := kubeconfig.WithDefaults(config)
	if err != nil {
		return err
	}
	connection, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the new kubeconfig: %w", err)
	}
	connection.UserAgent = "pinniped"
	life := "no expiration time"
	if plugin := connection.ExecProvider; plugin != nil {
		o.Progress.Info(
			"logging in the way kubectl will, with %q",
			strings.Join(append([]string{plugin.Command}, plugin.Args[:2]...), " "),
		)
		credential, err := o.runPlugin(ctx, plugin, connection)
		if err != nil {
			return err
		}
		connection.ExecProvider = nil
		connection.BearerToken = credential.Token
		connection.CertData, connection.KeyData = []byte(credential.ClientCertificateData), []byte(credential.ClientKeyData)
		if expiry := credential.ExpirationTimestamp; !expiry.IsZero() {
			left := expiry.Sub(o.Now()).Round(time.Second)
			life = fmt.Sprintf("valid for %s, until %s", left, expiry.UTC().Format(time.RFC3339))
		}
	}
	who, err := o.whoAmI(ctx, connection)
	if err != nil {
		return err
	}
	o.tried = append(o.tried, [2]string{"Logged in as", who}, [2]string{"Credential", life})
	o.Progress.Done("logged in as %s", who)
	o.Progress.Done("credential: %s", life)
	return nil
}

// whoAmI asks the cluster for the identity of the connection's credential.
func (o *Options) whoAmI(ctx context.Context, connection *rest.Config) (string, error) {
	client, err := o.ConnectAs(connection, o.Suffix)
	if err != nil {
		return "", fmt.Errorf("using the credential: %w", err)
	}
	response, err := client.WhoAmI(ctx)
	switch {
	case errors.Is(err, discovery.ErrUnauthorized):
		return "", ui.WithHint(
			fmt.Errorf("logging in: %s does not accept the credential: %w", connection.Host, err),
			"the login succeeded, but the API server or the proxy at this address does not trust the credentials that the "+
				"agent signs: see the agent's log for the reason, or create the kubeconfig anyway with --validate=connection",
		)
	case errors.Is(err, discovery.ErrNotInstalled), errors.Is(err, discovery.ErrForbidden):
		return "an unknown user (the cluster has no WhoAmI API, or denies access to it)", nil
	case err != nil:
		return "", fmt.Errorf("identifying the user: %w", err)
	}
	user := response.Status.KubernetesUserInfo.User
	if len(user.Groups) == 0 {
		return fmt.Sprintf("%q", user.Username), nil
	}
	return fmt.Sprintf("%q, in the groups %s", user.Username, strings.Join(user.Groups, ", ")), nil
}

// runPlugin runs an exec credential plugin and returns its credential.
func (o *Options) runPlugin(
	ctx context.Context,
	plugin *clientcmdapi.ExecConfig,
	connection *rest.Config,
) (*clientauthenticationv1beta1.ExecCredentialStatus, error) {
	command := plugin.Command
	if _, err := exec.LookPath(command); err != nil {
		if command, err = o.Executable(); err != nil {
			return nil, fmt.Errorf("finding the login program: %w", err)
		}
		o.Progress.Warn(
			"%q is not installed on this computer; logging in with this program instead: %s",
			plugin.Command,
			command,
		)
	}
	cluster, err := login.ClusterInfo(connection)
	if err != nil {
		return nil, fmt.Errorf("describing the cluster to the credential plugin: %w", err)
	}
	var request clientauthenticationv1beta1.ExecCredential
	request.APIVersion, request.Kind = plugin.APIVersion, "ExecCredential"
	request.Spec.Interactive, request.Spec.Cluster = ui.IsTerminal(o.In), cluster
	info, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("describing the cluster to the credential plugin: %w", err)
	}
	var out bytes.Buffer
	process := exec.CommandContext(ctx, command, plugin.Args...)
	process.Env = append(os.Environ(), "KUBERNETES_EXEC_INFO="+string(info))
	process.Stdin, process.Stdout, process.Stderr = o.In, &out, o.ErrOut
	if err := process.Run(); err != nil {
		err = cmp.Or(factory.Over(ctx), err)
		return nil, ui.WithHint(
			fmt.Errorf(
				"logging in with the new kubeconfig: its credential plugin failed, so the kubeconfig was not written: %w",
				err,
			),
			"see the plugin's output above, or use --validate=connection to create the kubeconfig without logging in",
		)
	}
	var response clientauthenticationv1beta1.ExecCredential
	if err := json.Unmarshal(out.Bytes(), &response); err != nil || response.Status == nil {
		return nil, ui.WithHint(
			fmt.Errorf("logging in with the new kubeconfig: %q did not print an ExecCredential", command),
			"check that this is a pinniped CLI, or pass another path with --pinniped-cli-path",
		)
	}
	return response.Status, nil
}
