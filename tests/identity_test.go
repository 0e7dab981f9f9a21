package tests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/hostile"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// twoTeams are users who may publish events of one category each, and one who may do everything.
const twoTeams = `
	accounts { A { jetstream: enabled, users: [
		{ user: worker, password: secret }
		{ user: payments, password: secret, permissions: { publish: "notify.payments.>", subscribe: "_INBOX.>" } }
		{ user: security, password: secret, permissions: { publish: "notify.security.>", subscribe: "_INBOX.>" } }
	] } }`

// team publishes as one of the users.
type team struct {
	t       testing.TB
	js      jetstream.JetStream
	subject string
	stored  uint64 // sequence of the latest event
}

func (d *deployment) team(name string) *team {
	d.t.Helper()
	return &team{d.t, servertest.JetStream(d.t, d.nats.URL, nats.UserInfo(name, "secret"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})), subjectPrefix + "." + name + ".alerts", 0}
}

// publish stores an event; the headers are name, value, …
func (p *team) publish(body string, headers ...string) {
	p.t.Helper()
	m := &nats.Msg{Subject: p.subject, Header: nats.Header{}, Data: []byte(body)}
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	stored, err := p.js.PublishMsg(p.t.Context(), m)
	if err != nil {
		p.t.Fatalf("publish %s: %v", body, err)
	}
	if stored.Duplicate {
		p.t.Fatalf("JetStream takes %s for a duplicate: the test is about IDs behind it", body)
	}
	p.stored = stored.Sequence
}

// alertGroup is a body of two alerts whose fingerprints are f1 and f2.
func alertGroup(id, title string) string {
	member := ""
	if id != "" {
		member = fmt.Sprintf(`"id": %q, `, id)
	}
	return fmt.Sprintf(`{%s"alerts": [{"labels": {"alertname": "%s f1"}, "fingerprint": "f1"}, {"labels": {"alertname": "%[2]s f2"}, "fingerprint": "f2"}]}`,
		member, title)
}

func cloudEvent(source, id, title string) string {
	return fmt.Sprintf(`{"specversion": "1.0", "type": "t", "source": %q, "id": %q, "data": {"title": %q}}`, source, id, title)
}

// claim has a team use an ID in every way in which it can, before the one does whose ID it is. A Nats-Msg-Id is JetStream's
// own: where that of the other team is to be the ID, this team uses another one.
func (p *team) claim(id string, asMessageID bool) {
	p.t.Helper()
	const title = "claim"
	p.publish(fmt.Sprintf(`{"id": %q, "title": %q}`, id, title))
	if asMessageID {
		p.publish(title, "Nats-Msg-Id", id)
	}
	own := []string{"Notifier-Id", id, "Notifier-Derived", "true", "Notifier-Subject", subjectPrefix + ".security.alerts", "Notifier-Waits-For", "replay"}
	p.publish(title, own...)
	p.publish(fmt.Sprintf(`{"id": %q, "title": %q}`, id, title), own...)
	for _, part := range []string{"f1", "f2"} {
		p.publish(title, append(own, "Notifier-Part", part)...)
		p.publish(fmt.Sprintf(`{"id": "%s/%s", "title": %q}`, id, part, title))
		p.publish(fmt.Sprintf(`{"id": "security.alerts %s/%s", "title": %q}`, id, part, title))
	}
	p.publish(fmt.Sprintf(`{"id": "security.alerts %s", "title": %q}`, id, title))
	if source, rest, split := strings.Cut(id, "/"); split && source+rest != "" {
		if source == "" {
			source, rest, _ = strings.Cut(id[1:], "/")
			source = "/" + source
		}
		p.publish(cloudEvent(source, rest, title))
		p.publish(title, "ce-specversion", "1.0", "ce-type", "t", "ce-source", source, "ce-id", rest)
	}
	p.publish(alertGroup(id, title))
}

