package config

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// checkBetween finds the faults between settings. It skips a rule if any of its settings is already invalid.
func (l *loader) checkBetween(o Options) {
	l.checkAckWait()
	l.checkLogin()
	l.checkStreams()
	l.checkSubjects()
	l.checkSink(o.Sink)
	l.checkMentions()
	l.checkTemplate(o.CheckTemplate)
	l.checkPair(&l.NATS.TLS.CertFile, &l.NATS.TLS.KeyFile)
	l.checkPair(&l.Redis.TLS.CertFile, &l.Redis.TLS.KeyFile)
	l.checkPair(&l.Ingest.TLS.CertFile, &l.Ingest.TLS.KeyFile)
	l.checkClientAuthorities()
	l.checkLimits()
}

func (l *loader) checkAckWait() {
	wait, slack, redis := l.setting(&l.NATS.AckWait), l.setting(&l.Slack.Timeout), l.setting(&l.Redis.Timeout)
	mentions := l.setting(&l.Slack.Mentions)
	if wait.faulty || slack.faulty || redis.faulty || mentions.faulty {
		return
	}
	if longest := l.SendTimeout(); l.NATS.AckWait <= longest {
		also := ""
		if mentions.given {
			also = " and " + mentions.Variable
		}
		l.add(wait, "not longer than one post may take, %v by %s=%s, %s=%s%s; expected more, or a redelivery overtakes a delivery",
			longest, slack.Variable, slack.text, redis.Variable, redis.text, also)
	}
}

func (l *loader) checkLogin() {
	user, password := l.setting(&l.NATS.User), l.setting(&l.NATS.Password)
	if password.given && !user.given {
		l.add(user, "not set, but %s is; expected the user of that password", password.Variable)
	}
	first := ""
	for _, login := range []*setting{l.setting(&l.NATS.CredsFile), user, l.setting(&l.NATS.Token)} {
		switch {
		case !login.given:
		case first == "":
			first = login.Variable
		default:
			l.add(login, "set together with %s; expected one way to log in", first)
		}
	}
}

// checkStreams reports two settings that name one stream.
func (l *loader) checkStreams() {
	streams := []*setting{l.setting(&l.NATS.Stream), l.setting(&l.Room.Stream), l.setting(&l.DLQ.Stream), l.setting(&l.Journal.Stream)}
	for i, stream := range streams {
		same := slices.IndexFunc(streams[:i], func(other *setting) bool { return !other.faulty && !stream.faulty && other.text == stream.text })
		if same >= 0 {
			l.add(stream, "the same stream as %s; expected another one", streams[same].Variable)
		}
	}
}

// checkSubjects finds subjects that overlap.
func (l *loader) checkSubjects() {
	events, letters, inbox := l.setting(&l.NATS.Subject), l.setting(&l.DLQ.Subject), l.setting(&l.NATS.Inbox)
	if events.faulty {
		return
	}
	room, journal := events.text+"-room", events.text+"-journal"
	for _, other := range []*setting{letters, inbox} {
		switch {
		case other.faulty:
		case overlap(other.text, events.text):
			l.add(other, "overlaps %s=%q; expected a subject outside of it", events.Variable, events.text)
		case overlap(other.text, room):
			l.add(other, "overlaps %q, where events wait; expected a subject outside of it", room)
		case overlap(other.text, journal):
			l.add(other, "overlaps %q, where the journal is; expected a subject outside of it", journal)
		}
	}
	if !letters.faulty && !inbox.faulty && overlap(inbox.text, letters.text) {
		l.add(inbox, "overlaps %s=%q; expected a subject outside of it", letters.Variable, letters.text)
	}
}

// overlap reports whether one subject equals or contains another.
func overlap(a, b string) bool {
	return strings.HasPrefix(a+".", b+".") || strings.HasPrefix(b+".", a+".")
}

// checkSink chooses the sink if it is not set, and finds missing settings of the sink.
func (l *loader) checkSink(fallback string) {
	token, webhook, channel := l.setting(&l.Slack.Token), l.setting(&l.Slack.WebhookURL), l.setting(&l.Slack.Channel)
	if token.given && webhook.given {
		l.add(webhook, "set together with %s; expected one of them", token.Variable)
	}
	if token.given && !channel.given {
		l.add(channel, "not set, but %s is; expected a default channel such as #alerts", token.Variable)
	}
	sink := l.setting(&l.Sink)
	if sink.faulty {
		return
	}
	switch slack := token.given || webhook.given; {
	case slack && l.Sink == "":
		l.Sink = SinkSlack
	case l.Sink == "" && fallback != "":
		l.Sink = fallback
	case l.Sink == "":
		l.add(sink, "nowhere to send to; expected %s with %s, or %s, or %s=%s to print instead",
			token.Variable, channel.Variable, webhook.Variable, sink.Variable, SinkConsole)
	case l.Sink == SinkSlack && !slack:
		l.add(sink, "without a way to post; expected %s with %s, or %s", token.Variable, channel.Variable, webhook.Variable)
	}
}

