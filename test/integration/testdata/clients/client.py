"""Asks the cluster who we are, lists, watches and runs a command in a pod, as any program with the official client does."""
import sys

from kubernetes import client, config, watch
from kubernetes.stream import stream

config.load_kube_config()
review = client.ApiClient().call_api(
    "/apis/authentication.k8s.io/v1/selfsubjectreviews", "POST",
    body={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    header_params={"Content-Type": "application/json"},
    auth_settings=["BearerToken"], response_type="object", _return_http_data_only=True)
print("user:", review["status"]["userInfo"]["username"])

core = client.CoreV1Api()
print("pods:", " ".join(pod.metadata.name for pod in core.list_namespaced_pod("default").items))

watcher = watch.Watch()
for event in watcher.stream(core.list_namespaced_pod, "default", timeout_seconds=30):
    print("watched:", event["type"], event["object"].metadata.name)
    watcher.stop()

out = stream(core.connect_get_namespaced_pod_exec, sys.argv[1], "default", container="main",
             command=["echo", "from", "python"], stdout=True, stderr=True, stdin=False, tty=False)
print("exec:", out.strip())
