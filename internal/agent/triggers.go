package agent

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// triggers wake the controllers when something outside the manager's cache has changed: an object that
// internal/informer follows, or leadership. All of them are added before the first one fires.
type triggers struct{ list []chan event.GenericEvent }

// add makes a trigger for one controller: changed fires it and never blocks; the controller waits on woken. A
// controller does not learn which object has changed. Several changes may arrive as one event.
func (t *triggers) add() (changed func(types.NamespacedName), woken <-chan event.GenericEvent) {
	channel := make(chan event.GenericEvent, 1)
	t.list = append(t.list, channel)
	return func(types.NamespacedName) { notify(channel) }, channel
}

// fireAll wakes every controller.
func (t *triggers) fireAll() {
	for _, channel := range t.list {
		notify(channel)
	}
}

func notify(channel chan event.GenericEvent) {
	select {
	case channel <- event.GenericEvent{Object: &configv1alpha1.CredentialIssuer{}}:
	default:
	}
}