// checkMentions finds handles of groups together with a webhook. A webhook cannot look up a handle.
func (l *loader) checkMentions() {
	mentions, token, webhook := l.setting(&l.Slack.Mentions), l.setting(&l.Slack.Token), l.setting(&l.Slack.WebhookURL)
	if token.given || !webhook.given {
		return
	}
	for _, entry := range l.Slack.Mentions.Entries() {
		for _, name := range entry.Value {
			if isGroupHandle(name) {
				l.add(mentions, "a webhook cannot look up the handle %q of %s; expected the ID of the group, such as @S0123456789, or %s instead of %s",
					"@"+name, entry.Pattern, token.Variable, webhook.Variable)
			}
		}
	}
}

func (l *loader) checkTemplate(check func(string) error) {
	template := l.setting(&l.Slack.Template)
	if check == nil || !template.given || template.faulty {
		return
	}
	if err := check(l.Slack.Template); err != nil {
		l.addError(template, err)
	}
}

// checkPair finds a certificate without a key, a key without a certificate, and two files that do not match.
func (l *loader) checkPair(certFile, keyFile *string) {
	certificate, key := l.setting(certFile), l.setting(keyFile)
	switch {
	case certificate.given && !key.given:
		l.add(key, "not set, but %s is; expected the key of that certificate", certificate.Variable)
	case key.given && !certificate.given:
		l.add(certificate, "not set, but %s is; expected the certificate of that key", key.Variable)
	case certificate.given && !certificate.faulty && !key.faulty:
		if _, err := tls.LoadX509KeyPair(*certFile, *keyFile); err != nil {
			l.add(certificate, "does not go with %s=%q: %v; expected a certificate and its key in PEM",
				key.Variable, shown(*keyFile, false), err)
		}
	}
}

func (l *loader) checkClientAuthorities() {
	certificate, authorities := l.setting(&l.Ingest.TLS.CertFile), l.setting(&l.Ingest.TLS.ClientCAFile)
	if authorities.given && !certificate.given {
		l.add(certificate, "not set, but %s is; expected a certificate, since clients show theirs over TLS alone", authorities.Variable)
	}
}

func (l *loader) checkLimits() {
	global, guarantees, shadow := l.setting(&l.Limits.Global), l.setting(&l.Limits.Guarantees), l.setting(&l.Limits.ShadowLimits)
	if global.faulty || guarantees.faulty {
		return
	}
	if err := limits.CheckGuarantees(l.Limits.Global, l.Limits.Guarantees); err != nil {
		l.add(guarantees, "cannot be kept: %v; expected no more slots than %s=%s has", err, global.Variable, global.text)
		return
	}
	if l.setting(&l.Limits.Category).faulty || l.setting(&l.Limits.Rules).faulty || shadow.faulty {
		return
	}
	if _, err := limits.NewRuleset(l.Limits.Plan(), nil, l.Limits.ShadowLimits, nil); err != nil {
		l.add(shadow, "cannot be tried out: %v", err)
	}
}

// warnings returns warnings of valid settings without an effect or with an unwanted one.
func (l *loader) warnings() []string {
	warnings := unreachable("NOTIFIER_CATEGORY_LIMIT", l.Limits.Category, l.Limits.Global)
	for _, rule := range l.Limits.Rules {
		warnings = append(warnings, unreachable(fmt.Sprintf("NOTIFIER_LIMITS: %s", rule.Pattern), rule.Limits, l.Limits.Global)...)
	}
	if l.Slack.WebhookURL.IsSet() && l.Slack.Channel != "" {
		warnings = append(warnings, "NOTIFIER_SLACK_CHANNEL has no effect: a webhook posts to its own channel")
	}
	if l.Slack.WebhookURL.IsSet() && len(l.Slack.Routes.Entries()) > 0 {
		warnings = append(warnings, "NOTIFIER_SLACK_ROUTES has no effect: a webhook posts to its own channel")
	}
	if age := l.Stream.MaxAge; age > 0 && age <= l.Event.MaxAge {
		warnings = append(warnings, fmt.Sprintf("NOTIFIER_STREAM_MAX_AGE=%s is not above NOTIFIER_EVENT_MAX_AGE=%s: "+
			"the stream loses an event before it can be counted as expired", l.setting(&l.Stream.MaxAge).text, l.setting(&l.Event.MaxAge).text))
	}
	if l.setting(&l.Slack.Burst).given && l.Slack.Rate == (limits.Limit{}) {
		warnings = append(warnings, "NOTIFIER_SLACK_BURST has no effect: NOTIFIER_SLACK_RATE is "+l.setting(&l.Slack.Rate).text)
	}
	return warnings
}

// unreachable warns of limits that can never be full, since a global limit admits less in an equal window. The number of global windows
// that cover one window of the limit is rounded up. Each global window admits no more than the global count.
func unreachable(name string, own, global limits.Limits) []string {
	var warnings []string
	for _, limit := range own {
		for _, whole := range global {
			if !limit.Description().Exact || !whole.Description().Exact {
				continue // only exact limits are comparable
			}
			windows := int64((limit.Window + whole.Window - 1) / whole.Window)
			if limit.Count > whole.Count*windows {
				warnings = append(warnings, fmt.Sprintf("%s=%s is above NOTIFIER_GLOBAL_LIMIT=%s, which is always full first", name, limit, whole))
				break
			}
		}
	}
	return warnings
}
