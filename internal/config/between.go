package config

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// between returns the sink, and the faults between settings. A rule is left out where one of
// its settings is faulty itself.
func (v *variables) between(o Options) (string, []Fault) {
	sink, faults := v.sinkFaults(o.Sink)
	faults = append(faults, v.mentionFaults()...)
	faults = append(faults, v.templateFaults(o.CheckTemplate)...)
	faults = append(v.natsFaults(), faults...)
	faults = append(faults, v.NATS.TLS.faults()...)
	faults = append(faults, v.Redis.TLS.faults()...)
	return sink, append(faults, v.limitFaults()...)
}

func (v *variables) limitFaults() []Fault {
	if v.GlobalLimit.faulty || v.Guarantees.faulty {
		return nil
	}
	if err := limits.CheckGuarantees(v.GlobalLimit.got, v.Guarantees.got); err != nil {
		return []Fault{v.Guarantees.fault("cannot be kept: %v; expected no more slots than %s=%s has", err, v.GlobalLimit.name, v.GlobalLimit.text)}
	}
	if v.CategoryLimit.faulty || v.Limits.faulty || v.ShadowLimits.faulty {
		return nil
	}
	if _, err := limits.NewRuleset(v.config().Limits.Plan(), nil, v.ShadowLimits.got, nil); err != nil {
		return []Fault{v.ShadowLimits.fault("cannot be tried out: %v", err)}
	}
	return nil
}

func (v *variables) natsFaults() []Fault {
	var faults []Fault
	nats := &v.NATS

	if wait, slack, redis := &nats.AckWait, &v.Slack.Timeout, &v.Redis.Timeout; !wait.faulty && !slack.faulty && !redis.faulty &&
		wait.got-slack.got <= redis.got { // a sum could overflow
		faults = append(faults, wait.fault("not longer than %s=%s and %s=%s together; expected more, or a redelivery overtakes a delivery",
			slack.name, slack.text, redis.name, redis.text))
	}

	if nats.Password.given && !nats.User.given {
		faults = append(faults, nats.User.fault("not set, but %s is; expected the user of that password", nats.Password.name))
	}
	var logins []string
	for _, login := range []*setting{&nats.CredsFile.setting, &nats.User.setting, &nats.Token.setting} {
		if login.given {
			logins = append(logins, login.name)
		}
		if login.given && len(logins) > 1 {
			faults = append(faults, login.fault("set together with %s; expected one way to log in", logins[0]))
		}
	}

	return append(faults, v.placeFaults()...)
}

// placeFaults finds streams and subjects that are not kept apart.
func (v *variables) placeFaults() []Fault {
	var faults []Fault
	streams := []*value[string, streamName]{&v.NATS.Stream, &v.Room.Stream, &v.DLQ.Stream}
	for i, stream := range streams {
		same := slices.IndexFunc(streams[:i], func(other *value[string, streamName]) bool {
			return !other.faulty && !stream.faulty && other.got == stream.got
		})
		if same >= 0 {
			faults = append(faults, stream.fault("the same stream as %s; expected another one", streams[same].name))
		}
	}

	events := &v.NATS.Subject
	if events.faulty {
		return faults
	}
	for _, other := range []*value[string, subject]{&v.DLQ.Subject, &v.NATS.Inbox} {
		switch room := events.got + roomSuffix; {
		case other.faulty:
		case overlap(other.got, events.got):
			faults = append(faults, other.fault("overlaps %s=%q; expected a subject outside of it", events.name, events.got))
		case overlap(other.got, room):
			faults = append(faults, other.fault("overlaps %q, where events wait; expected a subject outside of it", room))
		}
	}
	if letters, inbox := &v.DLQ.Subject, &v.NATS.Inbox; !letters.faulty && !inbox.faulty && overlap(inbox.got, letters.got) {
		faults = append(faults, inbox.fault("overlaps %s=%q; expected a subject outside of it", letters.name, letters.got))
	}
	return faults
}

// roomSuffix makes the subject below which events wait from the one on which they come.
const roomSuffix = "-room"

// overlap reports whether one of two subjects is the other one or below it.
func overlap(a, b string) bool { return isUnder(a, b) || isUnder(b, a) }

// isUnder reports whether a subject is prefix or something below it.
func isUnder(subject, prefix string) bool {
	return subject == prefix || strings.HasPrefix(subject, prefix+".")
}

