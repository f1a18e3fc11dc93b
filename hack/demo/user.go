package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/internal/scenario"
)

// addUser creates a user and a WebhookAuthenticator.
func (d *demo) addUser(ctx context.Context) error {
	d.Title("Add a user")
	hash, err := bcrypt.GenerateFromPassword([]byte(scenario.Password), bcrypt.DefaultCost)
	if err != nil {
		return fmt.Errorf("hashing the password: %w", err)
	}
	d.Say(
		"A user of the local-user-authenticator is a Secret: its name is the username, and it holds the groups and a " +
			"bcrypt hash of the password. " +
			"This is the hash of " + scenario.Password + "; `htpasswd -nbBC 10 x " + scenario.Password + "` makes one, too.",
	)
	if _, err := d.shell.Run(ctx, scenario.CreateUser("group-for-mtls", string(hash))); err != nil {
		return err
	}
	d.Say("The agent asks the local-user-authenticator over TLS. That one has made a certificate and a CA for itself, " +
		"and the CA is what the agent has to know.")
	if _, err := d.shell.Soon(ctx, scenario.SaveAuthenticatorCA(), time.Minute); err != nil {
		return err
	}
	d.Say("A WebhookAuthenticator says where to ask. In a cluster with pods the endpoint would be " +
		"https://local-user-authenticator.local-user-authenticator.svc/authenticate.")
	for _, command := range scenario.UseAuthenticator("local-user-authenticator", d.users.Endpoint()) {
		if _, err := d.shell.Run(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// makeKubeconfig creates the kubeconfig for the user.
func (d *demo) makeKubeconfig(ctx context.Context) error {
	d.Title("Make a kubeconfig for pinny")
	d.Say(
		"It holds the address of the proxy, the CA bundle, and the command with which kubectl logs in: pinniped itself. It " +
			"holds no administrator's " +
			"credential. The password is in it here, as the demo runs without input; --static-token-env keeps it out of the file.",
	)
	if _, err := d.shell.Run(ctx, scenario.MakeKubeconfig("local-user-authenticator", userKubeconfig)); err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(filepath.Join(d.dir, userKubeconfig))
	if err != nil {
		return fmt.Errorf("reading the new kubeconfig: %w", err)
	}
	current, ok := config.Contexts[config.CurrentContext]
	if !ok {
		return fmt.Errorf("the new kubeconfig has no context %q", config.CurrentContext)
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	switch {
	case cluster == nil || cluster.Server != "https://"+d.endpoint():
		return fmt.Errorf("the new kubeconfig does not lead to https://%s", d.endpoint())
	case user == nil || user.Exec == nil || len(user.ClientKeyData) > 0 || user.Token != "":
		return fmt.Errorf("the new kubeconfig does not log in with a credential plugin alone")
	}
	d.Checked("it leads to %s and logs in with %s", cluster.Server, filepath.Base(user.Exec.Command))
	return nil
}

// useKubeconfig runs the user's commands.
func (d *demo) useKubeconfig(ctx context.Context) error {
	d.Title("Use it")
	d.Say(
		"So that there is something to see, the administrator adds a pod. Then pinny tries to list pods. The cluster knows " +
			"who pinny is, and that nobody has permitted anything to pinny yet.",
	)
	if _, err := d.shell.Run(ctx, hello); err != nil {
		return err
	}
	list := "kubectl get pods -A --kubeconfig " + userKubeconfig
	if err := d.shell.Fails(
		ctx,
		list,
		`Error from server (Forbidden): pods is forbidden: User "pinny" cannot list resource "pods"`,
	); err != nil {
		return err
	}
	d.Checked("pinny is known, and not permitted to do this")
	d.Say("The administrator permits everything to pinny's group, and pinny tries again.")
	if _, err := d.shell.Run(ctx, `kubectl create clusterrolebinding mtls-admins \
    --clusterrole=cluster-admin --group=group-for-mtls`); err != nil {
		return err
	}
	// The API server may cache an earlier decision briefly.
	text, err := d.shell.Soon(ctx, list, 15*time.Second)
	if err != nil {
		return err
	}
	if !strings.Contains(text, "hello") {
		return fmt.Errorf("the list lacks the pod")
	}
	d.Checked("pinny is permitted to do it now")
	d.Say("This is how the cluster sees pinny.")
	text, err = d.shell.Run(ctx, "pinniped whoami --kubeconfig "+userKubeconfig)
	if err != nil {
		return err
	}
	for _, want := range []string{"https://" + d.endpoint(), "Username: pinny", "group-for-mtls", "system:authenticated"} {
		if !strings.Contains(text, want) {
			return fmt.Errorf("whoami does not say %q", want)
		}
	}
	return nil
}

// hello creates a pod without a service account token, as no controller creates them here.
const hello = `kubectl run hello --image=hello --restart=Never --overrides='{"spec": {"automountServiceAccountToken": false}}'`

// fetchKubeconfig gets the kubeconfig as a user, without an administrator.
func (d *demo) fetchKubeconfig(ctx context.Context) error {
	d.Title("Let users fetch their kubeconfig")
	d.Say("The administrator says once how users log in. The proxy then offers the kubeconfig to everyone.")
	if _, err := d.shell.Run(ctx, `kubectl patch credentialissuer pinniped-concierge-config --type merge --patch '
spec: {impersonationProxy: {kubeconfig: {clusterName: demo, logins: [
  {name: people, authenticator: {kind: WebhookAuthenticator, name: local-user-authenticator}}]}}}'`); err != nil {
		return err
	}
	if _, err := d.shell.Soon(
		ctx,
		`pinniped get kubeconfig --from https://`+d.endpoint()+` --ca-bundle `+scenario.CAFile+` \
    --static-token pinny:`+scenario.Password+` --output fetched.yaml`,
		time.Minute,
	); err != nil {
		return err
	}
	text, err := d.shell.Run(ctx, "kubectl auth whoami --kubeconfig fetched.yaml")
	if err != nil {
		return err
	}
	if !strings.Contains(text, "pinny") {
		return fmt.Errorf("the fetched kubeconfig does not log in as pinny")
	}
	d.Checked("the fetched kubeconfig logs in; in a browser, https://%s shows these steps", d.endpoint())
	return nil
}

// compareCAs checks that clients trust the CA of the PKI.
func (d *demo) compareCAs(ctx context.Context) error {
	d.Title("Compare the CA bundles")
	d.Say(
		"There should be one CA in three places: in pinny's kubeconfig, in the status that the agent writes, and in the " +
			"file from your PKI.",
	)
	if _, err := d.shell.Run(ctx, `kubectl config view --raw --kubeconfig `+userKubeconfig+` \
    -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' | base64 -d > ca-in-kubeconfig.pem
kubectl get credentialissuer pinniped-concierge-config \
    -o 'jsonpath={.status.strategies[?(@.type=="ImpersonationProxy")].frontend.impersonationProxyInfo.certificateAuthorityData}' \
    | base64 -d > ca-in-status.pem
cksum ca-in-kubeconfig.pem ca-in-status.pem `+scenario.CAFile); err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(d.dir, scenario.CAFile))
	if err != nil {
		return fmt.Errorf("comparing the CA bundles: %w", err)
	}
	for _, name := range []string{"ca-in-kubeconfig.pem", "ca-in-status.pem"} {
		got, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil {
			return fmt.Errorf("comparing the CA bundles: %w", err)
		}
		if string(got) != string(want) {
			return fmt.Errorf("%s and %s differ", name, scenario.CAFile)
		}
	}
	d.Checked("all three are the same")
	return nil
}
