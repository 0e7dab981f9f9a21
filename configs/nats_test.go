package configs_test

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func startNATS(t *testing.T) *servertest.NATS {
	t.Helper()
	return servertest.StartSampleNATS(t, "nats/notifier.conf")
}

// signIn connects a user with its own inbox prefix.
func signIn(t *testing.T, running *servertest.NATS, user string) *nats.Conn {
	t.Helper()
	return servertest.Connect(t, running.URL, nats.UserInfo(user, "secret"), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // deniedLast reads LastError
}

// mayPublish and maySubscribe have the subjects of each user. The operator may publish anything. Nobody has the rights of "".
var (
	mayPublish = map[string]string{
		"producer": "notify notify.payments",
		"ingest":   "notify.payments",
		"limits": "$KV.notifier-limits.global $JS.API.STREAM.INFO.KV_notifier-limits " +
			"$JS.API.CONSUMER.CREATE.KV_notifier-limits.x.$KV.notifier-limits.> $JS.API.STREAM.INFO.NOTIFICATIONS_JOURNAL " +
			"$JS.API.CONSUMER.CREATE.NOTIFICATIONS_JOURNAL.x $JS.API.CONSUMER.CREATE.NOTIFICATIONS_JOURNAL.x.notify-journal.payments " +
			"$JS.API.CONSUMER.MSG.NEXT.NOTIFICATIONS_JOURNAL.x $SRV.STATUS.notifier " +
			"$JS.API.STREAM.INFO.NOTIFICATIONS $JS.API.STREAM.INFO.NOTIFICATIONS_ROOM $JS.API.STREAM.INFO.NOTIFICATIONS_DLQ " +
			"$JS.API.CONSUMER.INFO.NOTIFICATIONS.notifier $JS.API.CONSUMER.INFO.NOTIFICATIONS_ROOM.notifier-room " +
			"$JS.API.STREAM.MSG.GET.NOTIFICATIONS $JS.API.STREAM.MSG.GET.NOTIFICATIONS_ROOM $JS.API.STREAM.MSG.GET.NOTIFICATIONS_DLQ",
		"replayer": "notify-room.replay.payments $JS.API.STREAM.INFO.NOTIFICATIONS_DLQ $JS.API.STREAM.MSG.GET.NOTIFICATIONS_DLQ " +
			"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_DLQ",
		"notifier": "notify-room.part.payments notify-room.replay.payments notify-dlq.bad_json._ $SRV.PING.notifier $SRV.STATUS.notifier " +
			"$JS.API.CONSUMER.INFO.NOTIFICATIONS.notifier $JS.API.CONSUMER.INFO.NOTIFICATIONS_ROOM.notifier-room " +
			"$JS.API.STREAM.INFO.NOTIFICATIONS $JS.API.STREAM.INFO.NOTIFICATIONS_ROOM $JS.API.STREAM.INFO.NOTIFICATIONS_DLQ " +
			"$KV.notifier-limits.global $JS.API.STREAM.INFO.KV_notifier-limits " +
			"$JS.API.CONSUMER.CREATE.KV_notifier-limits.x.$KV.notifier-limits.> " +
			"$JS.API.STREAM.MSG.GET.NOTIFICATIONS $JS.API.STREAM.MSG.GET.NOTIFICATIONS_ROOM $JS.API.STREAM.PURGE.NOTIFICATIONS_DLQ " +
			"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS $JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_ROOM " +
			"notify-journal.payments $JS.API.STREAM.INFO.NOTIFICATIONS_JOURNAL $JS.API.STREAM.MSG.GET.NOTIFICATIONS_DLQ " +
			"$JS.API.CONSUMER.CREATE.NOTIFICATIONS_JOURNAL.x $JS.API.CONSUMER.CREATE.NOTIFICATIONS_JOURNAL.x.notify-journal.payments " +
			"$JS.API.CONSUMER.MSG.NEXT.NOTIFICATIONS_JOURNAL.x " +
			"$JS.API.CONSUMER.MSG.NEXT.NOTIFICATIONS.notifier $JS.ACK.NOTIFICATIONS.notifier.1",
		"": "notify-room $KV.other.global _INBOX_notifier.forged _INBOX_operator.forged other " +
			"$JS.API.STREAM.PURGE.NOTIFICATIONS $JS.API.STREAM.PURGE.NOTIFICATIONS_ROOM $JS.API.STREAM.PURGE.KV_notifier-limits " +
			"$JS.API.STREAM.DELETE.NOTIFICATIONS $JS.API.STREAM.DELETE.NOTIFICATIONS_DLQ $JS.API.STREAM.DELETE.KV_notifier-limits " +
			"$JS.API.STREAM.DELETE.NOTIFICATIONS_JOURNAL $JS.API.STREAM.PURGE.NOTIFICATIONS_JOURNAL " +
			"$JS.API.STREAM.CREATE.KV_notifier-limits $JS.API.CONSUMER.CREATE.NOTIFICATIONS.another " +
			"$JS.API.CONSUMER.CREATE.NOTIFICATIONS_ROOM.another $JS.API.CONSUMER.DELETE.NOTIFICATIONS.notifier",
	}
	maySubscribe = map[string]string{
		"operator": "> notify.> notify-room.> notify-dlq.> $KV.notifier-limits.> $SRV.> _INBOX.> _INBOX_operator.>",
		"notifier": "_INBOX_notifier.> $SRV.>", "limits": "_INBOX_limits.>", "replayer": "_INBOX_replayer.>", "ingest": "_INBOX_ingest.>", "producer": "_INBOX_producer.>",
	}
)

// deniedLast reports whether the last error is this denial. The server sends the denial before it answers the flush.
func deniedLast(t *testing.T, c *nats.Conn, what string) bool {
	t.Helper()
	testkit.NoError(t, c.FlushTimeout(testkit.Patience))
	return c.LastError() != nil && strings.Contains(c.LastError().Error(), what)
}

// Each user has the rights of the tables and no others. There are no streams, so an allowed request changes nothing.
func TestNATSRights(t *testing.T) {
	names := "NOTIFICATIONS notify notifier NOTIFICATIONS_ROOM NOTIFICATIONS_DLQ notify-dlq notifier-limits NOTIFICATIONS_JOURNAL"
	variables := "NATS_STREAM NATS_SUBJECT NATS_CONSUMER ROOM_STREAM DLQ_STREAM DLQ_SUBJECT LIMITS_BUCKET JOURNAL_STREAM"
	for i, variable := range strings.Fields(variables) {
		if !slices.ContainsFunc(config.Table(), func(s config.Setting) bool {
			return s.Variable == "NOTIFIER_"+variable && s.Default == strings.Fields(names)[i]
		}) {
			t.Errorf("the sample is for the names %s, and NOTIFIER_%s has another default", names, variable)
		}
	}
	running := startNATS(t)
	if connection, err := nats.Connect(running.URL); err == nil {
		connection.Close()
		t.Error("got a connection without a user, want none")
	}
	for _, user := range servertest.SampleUsers {
		c := signIn(t, running, user)
		for _, subject := range subjects(mayPublish) {
			testkit.NoError(t, c.Publish(subject, nil))
			allowed := user == "operator" || slices.Contains(strings.Fields(mayPublish[user]), subject)
			testkit.Equal(t, deniedLast(t, c, fmt.Sprintf("Publish to %q", subject)), !allowed, "%s is denied to publish on %s", user, subject)
		}
		for _, subject := range subjects(maySubscribe) {
			subscription := testkit.Must(c.SubscribeSync(subject))(t)
			allowed := slices.Contains(strings.Fields(maySubscribe[user]), subject)
			testkit.Equal(t, deniedLast(t, c, fmt.Sprintf("Subscription to %q", subject)), !allowed, "%s is denied to subscribe to %s", user, subject)
			_ = subscription.Unsubscribe()
		}
	}
}

// subjects returns the subjects of all users.
func subjects(rights map[string]string) []string {
	return strings.Fields(strings.Join(slices.Collect(maps.Values(rights)), " "))
}

// Workers and the operator count the workers. The user limits reads their reports, and producers do not. The operator receives no
// answer to another user.
func TestNATSCounting(t *testing.T) {
	running := startNATS(t)
	operator := signIn(t, running, "operator")
	everything := testkit.Must(operator.SubscribeSync(">"))(t)
	workers := []*nats.Conn{signIn(t, running, "notifier"), signIn(t, running, "notifier")}
	report := func(instance string) any { return instance }
	for _, worker := range workers {
		instance := testkit.Must(fleet.Join(worker, fleet.Options{Deployment: "notifier", Version: "1.0.0", Report: report, Logger: slog.New(slog.DiscardHandler)}))(t)
		t.Cleanup(instance.Leave)
		testkit.NoError(t, worker.FlushTimeout(testkit.Patience))
	}
	for _, asker := range append(workers, operator) {
		replies := testkit.Must(asker.SubscribeSync(asker.NewRespInbox()))(t)
		testkit.NoError(t, asker.PublishRequest("$SRV.PING.notifier", replies.Subject, nil))
		for range workers {
			testkit.Must(replies.NextMsg(testkit.Patience))(t)
		}
		testkit.NoError(t, asker.LastError())
	}
	for asker, want := range map[*nats.Conn]int{workers[0]: 2, operator: 2, signIn(t, running, "limits"): 2, signIn(t, running, "producer"): 0} {
		reports := testkit.Must(fleet.Ask(t.Context(), asker, "notifier", want))(t)
		testkit.Equal(t, len(reports), want, "reports")
	}
	for heard := 0; ; heard++ {
		m, err := everything.NextMsg(100 * time.Millisecond) // messages to others would have arrived
		if err != nil && heard > 0 {
			break
		}
		if err != nil || strings.HasPrefix(m.Subject, "_INBOX_") && !strings.HasPrefix(m.Subject, "_INBOX_operator.") {
			t.Fatalf("the operator receives %v, %v, want no inbox of another user", m, err)
		}
	}
}
