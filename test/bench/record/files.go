package main

import (
	"os"
	"path/filepath"
	"strings"
)

// app is a small application, as users apply it.
const app = `apiVersion: v1
kind: ConfigMap
metadata:
  name: app
  labels: {app: app, watched: "true"}
data:
  settings: |
    listen: 0.0.0.0:8080
    level: info
---
apiVersion: v1
kind: Service
metadata:
  name: app
  labels: {app: app}
spec:
  selector: {app: app}
  ports:
  - {name: http, port: 80, targetPort: 8080}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: app
  labels: {app: app}
spec:
  replicas: 2
  selector:
    matchLabels: {app: app}
  template:
    metadata:
      labels: {app: app}
    spec:
      containers:
      - name: app
        image: registry.example/app:1
        ports:
        - {name: http, containerPort: 8080}
        resources:
          requests: {cpu: 100m, memory: 64Mi}
        readinessProbe:
          httpGet: {path: /readyz, port: http}
`

const chartHead = `apiVersion: v2
name: web
version: 1.0.0
appVersion: "1"
`

const chartObjects = `apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
data:
  settings: {{ .Values.settings | quote }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .Release.Name }}
spec:
  selector: {app: {{ .Release.Name }}}
  ports:
  - {name: http, port: 80}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
spec:
  replicas: {{ .Values.replicas }}
  selector:
    matchLabels: {app: {{ .Release.Name }}}
  template:
    metadata:
      labels: {app: {{ .Release.Name }}}
    spec:
      containers:
      - {name: web, image: registry.example/web:1}
`

// writeFiles writes what kubectl applies, and a chart for helm.
func writeFiles(dir string) error {
	for name, content := range map[string]string{
		"app.yaml":                     app,
		"changed.yaml":                 strings.NewReplacer("level: info", "level: debug", "app:1", "app:2").Replace(app),
		"chart/Chart.yaml":             chartHead,
		"chart/values.yaml":            "replicas: 1\nsettings: none\n",
		"chart/templates/objects.yaml": chartObjects,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}