func (v *variables) sinkFaults(fallback string) (string, []Fault) {
	var faults []Fault
	token, webhook, channel := &v.Slack.Token, &v.Slack.WebhookURL, &v.Slack.Channel
	if token.given && webhook.given {
		faults = append(faults, webhook.fault("set together with %s; expected one of them", token.name))
	}
	if token.given && !channel.given {
		faults = append(faults, channel.fault("not set, but %s is; expected a default channel such as #alerts", token.name))
	}
	if v.Sink.faulty {
		return "", faults
	}

	sink := v.Sink.got
	switch slack := token.given || webhook.given; {
	case slack && sink == "":
		sink = SinkSlack
	case sink == "" && fallback != "":
		sink = fallback
	case sink == "":
		faults = append(faults, v.Sink.fault("nowhere to send to; expected %s with %s, or %s, or %s=%s to print instead",
			token.name, channel.name, webhook.name, v.Sink.name, SinkConsole))
	case sink == SinkSlack && !slack:
		faults = append(faults, v.Sink.fault("without a way to post; expected %s with %s, or %s",
			token.name, channel.name, webhook.name))
	}
	return sink, faults
}

// mentionFaults finds handles that nobody can look up: a webhook only posts.
func (v *variables) mentionFaults() []Fault {
	mentions, token, webhook := &v.Slack.Mentions, &v.Slack.Token, &v.Slack.WebhookURL
	if token.given || !webhook.given {
		return nil
	}
	var faults []Fault
	for _, entry := range mentions.got.Entries() {
		for _, name := range entry.Value {
			if isGroupHandle(name) {
				faults = append(faults, mentions.fault("a webhook cannot look up the handle %q of %s; expected the ID of the group, such as @S0123456789, or %s instead of %s",
					"@"+name, entry.Pattern, token.name, webhook.name))
			}
		}
	}
	return faults
}

func (v *variables) templateFaults(check func(string) error) []Fault {
	template := &v.Slack.TemplateFile
	if check == nil || !template.given || template.faulty {
		return nil
	}
	if err := check(template.got.text); err != nil {
		return template.faults(err)
	}
	return nil
}

func (v *tlsVariables) faults() []Fault {
	certificate, key := &v.CertFile, &v.KeyFile
	switch {
	case certificate.given && !key.given:
		return []Fault{key.fault("not set, but %s is; expected the key of that certificate", certificate.name)}
	case key.given && !certificate.given:
		return []Fault{certificate.fault("not set, but %s is; expected the certificate of that key", key.name)}
	case !certificate.given || certificate.faulty || key.faulty:
		return nil
	}
	if _, err := tls.LoadX509KeyPair(certificate.got, key.got); err != nil {
		return []Fault{certificate.fault("does not go with %s=%q: %v; expected a certificate and its key in PEM",
			key.name, shown(key.got, false), err)}
	}
	return nil
}

// warnings names settings that are allowed but have no effect.
func (v *variables) warnings(c Config) []string {
	warnings := unreachable("NOTIFIER_CATEGORY_LIMIT", c.Limits.Category, c.Limits.Global)
	for _, rule := range c.Limits.Rules {
		warnings = append(warnings, unreachable(fmt.Sprintf("NOTIFIER_LIMITS: %s", rule.Pattern), rule.Limits, c.Limits.Global)...)
	}
	if c.Slack.WebhookURL.IsSet() && c.Slack.Channel != "" {
		warnings = append(warnings, "NOTIFIER_SLACK_CHANNEL has no effect: a webhook posts to its own channel")
	}
	if c.Slack.WebhookURL.IsSet() && len(c.Slack.Routes.Entries()) > 0 {
		warnings = append(warnings, "NOTIFIER_SLACK_ROUTES has no effect: a webhook posts to its own channel")
	}
	if age := c.Stream.MaxAge; age > 0 && age <= c.Event.MaxAge {
		warnings = append(warnings, fmt.Sprintf("%s=%s is not above %s=%s: the stream loses an event before it can be counted as expired",
			v.Stream.MaxAge.name, v.Stream.MaxAge.text, v.Event.MaxAge.name, v.Event.MaxAge.text))
	}
	if rate, burst := &v.Slack.Rate, &v.Slack.Burst; burst.given && c.Slack.Rate == (limits.Limit{}) {
		warnings = append(warnings, fmt.Sprintf("%s has no effect: %s is %s", burst.name, rate.name, rate.text))
	}
	return warnings
}

// unreachable warns of limits that are above a global one: those that can never be full, since
// the global limit lets through less in the same window. A window is covered by so many global
// windows, rounded up, and each of these lets through no more than the global count.
func unreachable(name string, own, global limits.Limits) []string {
	var warnings []string
	for _, limit := range own {
		for _, whole := range global {
			if limit.Algorithm != limits.SlidingLog || whole.Algorithm != limits.SlidingLog {
				continue // others count in another way
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
