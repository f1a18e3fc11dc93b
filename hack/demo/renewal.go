package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"
)

// renewCertificate replaces the certificate while a watch runs through the proxy.
func (d *demo) renewCertificate(ctx context.Context) error {
	d.title("Renew the certificate while pinny is at work")
	if _, err := d.shell.run(ctx, "kubectl create configmap one"); err != nil {
		return err
	}
	d.say(
		"In a second terminal, pinny watches ConfigMaps. This command goes on until it is stopped: its connection stays " +
			"open. It prints a line for the " +
			"ConfigMap that is there, and one for each that comes.",
	)
	watch, err := d.shell.start(ctx, "kubectl get configmaps --watch --kubeconfig "+userKubeconfig)
	if err != nil {
		return err
	}
	defer watch.stop()
	// The first line comes from a list. The second one proves that the watch is open.
	if err := watch.waitFor(ctx, "one ", 30*time.Second); err != nil {
		return fmt.Errorf("watching before the renewal: %w", err)
	}
	if _, err := d.shell.run(ctx, "kubectl create configmap two-before-renewal"); err != nil {
		return err
	}
	if err := watch.waitFor(ctx, "two-before-renewal ", 30*time.Second); err != nil {
		return fmt.Errorf("watching before the renewal: %w", err)
	}

	renewed, err := d.pki.issue("renewed")
	if err != nil {
		return err
	}
	d.say(
		"Your PKI issues the next certificate, with a new key. It replaces the old one in the Secret, and that is all " +
			"there is to do.",
	)
	if _, err := d.shell.run(ctx, storeCommand("renewed")); err != nil {
		return err
	}
	took, err := d.waitPresented(ctx, renewed)
	if err != nil {
		return err
	}
	d.checked("new connections get the new certificate, %d ms after that command had ended", took.Milliseconds())

	d.say("And the watch? It should see what happens after the renewal, and print a line for the third ConfigMap.")
	if _, err := d.shell.run(ctx, "kubectl create configmap three-after-renewal"); err != nil {
		return err
	}
	if err := watch.waitFor(ctx, "three-after-renewal ", 30*time.Second); err != nil {
		return fmt.Errorf("watching after the renewal: %w", err)
	}
	if !watch.running() {
		return fmt.Errorf("the watch ended")
	}
	d.checked("the watch went on, on the connection it had")
	d.say(
		"New commands connect anew. They trust the new certificate, because it comes from the same CA: pinny's kubeconfig " +
			"stays as it is.",
	)
	if _, err := d.shell.run(ctx, "kubectl get configmap three-after-renewal --kubeconfig "+userKubeconfig); err != nil {
		return err
	}
	return nil
}

// waitPresented waits until the proxy presents want, and returns how long that took.
func (d *demo) waitPresented(ctx context.Context, want *x509.Certificate) (time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := d.pki.presents(ctx, d.endpoint(), want)
		if err == nil {
			return time.Since(began), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for the new certificate: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
