package main

import (
	"context"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/scenario"
)

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
