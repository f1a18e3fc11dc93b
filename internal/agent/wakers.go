package agent

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// wakers wake the controllers when something outside the manager's cache changed: an object that namedwatch follows, or leadership.
// All are added before the first is used.
type wakers struct{ list []chan event.GenericEvent }

// add returns a function for namedwatch that wakes a controller, without ever blocking, and the channel in which the controller sees it.
// Which object changed is not told; one event stands for all that nobody has seen yet.
func (w *wakers) add() (changed func(types.NamespacedName), woken <-chan event.GenericEvent) {
	channel := make(chan event.GenericEvent, 1)
	w.list = append(w.list, channel)
	return func(types.NamespacedName) { notify(channel) }, channel
}

// wakeAll wakes every controller.
func (w *wakers) wakeAll() {
	for _, channel := range w.list {
		notify(channel)
	}
}

func notify(channel chan event.GenericEvent) {
	select {
	case channel <- event.GenericEvent{Object: &configv1alpha1.CredentialIssuer{}}:
	default:
	}
}
