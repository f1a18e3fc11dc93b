package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/scenario"
)

// renewCertificate replaces the certificate while a watch runs through the proxy.
func (d *demo) renewCertificate(ctx context.Context) error {
	d.Title("Renew the certificate while pinny is at work")
	if _, err := d.shell.Run(ctx, "kubectl create configmap one"); err != nil {
		return err
	}
	d.Say(
		"In a second terminal, pinny watches ConfigMaps. This command goes on until it is stopped: its connection stays " +
			"open. It prints a line for the " +
			"ConfigMap that is there, and one for each that comes.",
	)
	watch, err := d.shell.Start(ctx, "kubectl get configmaps --watch --kubeconfig "+userKubeconfig)
	if err != nil {
		return err
	}
	defer watch.Stop()
	// The first line is from a list. The second line proves that the watch is open.
	if err := watch.WaitFor(ctx, "one ", 30*time.Second); err != nil {
		return fmt.Errorf("watching before the renewal: %w", err)
	}
	if _, err := d.shell.Run(ctx, "kubectl create configmap two-before-renewal"); err != nil {
		return err
	}
	if err := watch.WaitFor(ctx, "two-before-renewal ", 30*time.Second); err != nil {
		return fmt.Errorf("watching before the renewal: %w", err)
	}

	renewed, err := d.pki.Issue("renewed", "localhost")
	if err != nil {
		return err
	}
	d.Say(
		"Your PKI issues the next certificate, with a new key. It replaces the old one in the Secret, and that is all " +
			"there is to do.",
	)
	if _, err := d.shell.Run(ctx, scenario.Store(servingSecret, "renewed")); err != nil {
		return err
	}
	took, err := d.pki.WaitPresented(ctx, d.endpoint(), renewed, 30*time.Second)
	if err != nil {
		return err
	}
	d.Checked("new connections get the new certificate, %d ms after that command had ended", took.Milliseconds())

	d.Say("And the watch? It should see what happens after the renewal, and print a line for the third ConfigMap.")
	if _, err := d.shell.Run(ctx, "kubectl create configmap three-after-renewal"); err != nil {
		return err
	}
	if err := watch.WaitFor(ctx, "three-after-renewal ", 30*time.Second); err != nil {
		return fmt.Errorf("watching after the renewal: %w", err)
	}
	if !watch.Running() {
		return fmt.Errorf("the watch ended")
	}
	d.Checked("the watch went on, on the connection it had")
	d.Say(
		"New commands open new connections. They trust the new certificate, because it comes from the same CA: pinny's kubeconfig " +
			"stays as it is.",
	)
	if _, err := d.shell.Run(ctx, "kubectl get configmap three-after-renewal --kubeconfig "+userKubeconfig); err != nil {
		return err
	}
	return nil
}
