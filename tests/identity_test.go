package tests

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// teamUsers are two users with the right to publish events of one category each.
const teamUsers = `
		{ user: payments, password: secret, permissions: { publish: "notify.payments.>", subscribe: "_INBOX.>" } }
		{ user: security, password: secret, permissions: { publish: "notify.security.>", subscribe: "_INBOX.>" } }`

// twoTeams has a user with all rights, and in another account two teams.
const twoTeams = `
	accounts {
		WORKERS { jetstream: enabled, exports: [{ service: "notify.>" }], users: [{ user: worker, password: secret }] }
		PRODUCERS { imports: [{ service: { account: WORKERS, subject: "notify.>" } }], users: [` + teamUsers + `] }
	}`

// sharedAccount has the same users in one account.
const sharedAccount = `
	accounts { ALL { jetstream: enabled, users: [{ user: worker, password: secret }` + teamUsers + `] } }`

// team publishes as one of the users.
type team struct {
	t       testing.TB
	js      jetstream.JetStream
	subject string
	stored  uint64 // sequence of the latest event
}

func (d *deployment) team(name string) *team {
	d.t.Helper()
	return &team{d.t, servertest.JetStream(d.t, d.nats.URL, nats.UserInfo(name, "secret")), subjectPrefix + "." + name + ".alerts", 0}
}

// publish stores an event; the headers are name, value, …
func (p *team) publish(body string, headers ...string) {
	p.t.Helper()
	stored := testkit.Must(p.js.PublishMsg(p.t.Context(), message(p.subject, body, headers...)))(p.t)
	testkit.Require(p.t, !stored.Duplicate, "JetStream takes %s for a duplicate: the test is about IDs behind it", body)
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

// claim publishes an ID of another team in every form, before the other team does. JetStream itself drops a second message with the same
// Nats-Msg-Id, so a claim of such an ID does not use that header.
func (p *team) claim(id string, asMessageID bool) {
	p.t.Helper()
	const title = "claim"
	p.publish(fmt.Sprintf(`{"id": %q, "title": %q}`, id, title))
	if asMessageID {
		p.publish(title, "Nats-Msg-Id", id)
	}
	own := []string{"Notifier-Written-By", "notifier", "Notifier-Id", id, "Notifier-Derived", "true", "Notifier-Subject", subjectPrefix + ".security.alerts", "Notifier-Waits-For", "replay"}
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

// publishClaimed publishes an event of each kind with an ID that another team has claimed, and returns the titles of the posts.
func (p *team) publishClaimed(round int) map[string]int {
	p.t.Helper()
	titles := make(map[string]int)
	of := func(title string, parts ...string) string {
		title = fmt.Sprintf("%s %d", title, round)
		for _, part := range parts {
			titles[title+part] = 1
		}
		return title
	}
	titled := func(title string) string { return of(title, "") }
	group := func(title string) string { return of(title, " f1", " f2") }
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

// claimAll claims the IDs of some rounds of publishClaimed, and a range of sequences: the sequence of an event without an ID is its ID,
// which a producer can guess. claimAll returns the end of that range.
func (p *team) claimAll(rounds int) (upto uint64) {
	p.t.Helper()
	for round := range rounds {
		for _, id := range []string{"incident-%d", "/siem/1%d", "/siem/2%d", "group-%d"} {
			p.claim(fmt.Sprintf(id, round), true)
		}
		p.claim(fmt.Sprint("security-msg-", round), false)
		p.claim(fmt.Sprint("security-group-", round), false)
	}
	// All claims together store fewer messages than this distance.
	from := p.stored + uint64(500*rounds)
	upto = from + uint64(20*rounds)
	for place := from; place < upto; place++ {
		p.claim(fmt.Sprintf("%s:%d", streamName, place), true)
	}
	for p.stored+1 < from {
		p.publish("until the place is near")
	}
	return upto
}

// TestIdentityBelongsToACategory has one team claim the IDs of another team. The other team's events are posted all the same.
func TestIdentityBelongsToACategory(t *testing.T) {
	t.Parallel()
	d, settings := deploySmall(t, twoTeams)
	w := d.startReady("worker", unlimited(settings...)...)
	payments, security := d.team("payments"), d.team("security")
	_, err := payments.js.Publish(t.Context(), security.subject, nil)
	testkit.Require(t, err != nil, "a team may publish events of another one")

	rounds := hostile.Times(t, 1, 1)
	claimed := payments.claimAll(rounds)
	d.awaitEmpty()
	titles := make(map[string]int)
	for round := range rounds {
		maps.Copy(titles, security.publishClaimed(round))
	}
	testkit.Require(t, security.stored < claimed, "the last event is message %d, and only those below %d are claimed", security.stored, claimed)
	ofSecurity := func() map[string]int {
		posted := make(map[string]int)
		for _, post := range d.slack.Accepted() {
			if post.Origin("category") == "security.alerts" {
				posted[strings.TrimPrefix(post.Text, "[INFO] ")]++
			}
		}
		return posted
	}
	awaitNumber(t, len(titles), "events posted of the other team", func() (int, error) { return len(ofSecurity()), nil })
	d.awaitEmpty()
	security.publish(`{"id": "incident-0", "title": "again"}`) // within a category an ID is what it was
	w.alone().awaitEvents(1, "outcome", "duplicate", "category", "security.alerts")
	testkit.EqualMaps(t, ofSecurity(), titles, "posts")
}
