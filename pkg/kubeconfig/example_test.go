package kubeconfig_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

func Example() {
	admin := clientcmdapi.NewConfig()
	admin.Clusters["prod"] = &clientcmdapi.Cluster{Server: "https://kube.example.com"}
	admin.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "never copied"}
	admin.Contexts["prod"] = &clientcmdapi.Context{Cluster: "prod", AuthInfo: "admin"}
	admin.CurrentContext = "prod"

	source, err := kubeconfig.Select(admin, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	config, err := kubeconfig.Build(kubeconfig.Input{
		Source: source,
		Suffix: "-pinniped",
		Exec:   kubeconfig.Exec{Command: "pinniped", Static: &kubeconfig.Static{TokenEnv: "TOKEN"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := kubeconfig.Write(os.Stdout, config); err != nil {
		fmt.Println(err)
	}
	// Output:
	// apiVersion: v1
	// clusters:
	// - cluster:
	//     server: https://kube.example.com
	//   name: prod-pinniped
	// contexts:
	// - context:
	//     cluster: prod-pinniped
	//     user: admin-pinniped
	//   name: prod-pinniped
	// current-context: prod-pinniped
	// kind: Config
	// users:
	// - name: admin-pinniped
	//   user:
	//     exec:
	//       apiVersion: client.authentication.k8s.io/v1beta1
	//       args:
	//       - login
	//       - static
	//       - --token-env=TOKEN
	//       command: pinniped
	//       env: []
	//       provideClusterInfo: true
}

const userKubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: prod # behind the proxy
  cluster:
    server: https://proxy.example.com
    certificate-authority-data: %[1]s
users:
- name: ann
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: pinniped
      args: [login, static, --concierge-endpoint, "https://proxy.example.com", --concierge-ca-bundle-data, %[1]s]
contexts: [{name: prod, context: {cluster: prod, user: ann}}]
current-context: prod
`

func newBundle(name string) ([]byte, error) {
	ca, err := certs.NewCA(name, time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), 24*time.Hour)
	if err != nil {
		return nil, err
	}
	return ca.CertPEM(), nil
}

func ExampleRotate() {
	before, err := newBundle("the old CA")
	if err != nil {
		fmt.Println(err)
		return
	}
	after, err := newBundle("the new CA")
	if err != nil {
		fmt.Println(err)
		return
	}
	content := fmt.Sprintf(userKubeconfig, base64.StdEncoding.EncodeToString(before))
	rotation, err := kubeconfig.Rotate([]byte(content), kubeconfig.Target{
		Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com"},
		CABundle: after,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, entry := range rotation.Entries {
		fmt.Printf("%s %q: %s\n", entry.Kind, entry.Name, entry.Outcome)
	}
	fmt.Println(string(rotation.Content) == fmt.Sprintf(userKubeconfig, base64.StdEncoding.EncodeToString(after)))
	// Output:
	// cluster "prod": rotated
	// user "ann": rotated
	// true
}

func ExampleTrusts() {
	bundle, err := newBundle("the CA")
	if err != nil {
		fmt.Println(err)
		return
	}
	config, err := clientcmd.Load([]byte(fmt.Sprintf(userKubeconfig, base64.StdEncoding.EncodeToString(bundle))))
	if err != nil {
		fmt.Println(err)
		return
	}
	endpoint := kubeconfig.Endpoint{URL: "https://proxy.example.com:443", Names: []string{"203.0.113.7"}}
	for _, place := range kubeconfig.Trusts(config, endpoint) {
		fmt.Println(place.Where, "verifies", place.Host, "with the CA:", bytes.Equal(place.CABundle, bundle))
	}
	// Output:
	// cluster "prod" verifies proxy.example.com with the CA: true
	// user "ann" verifies proxy.example.com with the CA: true
}
