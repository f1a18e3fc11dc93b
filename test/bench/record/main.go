// Command record runs real clients against a local control plane and writes down what they ask for: kubectl, a
// controller made with controller-runtime and, if it is there, helm. The load "mixture" of bench replays it.
//
//	record [-helm PROGRAM] FILE
//
// It is run by `make bench-record`.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/bench/recording"
)

const timeout = 5 * time.Minute

func main() {
	helm := flag.String("helm", "", "helm's program; without it, no calls of helm are recorded")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: record [-helm PROGRAM] FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := record(ctx, *helm, flag.Arg(0))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func record(ctx context.Context, helm, path string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cluster, err := devcluster.Start(ctx, devcluster.Options{Log: os.Stderr})
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := cluster.Stop(); err == nil {
			err = stopErr
		}
	}()
	admin, err := kubernetes.NewForConfig(cluster.AdminConfig())
	if err != nil {
		return err
	}
	there := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: recording.Namespace}}
	if _, err := admin.CoreV1().Namespaces().Create(ctx, there, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the namespace: %w", err)
	}
	recorder, err := newRecorder(ctx, cluster.AdminConfig())
	if err != nil {
		return err
	}
	defer recorder.close()
	if err := runClients(ctx, cluster, recorder, helm); err != nil {
		return err
	}
	var content bytes.Buffer
	if err := recording.Write(&content, recorder.requests()); err != nil {
		return err
	}
	return os.WriteFile(path, content.Bytes(), 0o644)
}

// runClients lets the controller run while a human uses kubectl and helm.
func runClients(ctx context.Context, cluster *devcluster.Cluster, recorder *recorder, helm string) error {
	dir, err := os.MkdirTemp("", "pinniped-record-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	controller, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- runController(controller, recorder.config("controller")) }()

	kubectl, err := cluster.Kubectl()
	if err != nil {
		return err
	}
	programs := []struct {
		name, path string
		calls      []string
	}{{"kubectl", kubectl, kubectlCalls()}}
	if helm != "" {
		if helm, err = filepath.Abs(helm); err != nil {
			return err
		}
		programs = append(programs, struct {
			name, path string
			calls      []string
		}{"helm", helm, helmCalls()})
	}
	if err := writeFiles(dir); err != nil {
		return err
	}
	for _, program := range programs {
		kubeconfig := filepath.Join(dir, program.name+".kubeconfig")
		if err := cluster.WriteKubeconfig(kubeconfig, recorder.config(program.name)); err != nil {
			return err
		}
		for _, call := range program.calls {
			if err := runProgram(ctx, dir, kubeconfig, program.path, strings.Fields(call)); err != nil {
				return err
			}
		}
	}
	stop()
	return <-ended
}

func runProgram(ctx context.Context, dir, kubeconfig, program string, args []string) error {
	fmt.Fprintf(os.Stderr, "• %s %s\n", filepath.Base(program), strings.Join(args, " "))
	command := exec.CommandContext(ctx, program, args...)
	command.Dir = dir
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "KUBECONFIG=" + kubeconfig}
	var errOut bytes.Buffer
	command.Stdout, command.Stderr = io.Discard, &errOut
	if err := command.Run(); err != nil {
		return fmt.Errorf("running %s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, errOut.String())
	}
	return nil
}

// kubectlCalls are what a user types in a morning. The first one finds an empty discovery cache.
func kubectlCalls() []string {
	calls := []string{
		"get namespaces",
		"apply -f app.yaml",
		"get all",
		"get configmaps",
		"get configmap app -o yaml",
		"describe deployment app",
		"get pods -A",
		"get pods -l app=app",
		"get events",
		"apply -f changed.yaml",
		"diff -f changed.yaml",
		"get deployment app -o wide",
		"scale deployment app --replicas=3",
		"set image deployment/app app=registry.example/app:3",
		"rollout history deployment app",
		"rollout restart deployment app",
		"label configmap app tier=web",
		"annotate configmap app note=seen",
		"auth can-i create deployments",
		"auth can-i --list",
		"explain deployment.spec.strategy",
		"create configmap another --from-literal=key=value",
		"get configmap another -o jsonpath={.data.key}",
		"patch configmap another --type=merge -p {\"data\":{\"key\":\"2\"}}",
		"delete configmap another --wait=false",
		"get services",
		"api-resources",
		"delete -f changed.yaml --wait=false",
	}
	for i, call := range calls {
		calls[i] = "--namespace=" + recording.Namespace + " " + call
	}
	return calls
}

func helmCalls() []string {
	calls := []string{
		"install web chart",
		"list",
		"status web",
		"upgrade web chart --set replicas=2",
		"history web",
		"get values web",
		"rollback web 1",
		"uninstall web",
	}
	for i := range calls {
		calls[i] += " --namespace=" + recording.Namespace
	}
	return calls
}
