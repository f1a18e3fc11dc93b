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
)

const password = "password123"

// addUser makes a user, and tells the agent whom to ask about users.
func (d *demo) addUser(ctx context.Context) error {
	d.title("Add a user")
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	if err != nil {
		return fmt.Errorf("hashing the password: %w", err)
	}
	d.say(
		"A user of the local-user-authenticator is a Secret: its name is the username, and it holds the groups and a " +
			"bcrypt hash of the password. " +
			"This is the hash of " + password + "; `htpasswd -nbBC 10 x " + password + "` makes one, too.",
	)
	if _, err := d.shell.run(ctx, `kubectl create secret generic pinny \
    --namespace local-user-authenticator \
    --from-literal=groups=group-for-mtls \
    --from-literal=passwordHash=`+quote(string(hash))); err != nil {
		return err
	}
	d.say("The agent asks the local-user-authenticator over TLS. That one has made a certificate and a CA for itself, " +
		"and the CA is what the agent has to know.")
	if _, err := d.shell.soon(ctx, `kubectl get secret local-user-authenticator-tls-serving-certificate \
    --namespace local-user-authenticator \
    --output 'jsonpath={.data.caCertificate}' > local-user-authenticator-ca.pem.b64`, time.Minute); err != nil {
		return err
	}
	d.say("A WebhookAuthenticator says where to ask. In a cluster with pods the endpoint would be " +
		"https://local-user-authenticator.local-user-authenticator.svc/authenticate.")
	for _, command := range []string{
		`cat > webhookauthenticator.yaml << EOF
apiVersion: authentication.concierge.pinniped.dev/v1alpha1
kind: WebhookAuthenticator
metadata:
  name: local-user-authenticator
spec:
  endpoint: ` + d.users.Endpoint() + `
  tls:
    certificateAuthorityData: $(cat local-user-authenticator-ca.pem.b64)
EOF`,
		"kubectl apply --server-side -f webhookauthenticator.yaml",
		`kubectl wait --for='jsonpath={.status.phase}=Ready' --timeout=60s \
    webhookauthenticator local-user-authenticator`,
	} {
		if _, err := d.shell.run(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// makeKubeconfig makes what the administrator hands to the user.
func (d *demo) makeKubeconfig(ctx context.Context) error {
	d.title("Make a kubeconfig for pinny")
	d.say(
		"It holds the address of the proxy, the CA bundle, and the command with which kubectl logs in: pinniped itself. It " +
			"holds no administrator's " +
			"credential. The password is in it here, as the demo runs without input; --static-token-env keeps it out of the file.",
	)
	if _, err := d.shell.run(ctx, `pinniped get kubeconfig \
    --static-token "pinny:`+password+`" \
    --concierge-authenticator-type webhook \
    --concierge-authenticator-name local-user-authenticator \
    --concierge-mode ImpersonationProxy \
    > `+userKubeconfig); err != nil {
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
	d.checked("it leads to %s and logs in with %s", cluster.Server, filepath.Base(user.Exec.Command))
	return nil
}

// useKubeconfig is the user's part of the story.
func (d *demo) useKubeconfig(ctx context.Context) error {
	d.title("Use it")
	d.say(
		"So that there is something to see, the administrator adds a pod. Then pinny tries to list pods. The cluster knows " +
			"who pinny is, and that nobody has permitted anything to pinny yet.",
	)
	if _, err := d.shell.run(ctx, hello); err != nil {
		return err
	}
	list := "kubectl get pods -A --kubeconfig " + userKubeconfig
	if err := d.shell.fails(
		ctx,
		list,
		`Error from server (Forbidden): pods is forbidden: User "pinny" cannot list resource "pods"`,
	); err != nil {
		return err
	}
	d.checked("pinny is known, and not permitted to do this")
	d.say("The administrator permits everything to pinny's group, and pinny tries again.")
	if _, err := d.shell.run(ctx, `kubectl create clusterrolebinding mtls-admins \
    --clusterrole=cluster-admin --group=group-for-mtls`); err != nil {
		return err
	}
	// A decision may be remembered for a moment.
	text, err := d.shell.soon(ctx, list, 15*time.Second)
	if err != nil {
		return err
	}
	if !strings.Contains(text, "hello") {
		return fmt.Errorf("the list lacks the pod")
	}
	d.checked("pinny is permitted to do it now")
	d.say("This is how the cluster sees pinny.")
	text, err = d.shell.run(ctx, "pinniped whoami --kubeconfig "+userKubeconfig)
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

// hello makes a pod. It asks for no service account, as no controller makes them here.
const hello = `kubectl run hello --image=hello --restart=Never --overrides='{"spec": {"automountServiceAccountToken": false}}'`

// compareCAs shows that what clients trust is what the PKI issued.
func (d *demo) compareCAs(ctx context.Context) error {
	d.title("Compare the CA bundles")
	d.say(
		"There should be one CA in three places: in pinny's kubeconfig, in the status that the agent writes, and in the " +
			"file from your PKI.",
	)
	if _, err := d.shell.run(ctx, `kubectl config view --raw --kubeconfig `+userKubeconfig+` \
    -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' | base64 -d > ca-in-kubeconfig.pem
kubectl get credentialissuer pinniped-concierge-config \
    -o 'jsonpath={.status.strategies[?(@.type=="ImpersonationProxy")].frontend.impersonationProxyInfo.certificateAuthorityData}' \
    | base64 -d > ca-in-status.pem
cksum ca-in-kubeconfig.pem ca-in-status.pem `+caFile); err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(d.dir, caFile))
	if err != nil {
		return fmt.Errorf("comparing the CA bundles: %w", err)
	}
	for _, name := range []string{"ca-in-kubeconfig.pem", "ca-in-status.pem"} {
		got, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil {
			return fmt.Errorf("comparing the CA bundles: %w", err)
		}
		if string(got) != string(want) {
			return fmt.Errorf("%s and %s differ", name, caFile)
		}
	}
	d.checked("all three are the same")
	return nil
}
