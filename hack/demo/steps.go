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

const servingSecret = "impersonation-proxy-tls-serving-cert"

// makeCertificate issues a certificate with the PKI.
func (d *demo) makeCertificate(ctx context.Context) (err error) {
	d.Title("Get a certificate of your own")
	if d.pki, err = scenario.NewPKI(d.dir, "Demo CA"); err != nil {
		return err
	}
	if d.certificate, err = d.pki.Issue("serving", "localhost"); err != nil {
		return err
	}
	d.Say(
		"This is where your PKI comes in: cert-manager, Vault, or a colleague with openssl. Here the demo itself has made " +
			"a CA and issued a certificate " +
			"for localhost, which is where users will find the API: " + scenario.CAFile + ", serving.pem and serving-key.pem. The last " +
			"two go into a Secret.",
	)
	_, err = d.shell.Run(ctx, scenario.Store(servingSecret, "serving"))
	return err
}

// setCertificate puts the API behind the certificate, the main step of the demo.
func (d *demo) setCertificate(ctx context.Context) error {
	d.Title("Put the API behind it")
	d.Say(
		"The impersonation proxy is the part of the agent that users talk to. It is switched on in the CredentialIssuer. " +
			"(With mode auto, as it was " +
			"installed, the agent switches it on where no control-plane nodes are to be seen, as with most cloud providers.) " +
			"At first the agent serves a certificate that it has made itself.",
	)
	for _, command := range []string{
		`kubectl patch credentialissuer pinniped-concierge-config --type merge --patch \
    '{"spec": {"impersonationProxy": {"mode": "enabled", "service": {"type": "ClusterIP"}}}}'`,
		`kubectl wait --timeout=60s credentialissuer pinniped-concierge-config \
    --for='jsonpath={.status.strategies[?(@.type=="ImpersonationProxy")].reason}=Listening'`,
	} {
		if _, err := d.shell.Run(ctx, command); err != nil {
			return err
		}
	}
	d.Say(
		"One command then checks your certificate, has it served, and waits until it is. The CA bundle is what clients " +
			"need to trust it. The external " +
			"endpoint is the name under which users reach the proxy: a load balancer, an ingress that passes TLS through or, " +
			"as here, a port of this machine. " +
			"(It refuses a certificate that would break kubeconfigs in use. There are none yet.)",
	)
	if _, err := d.shell.Run(ctx, "pinniped ip-tls set --secret "+servingSecret+` \
    --ca-bundle `+scenario.CAFile+` \
    --external-endpoint `+d.endpoint()); err != nil {
		return err
	}
	if err := d.pki.Presents(ctx, d.endpoint(), d.certificate); err != nil {
		return err
	}
	d.Checked(
		"https://%s presents your certificate, valid until %s",
		d.endpoint(),
		d.certificate.NotAfter.Format(time.DateOnly),
	)
	return nil
}

// renewCertificate replaces the certificate while a watch runs through the proxy.
func (d *demo) renewCertificate(ctx context.Context) error {
	d.Title("Renew the certificate while pinny is at work")
	if _, err := d.shell.Run(ctx, "kubectl create configmap one"); err != nil {
		return err
	}
	d.Say(
		"In a second terminal, pinny watches ConfigMaps. This command goes on until it is stopped: its connection stays " +
			"open. It prints a line for the " +
			"ConfigMap that is there, and one for each that comes.",
	)
	watch, err := d.shell.Start(ctx, "kubectl get configmaps --watch --kubeconfig "+userKubeconfig)
	if err != nil {
		return err
	}
	defer watch.Stop()
	// The first line is from a list. The second line proves that the watch is open.
	if err := watch.WaitFor(ctx, "one ", 30*time.Second); err != nil {
		return fmt.Errorf("watching before the renewal: %w", err)
	}
	if _, err := d.shell.Run(ctx, "kubectl create configmap two-before-renewal"); err != nil {
		return err
	}
	if err := watch.WaitFor(ctx, "two-before-renewal ", 30*time.Second); err != nil {
		return fmt.Errorf("watching before the renewal: %w", err)
	}

	renewed, err := d.pki.Issue("renewed", "localhost")
	if err != nil {
		return err
	}
	d.Say(
		"Your PKI issues the next certificate, with a new key. It replaces the old one in the Secret, and that is all " +
			"there is to do.",
	)
	if _, err := d.shell.Run(ctx, scenario.Store(servingSecret, "renewed")); err != nil {
		return err
	}
	took, err := d.pki.WaitPresented(ctx, d.endpoint(), renewed, 30*time.Second)
	if err != nil {
		return err
	}
	d.Checked("new connections get the new certificate, %d ms after that command had ended", took.Milliseconds())

	d.Say("And the watch? It should see what happens after the renewal, and print a line for the third ConfigMap.")
	if _, err := d.shell.Run(ctx, "kubectl create configmap three-after-renewal"); err != nil {
		return err
	}
	if err := watch.WaitFor(ctx, "three-after-renewal ", 30*time.Second); err != nil {
		return fmt.Errorf("watching after the renewal: %w", err)
	}
	if !watch.Running() {
		return fmt.Errorf("the watch ended")
	}
	d.Checked("the watch went on, on the connection it had")
	d.Say(
		"New commands open new connections. They trust the new certificate, because it comes from the same CA: pinny's kubeconfig " +
			"stays as it is.",
	)
	_, err = d.shell.Run(ctx, "kubectl get configmap three-after-renewal --kubeconfig "+userKubeconfig)
	return err
}
