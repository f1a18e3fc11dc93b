package kubeconfig_test

import (
	"fmt"
	"os"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

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
