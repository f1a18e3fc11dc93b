package scenario

// Password is the password of the user that CreateUser creates.
const Password = "password123"

// Store returns the command that puts a certificate of PKI.Issue into a Secret in the agent's namespace.
func Store(secret, name string) string {
	return "kubectl create secret tls " + secret + ` \
    --namespace pinniped-concierge \
    --cert ` + name + ".pem --key " + name + `-key.pem \
    --dry-run=client -o yaml | kubectl apply --server-side -f -`
}

// CreateUser returns the command that creates user pinny of the local-user-authenticator. hash is the bcrypt hash of
// the password.
func CreateUser(group, hash string) string {
	return `kubectl create secret generic pinny \
    --namespace local-user-authenticator \
    --from-literal=groups=` + group + ` \
    --from-literal=passwordHash=` + Quote(hash)
}

// authenticatorCA is the file that SaveAuthenticatorCA writes.
const authenticatorCA = "local-user-authenticator-ca.pem.b64"

// SaveAuthenticatorCA returns the command that saves the CA of the local-user-authenticator. The command fails until
// there is one.
func SaveAuthenticatorCA() string {
	return `kubectl get secret local-user-authenticator-tls-serving-certificate \
    --namespace local-user-authenticator \
    --output 'jsonpath={.data.caCertificate}' > ` + authenticatorCA
}

// UseAuthenticator returns the commands that create a WebhookAuthenticator for this endpoint.
func UseAuthenticator(name, endpoint string) []string {
	return []string{
		`cat > webhookauthenticator.yaml << EOF
apiVersion: authentication.concierge.pinniped.dev/v1alpha1
kind: WebhookAuthenticator
metadata:
  name: ` + name + `
spec:
  endpoint: ` + endpoint + `
  tls:
    certificateAuthorityData: $(cat ` + authenticatorCA + `)
EOF`,
		"kubectl apply --server-side -f webhookauthenticator.yaml",
		`kubectl wait --for='jsonpath={.status.phase}=Ready' --timeout=60s \
    webhookauthenticator ` + name,
	}
}

// MakeKubeconfig returns the command that writes pinny's kubeconfig to a file.
func MakeKubeconfig(authenticator, file string) string {
	return `pinniped get kubeconfig \
    --static-token "pinny:` + Password + `" \
    --concierge-authenticator-type webhook \
    --concierge-authenticator-name ` + authenticator + ` \
    --concierge-mode ImpersonationProxy \
    > ` + file
}
