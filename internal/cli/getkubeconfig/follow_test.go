package getkubeconfig

import (
	"slices"
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
)

// TestFollow checks that the login has the flag if it uses the impersonation proxy.
func TestFollow(t *testing.T) {
	t.Parallel()
	const kube, proxy = "https://kube.example.com", "https://proxy.example.com"
	for _, test := range []struct {
		given    string
		strategy configv1alpha1.CredentialIssuerStrategy
		want     string // argument
		warns    bool
	}{
		{strategy: discoverytest.ProxyStrategy(proxy, nil)},
		{given: kubeconfig.FollowUsual, strategy: discoverytest.ProxyStrategy(proxy, nil), want: "--follow"},
		{given: "/home/ann/my config", strategy: discoverytest.ProxyStrategy(proxy, nil), want: "--follow=/home/ann/my config"},
		{given: kubeconfig.FollowUsual, strategy: discoverytest.TokenStrategy(kube, nil), warns: true},
	} {
		o, out, errOut := options(t, &clientcmdapi.Cluster{Server: kube}, &fake{
			issuers:       []any{discoverytest.Issuer(suffix, "issuer", test.strategy)},
			authenticator: &discovery.Authenticator{Type: discovery.Webhook, Name: "local"},
		})
		o.Follow = test.given
		if err := o.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, args := made(t, out.Bytes())
		at := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--follow") })
		if at < 0 && test.want != "" || at >= 0 && args[at] != test.want {
			t.Errorf("with %q the arguments are %q", test.given, args)
		}
		if strings.Contains(errOut.String(), "will not refresh its trust bundle") != test.warns {
			t.Errorf("with %q it says %s", test.given, errOut)
		}
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Follow = "config" },
		func(o *Options) { o.NoConcierge = true },
		func(o *Options) { o.Login, o.TokenFile, o.StaticTokenEnv = LoginBearer, "/token", "" },
	} {
		o, _, _ := options(t, &clientcmdapi.Cluster{Server: kube}, &fake{})
		o.Follow = kubeconfig.FollowUsual
		change(o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--follow") {
			t.Errorf("want wrong usage, got %v", err)
		}
	}
}
