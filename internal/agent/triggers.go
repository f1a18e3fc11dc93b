package agent

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// triggers wake the controllers when an object that internal/informer watches, or the leadership, has changed. Add all
// of them before the first one fires.
type triggers struct{ list []chan event.GenericEvent }

// add adds a trigger for one controller, which waits on woken. changed fires it and never blocks. The event does not
// say which object has changed, and several changes may be one event.
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