// publishClaimed publishes events of which another team has claimed the IDs, one of each kind, and returns the titles of their posts.
func (p *team) publishClaimed(round int) map[string]int {
	p.t.Helper()
	titles := make(map[string]int)
	titled := func(title string) string {
		title = fmt.Sprintf("%s %d", title, round)
		titles[title] = 1
		return title
	}
	group := func(title string) string {
		title = fmt.Sprintf("%s %d", title, round)
		titles[title+" f1"], titles[title+" f2"] = 1, 1
		return title
	}
	p.publish(fmt.Sprintf(`{"id": "incident-%d", "title": %q}`, round, titled("id of the body")))
	p.publish(titled("Nats-Msg-Id"), "Nats-Msg-Id", fmt.Sprint("security-msg-", round))
	p.publish(cloudEvent("/siem", fmt.Sprint("1", round), titled("structured CloudEvent")))
	p.publish(titled("binary CloudEvent"), "ce-specversion", "1.0", "ce-type", "t", "ce-source", "/siem", "ce-id", fmt.Sprint("2", round))
	p.publish(titled("no ID"))
	p.publish(alertGroup("", group("group without an ID")))
	p.publish(alertGroup(fmt.Sprint("group-", round), group("group")))
	p.publish(alertGroup("", group("group with Nats-Msg-Id")), "Nats-Msg-Id", fmt.Sprint("security-group-", round))
	return titles
}

// TestIdentityBelongsToACategory has a team use the IDs that another one is going to use.
func TestIdentityBelongsToACategory(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil, servertest.StartRedis(t))
	d.nats = servertest.StartNATSProcess(t, smallStore)
	d.js = servertest.JetStream(t, d.nats.URL, nats.UserInfo("worker", "secret"))
	w := d.startReady("worker", append(slices.Clone(smallBounds), "NATS_URL", d.nats.URL, "NATS_USER", "worker", "NATS_PASSWORD", "secret",
		"GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none")...)
	payments, security := d.team("payments"), d.team("security")
	if _, err := payments.js.Publish(t.Context(), security.subject, nil); err == nil {
		t.Fatal("a team may publish events of another one")
	}

	rounds := hostile.Times(t, 1, 1)
	for round := range rounds {
		for _, id := range []string{"incident-%d", "/siem/1%d", "/siem/2%d", "group-%d"} {
			payments.claim(fmt.Sprintf(id, round), true)
		}
		payments.claim(fmt.Sprint("security-msg-", round), false)
		payments.claim(fmt.Sprint("security-group-", round), false)
	}
	// The events without an ID are known by their places in the stream, which can be guessed. All claims together store fewer
	// messages than lie before those places.
	places, ahead := uint64(20*rounds), uint64(500*rounds)
	from := payments.stored + ahead
	for place := from; place < from+places; place++ {
		payments.claim(fmt.Sprintf("%s:%d", streamName, place), true)
	}
	for payments.stored+1 < from {
		payments.publish("until the place is near")
	}
	d.awaitEmpty()

	titles := make(map[string]int)
	for round := range rounds {
		maps.Copy(titles, security.publishClaimed(round))
	}
	if security.stored >= from+places {
		t.Fatalf("the last event is message %d, and only those below %d are claimed", security.stored, from+places)
	}
	ofSecurity := func() map[string]int {
		posted := make(map[string]int)
		for _, post := range d.slack.Accepted() {
			if origin(post, "category") == "security.alerts" {
				posted[strings.TrimPrefix(post.Text, "[INFO] ")]++
			}
		}
		return posted
	}
	testkit.Await(t, "every event of the other team", func() error {
		if posted := ofSecurity(); len(posted) < len(titles) {
			return fmt.Errorf("posted %v", posted)
		}
		return nil
	})
	d.awaitEmpty()
	security.publish(`{"id": "incident-0", "title": "again"}`) // within a category an ID is what it was
	w.alone().awaitEvents(1, "outcome", "duplicate", "category", "security.alerts")
	if posted := ofSecurity(); fmt.Sprint(posted) != fmt.Sprint(titles) {
		t.Errorf("posted %v, want %v", posted, titles)
	}
}
