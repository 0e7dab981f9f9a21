package config

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/certificate"
	"github.com/seed-4578ace9/notifier/internal/event"
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
	if template := l.of(&l.config.Slack.Template); o.CheckTemplate != nil && template.given && !template.faulty {
		if err := o.CheckTemplate(l.config.Slack.Template); err != nil {
			l.addError(template, err)
		}
	}
	l.checkPair(&l.config.NATS.TLS.CertFile, &l.config.NATS.TLS.KeyFile)
	l.checkPair(&l.config.Redis.TLS.CertFile, &l.config.Redis.TLS.KeyFile)
	l.checkPair(&l.config.Ingest.TLS.CertFile, &l.config.Ingest.TLS.KeyFile)
	l.checkFlap()
	l.checkAddresses()
	l.checkNeeds(l.of(&l.config.Ingest.TLS.ClientCAFile), l.of(&l.config.Ingest.TLS.CertFile),
		"expected a certificate, since clients show theirs over TLS alone")
	l.checkLimits()
}

// checkNeeds finds a setting that is set without another one. The remedy ends the fault of the other one.
func (l *loader) checkNeeds(s, needed *setting, remedy string) {
	if s.given && !needed.given {
		l.add(needed, "not set, but %s is; %s", s.Variable, remedy)
	}
}

func (l *loader) checkAckWait() {
	wait, slack, redis := l.of(&l.config.NATS.AckWait), l.of(&l.config.Slack.Timeout), l.of(&l.config.Redis.Timeout)
	mentions := l.of(&l.config.Slack.Mentions)
	if wait.faulty || slack.faulty || redis.faulty || mentions.faulty {
		return
	}
	if longest := l.config.SendTimeout(); l.config.NATS.AckWait <= longest {
		also := ""
		if mentions.given {
			also = " and " + mentions.Variable
		}
		l.add(wait, "not longer than one post may take, %v by %s=%s, %s=%s%s; expected more, or a redelivery overtakes a delivery",
			longest, slack.Variable, slack.text, redis.Variable, redis.text, also)
	}
}

// checkFlap finds a window for flapping in which pairs are forgotten.
func (l *loader) checkFlap() {
	flap, kept := l.of(&l.config.Flap), l.of(&l.config.PairTTL)
	if !flap.faulty && !kept.faulty && l.config.Flap.Window > l.config.PairTTL {
		l.add(flap, "its window is longer than %s=%s; expected at most that time", kept.Variable, kept.text)
	}
}

// checkAddresses finds a page that cannot listen beside the metrics of its worker.
func (l *loader) checkAddresses() {
	metrics, page := l.of(&l.config.HTTP.Addr), l.of(&l.config.Page.Addr)
	if page.given && sameAddress(l.config.HTTP.Addr, l.config.Page.Addr) {
		l.add(page, "the same address as %s=%s; expected another port", metrics.Variable, metrics.text)
	}
}

// sameAddress reports whether a process can listen on only one of two addresses. Neither the empty address nor port 0 conflicts with another.
func sameAddress(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil && portA == portB && portA != "0" && (hostA == hostB || hostA == "" || hostB == "")
}

func (l *loader) checkLogin() {
	user, password := l.of(&l.config.NATS.User), l.of(&l.config.NATS.Password)
	l.checkNeeds(password, user, "set the user name that goes with that password")
	first := ""
	for _, login := range []*setting{l.of(&l.config.NATS.CredsFile), user, l.of(&l.config.NATS.Token)} {
		switch {
		case !login.given:
		case first == "":
			first = login.Variable
		default:
			l.add(login, "set together with %s; expected one way to log in", first)
		}
	}
}

// checkStreams reports two settings that name one stream. A bucket is a stream too.
func (l *loader) checkStreams() {
	bucket := l.of(&l.config.Limits.Bucket)
	streams := []*setting{
		l.of(&l.config.NATS.Stream), l.of(&l.config.Room.Stream), l.of(&l.config.DLQ.Stream), l.of(&l.config.Journal.Stream), bucket,
	}
	name := func(s *setting) string {
		if s == bucket {
			return "KV_" + s.text
		}
		return s.text
	}
	for i, stream := range streams {
		same := slices.IndexFunc(streams[:i], func(other *setting) bool { return !other.faulty && !stream.faulty && name(other) == name(stream) })
		if same >= 0 {
			l.add(stream, "the same stream as %s; expected another one", streams[same].Variable)
		}
	}
}

func (l *loader) checkSubjects() {
	events, letters, inbox := l.of(&l.config.NATS.Subject), l.of(&l.config.DLQ.Subject), l.of(&l.config.NATS.Inbox)
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
	token, webhook, channel := l.of(&l.config.Slack.Token), l.of(&l.config.Slack.WebhookURL), l.of(&l.config.Slack.Channel)
	if token.given && webhook.given {
		l.add(webhook, "set together with %s; expected one of them", token.Variable)
	}
	l.checkNeeds(token, channel, "expected a default channel such as #alerts")
	sink := l.of(&l.config.Sink)
	if sink.faulty {
		return
	}
	switch slack := token.given || webhook.given; {
	case slack && l.config.Sink == "":
		l.config.Sink = SinkSlack
	case l.config.Sink == "" && fallback != "":
		l.config.Sink = fallback
	case l.config.Sink == "":
		l.add(sink, "nowhere to send to; expected %s with %s, or %s, or %s=%s to print instead",
			token.Variable, channel.Variable, webhook.Variable, sink.Variable, SinkConsole)
	case l.config.Sink == SinkSlack && !slack:
		l.add(sink, "without a way to post; expected %s with %s, or %s", token.Variable, channel.Variable, webhook.Variable)
	}
}

