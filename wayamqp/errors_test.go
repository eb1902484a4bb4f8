package wayamqp

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestRefusedVirtualHostSaysWhatToDo(t *testing.T) {
	for reason, want := range map[string]string{
		"NOT_ALLOWED - vhost shop not found":                                                           "create the virtual host",
		"NOT_ALLOWED - access to vhost 'shop' refused for user 'app'":                                  "give the user permissions",
		"NOT_ALLOWED - access to vhost 'shop' refused for user 'app': connection limit (5) is reached": "is reached",
	} {
		if got := said(&amqp.Error{Code: amqp.NotAllowed, Server: true, Reason: reason}).Error(); !strings.Contains(got, want) || want == "is reached" && !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}