// checkMentions finds handles of groups together with a webhook. A webhook cannot look up a handle.
func (l *loader) checkMentions() {
	mentions, token, webhook := l.of(&l.config.Slack.Mentions), l.of(&l.config.Slack.Token), l.of(&l.config.Slack.WebhookURL)
	if token.given || !webhook.given {
		return
	}
	for _, entry := range l.config.Slack.Mentions.Entries() {
		for _, name := range entry.Value {
			if isGroupHandle(name) {
				l.add(mentions, "a webhook cannot look up the handle %q of %s; expected the ID of the group, such as @S0123456789, or %s instead of %s",
					"@"+name, entry.Pattern, token.Variable, webhook.Variable)
			}
		}
	}
}

// checkPair finds a certificate without a key, a key without a certificate, and two files that do not match. It warns of a certificate that ends
// soon, except of the certificate of ingest: ingest reloads that certificate, and warns of its end itself.
func (l *loader) checkPair(certFile, keyFile *string) {
	cert, key := l.of(certFile), l.of(keyFile)
	l.checkNeeds(cert, key, "expected the key of that certificate")
	l.checkNeeds(key, cert, "expected the certificate of that key")
	if cert.given && key.given && !cert.faulty && !key.faulty {
		pair, err := tls.LoadX509KeyPair(*certFile, *keyFile)
		if err != nil {
			l.add(cert, "does not go with %s=%q: %v; expected a certificate and its key in PEM",
				key.Variable, shown(*keyFile), err)
		} else if end := certificate.EndingSoon(pair); end != nil && certFile != &l.config.Ingest.TLS.CertFile {
			l.ending = append(l.ending, fmt.Sprintf("%s: %v", cert.Variable, end))
		}
	}
}

func (l *loader) checkLimits() {
	global, guarantees, shadow := l.of(&l.config.Limits.Global), l.of(&l.config.Limits.Guarantees), l.of(&l.config.Limits.ShadowLimits)
	if global.faulty || guarantees.faulty {
		return
	}
	if err := limits.CheckGuarantees(l.config.Limits.Global, l.config.Limits.Guarantees); err != nil {
		l.add(guarantees, "cannot be kept with %s: %v", global.Variable, err)
		return
	}
	if l.of(&l.config.Limits.Category).faulty || l.of(&l.config.Limits.Rules).faulty || shadow.faulty {
		return
	}
	if _, err := limits.NewRuleset(l.config.Limits.Plan(), nil, l.config.Limits.ShadowLimits, nil); err != nil {
		l.add(shadow, "cannot be tried out: %v", err)
	}
}

// warnings returns warnings of valid settings without an effect or with an unwanted one.
func (l *loader) warnings() []string {
	warnings := l.ending
	if l.config.Slack.WebhookURL.IsSet() && l.config.Slack.Channel != "" {
		warnings = append(warnings, "NOTIFIER_SLACK_CHANNEL has no effect: a webhook posts to its own channel")
	}
	if l.config.Slack.WebhookURL.IsSet() && len(l.config.Slack.Routes.Entries()) > 0 {
		warnings = append(warnings, "NOTIFIER_SLACK_ROUTES has no effect: a webhook posts to its own channel")
	}
	if !l.config.Slack.Token.IsSet() && l.config.SummaryInterval == 0 {
		const unreported = ": nothing reports folded events, since only messages of a bot token can be updated and NOTIFIER_SUMMARY_INTERVAL=0"
		if slices.ContainsFunc(l.config.Fold.Entries(), func(e event.ScopeEntry[time.Duration]) bool { return e.Value > 0 }) {
			warnings = append(warnings, "NOTIFIER_FOLD"+unreported)
		}
		if l.config.Flap.Count > 0 {
			warnings = append(warnings, "NOTIFIER_FLAP"+unreported)
		}
	}
	if age := l.config.Stream.MaxAge; age > 0 && age <= l.config.Event.MaxAge {
		warnings = append(warnings, fmt.Sprintf("NOTIFIER_STREAM_MAX_AGE=%s is not above NOTIFIER_EVENT_MAX_AGE=%s: "+
			"the stream loses an event before it can be counted as expired", l.of(&l.config.Stream.MaxAge).text, l.of(&l.config.Event.MaxAge).text))
	}
	if l.of(&l.config.Slack.Burst).given && l.config.Slack.Rate == (limits.Limit{}) {
		warnings = append(warnings, "NOTIFIER_SLACK_BURST has no effect: NOTIFIER_SLACK_RATE is "+l.of(&l.config.Slack.Rate).text)
	}
	return append(warnings, proxyWarnings()...)
}

// proxyWarnings returns a warning for each proxy of the environment that net/http ignores, since it is no URL. The value may have a password, so
// no warning quotes it.
func proxyWarnings() (warnings []string) {
	for _, variable := range []string{"HTTPS_PROXY", "HTTP_PROXY"} {
		if os.Getenv(variable) == "" {
			variable = strings.ToLower(variable)
		}
		proxy := os.Getenv(variable)
		_, asURL := url.Parse(proxy)
		_, asHost := url.Parse("http://" + proxy) // a proxy may lack the scheme
		if asURL != nil && asHost != nil {
			warnings = append(warnings, variable+" has no effect, because it is not a URL: requests are sent without a proxy; "+
				"write special characters of a password as %XX")
		}
	}
	return warnings
}
