package config

import (
	"log/slog"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// variables is every setting as envconfig reads it. A variable's name is NOTIFIER and the names
// on the way to its field; no field has an envconfig tag, since such a tag would also read the
// variable without the prefix. The tags: default; desc, for the table of settings, where single
// quotes enclose what is to be typed as it stands; secret.
type variables struct {
	NATS struct {
		URL       value[Secret, hidden[natsServers]] `default:"nats://127.0.0.1:4222" secret:"true" desc:"servers, comma separated: 'nats://', 'tls://', 'ws://' or 'wss://'"`
		CredsFile value[string, file]                `split_words:"true" desc:"credentials file of a NATS user"`
		User      value[string, anyText]             `desc:"user name"`
		Password  value[Secret, hidden[anyText]]     `secret:"true" desc:"password of the user"`
		Token     value[Secret, hidden[anyText]]     `secret:"true" desc:"token, instead of a user"`
		TLS       tlsVariables
		Stream    value[string, streamName]      `default:"NOTIFICATIONS" desc:"the stream"`
		Subject   value[string, subject]         `default:"notify" desc:"subject prefix: events come on 'notify' and 'notify.>'"`
		Consumer  value[string, streamName]      `default:"notifier" desc:"the durable pull consumer, shared by all instances"`
		Provision value[bool, boolean]           `default:"true" desc:"create streams and consumers where absent; never alters what exists"`
		AckWait   value[time.Duration, positive] `split_words:"true" default:"30s" desc:"how long an instance has for an event before another one gets it; longer than the timeouts of Slack and Redis together"`
		Replicas  value[int, replicas]           `default:"auto" desc:"of every stream, bucket and consumer that is created: '1', '3', '5', or 'auto': three in a cluster of three servers or more, else one"`
		Inbox     value[string, subject]         `default:"_INBOX_notifier" desc:"prefix of the subjects on which replies come; each NATS user has one of its own"`
	}
	Stream struct {
		MaxBytes value[int64, size]           `split_words:"true" default:"1GiB" desc:"bound of the stream, where it is created: bytes, or '512MiB', '2GB'; '0': none. A full stream refuses its producers"`
		MaxAge   value[time.Duration, maxAge] `split_words:"true" default:"7d" desc:"how long the stream keeps an event that no worker takes, where it is created; '0': for ever"`
	}
	Room struct {
		Stream value[string, streamName] `default:"NOTIFICATIONS_ROOM" desc:"stream that belongs to the workers and holds what waits, on 'notify-room.>'"`
		Max    value[int, waiting]       `default:"10000" desc:"events of one first-level category that may wait at once, up to 1000000; more are dropped"`
	}
	DLQ struct {
		Stream        value[string, streamName]    `default:"NOTIFICATIONS_DLQ" desc:"the stream of dead letters"`
		Subject       value[string, subject]       `default:"notify-dlq" desc:"dead letters go to 'notify-dlq.<reason>.<first level of the category>'"`
		MaxPerSubject value[int, letters]          `split_words:"true" default:"1000" desc:"dead letters of one reason and first-level category that are kept, up to 1000000; newer ones push out the oldest"`
		MaxBytes      value[int64, size]           `split_words:"true" default:"256MiB" desc:"bound of the stream of dead letters, where it is created; '0': none"`
		MaxAge        value[time.Duration, maxAge] `split_words:"true" default:"30d" desc:"how long a dead letter is kept, where the stream is created; '0': for ever"`
	}
	Redis struct {
		URL      value[Secret, hidden[redisURL]] `default:"redis://127.0.0.1:6379/0" secret:"true" desc:"'redis://' or 'rediss://'; Cluster: further nodes as '?addr=host:port'; Sentinel: '?master_name=…&addr=…'"`
		Password value[Secret, hidden[anyText]]  `secret:"true" desc:"password"`
		TLS      tlsVariables
		Prefix   value[string, redisPrefix]       `default:"notifier" desc:"prefix and hash tag of every key"`
		Timeout  value[time.Duration, positive]   `default:"1s" desc:"of one call"`
		Failure  value[string, failurePolicy]     `default:"local" desc:"when Redis is away: 'hold' (wait, events stay in JetStream), 'local' (wait for the grace, then limits per instance), 'open' (send all), 'closed' (drop all)"`
		Grace    value[time.Duration, noNegative] `default:"5s" desc:"how long Redis may be away before 'local', 'open' or 'closed' acts"`

		Scripting value[string, scripting] `default:"eval" desc:"how the scripts run: 'eval', or 'function' (Redis 7 or later) on a Redis that nobody else may load functions into"`
	}
	GlobalLimit   value[throttle.Limits, limits]          `split_words:"true" default:"100/30m" desc:"limit for everything together: '<count>/<window>', several joined with '+', or 'none'"`
	CategoryLimit value[throttle.Limits, limits]          `split_words:"true" default:"10/30m" desc:"limit for each first-level category"`
	Limits        value[[]throttle.Rule, rules]           `desc:"limits of single categories: 'path=limit,…', where '*' stands for one level of a path"`
	Guarantees    value[[]throttle.Guarantee, guarantees] `desc:"slots of each global window that belong to a path: 'path=slots,…'; nobody else can take them"`
	LimitsBucket  value[string, bucketName]               `split_words:"true" default:"notifier-limits" desc:"JetStream key-value bucket of limits that are changed while workers run"`
	ShadowLimits  value[[]throttle.Override, overrides]   `split_words:"true" desc:"limits to try out: 'path=limit,…', also 'global' and 'category'; judged and counted, without any effect"`
	DenyCacheTTL  value[time.Duration, noNegative]        `split_words:"true" default:"1s" desc:"how long a full limit may be remembered without asking Redis; '0' turns it off"`
	Shadow        value[bool, boolean]                    `default:"false" desc:"decide and measure, but forward everything"`

	PairTTL         value[time.Duration, window]               `split_words:"true" default:"7d" desc:"how long a firing event can be resolved"`
	SummaryInterval value[time.Duration, summaryInterval]      `split_words:"true" default:"30m" desc:"how often a channel is told, at most, what was dropped; '0': never"`
	Delay           value[event.Scopes[time.Duration], delays] `desc:"denied events that wait for a slot instead of being dropped, and how long at most: 'path=duration,…', where 'path.>' stands for all below a path, '>' for everything"`

	Sink  value[string, sink] `desc:"'slack', or 'console', which prints one line each; not set: 'slack' if a Slack token or webhook is set, else an error"`
	Slack struct {
		Token        value[Secret, hidden[slackToken]]      `secret:"true" desc:"bot token, for 'chat.postMessage'"`
		Channel      value[string, channel]                 `desc:"default channel; needed with a token"`
		Routes       value[event.Table[string], routes]     `desc:"channels of single categories: 'path=channel,…'; a route holds for all below its path"`
		Mentions     value[event.Table[[]string], mentions] `desc:"who is told: 'path=@here+@oncall,…', with '@here', '@channel', '@everyone', IDs of users and groups, handles of groups; the nearest path counts, and holds for all below it"`
		TemplateFile value[template, templateFile]          `split_words:"true" desc:"a Go template for messages; not set: the default one"`
		WebhookURL   value[Secret, hidden[webURL]]          `split_words:"true" secret:"true" desc:"incoming webhook, instead of a token"`
		API          struct {
			URL value[string, apiURL] `desc:"for a proxy or a test server; not set: Slack itself"`
		}
		Timeout value[time.Duration, positive] `default:"10s" desc:"of one request"`
		Rate    value[throttle.Limit, rate]    `default:"1/s" desc:"messages to one channel, by all instances together: '<count>/<window>', or 'none'"`
		Burst   value[int, burst]              `default:"5" desc:"messages that a quiet channel takes at once, up to 100"`
	}
	Event struct {
		MaxAge   value[time.Duration, noNegative] `split_words:"true" default:"1h" desc:"an event stored longer ago than this is 'expired', not sent; '0': no limit"`
		MaxBytes value[int, bodySize]             `split_words:"true" default:"262144" desc:"a larger body is 'too_large'; up to 67108864"`
	}
	Concurrency value[int, concurrency] `default:"8" desc:"posts at once to one channel, up to 1024"`
	HTTP        struct {
		Addr value[string, listenAddress] `default:":8080" desc:"where '/metrics', '/healthz' and '/readyz' are ('dev': '127.0.0.1:8080'); 'off' turns them off"`
	}
	Log struct {
		Level  value[slog.Level, logLevel] `default:"info" desc:"'debug', 'info', 'warn' or 'error'"`
		Format value[string, logFormat]    `default:"json" desc:"'json', or 'text' for people"`
	}
	ShutdownTimeout value[time.Duration, positive] `split_words:"true" default:"25s" desc:"drain within it, then give unfinished events back to JetStream"`
	Metrics         struct {
		MaxCategories value[int, categories] `split_words:"true" default:"50" desc:"categories with a label of their own in the metrics, up to 10000: those named in settings, then the busiest; the rest is 'other'"`
	}
}

type tlsVariables struct {
	CAFile   value[string, authorities] `split_words:"true" desc:"certificate authorities to trust, PEM"`
	CertFile value[string, file]        `split_words:"true" desc:"client certificate, PEM"`
	KeyFile  value[string, file]        `split_words:"true" desc:"its key, PEM"`
}

// config collects the values.
func (v *variables) config() Config {
	address := v.HTTP.Addr.got
	if address == off {
		address = ""
	}
	return Config{
		NATS: NATS{
			URL:       v.NATS.URL.got,
			URLSet:    v.NATS.URL.given,
			CredsFile: v.NATS.CredsFile.got,
			User:      v.NATS.User.got,
			Password:  v.NATS.Password.got,
			Token:     v.NATS.Token.got,
			TLS:       v.NATS.TLS.files(),
			Stream:    v.NATS.Stream.got,
			Subject:   v.NATS.Subject.got,
			Consumer:  v.NATS.Consumer.got,
			Provision: v.NATS.Provision.got,
			AckWait:   v.NATS.AckWait.got,
			Replicas:  v.NATS.Replicas.got,
			Inbox:     v.NATS.Inbox.got,
		},
		Stream: Stream{
			MaxBytes: v.Stream.MaxBytes.got,
			MaxAge:   v.Stream.MaxAge.got,
		},
		Room: Room{
			Stream: v.Room.Stream.got,
			Max:    v.Room.Max.got,
		},
		DLQ: DLQ{
			Stream:        v.DLQ.Stream.got,
			Subject:       v.DLQ.Subject.got,
			MaxPerSubject: v.DLQ.MaxPerSubject.got,
			MaxBytes:      v.DLQ.MaxBytes.got,
			MaxAge:        v.DLQ.MaxAge.got,
		},
		Redis: Redis{
			URL:      v.Redis.URL.got,
			URLSet:   v.Redis.URL.given,
			Password: v.Redis.Password.got,
			TLS:      v.Redis.TLS.files(),
			Prefix:   v.Redis.Prefix.got,
			Timeout:  v.Redis.Timeout.got,
			Failure:  v.Redis.Failure.got,
			Grace:    v.Redis.Grace.got,

			Scripting: v.Redis.Scripting.got,
		},
		Limits: Limits{
			Global:       v.GlobalLimit.got,
			Category:     v.CategoryLimit.got,
			Rules:        v.Limits.got,
			Guarantees:   v.Guarantees.got,
			ShadowLimits: v.ShadowLimits.got,
			Bucket:       v.LimitsBucket.got,
			origins:      v.origins(),
			DenyCacheTTL: v.DenyCacheTTL.got,
			Shadow:       v.Shadow.got,
		},
		Slack: Slack{
			Token:      v.Slack.Token.got,
			Channel:    v.Slack.Channel.got,
			Routes:     v.Slack.Routes.got,
			WebhookURL: v.Slack.WebhookURL.got,
			APIURL:     v.Slack.API.URL.got,
			Timeout:    v.Slack.Timeout.got,

			Rate:     v.Slack.Rate.got,
			Burst:    v.Slack.Burst.got,
			Mentions: v.Slack.Mentions.got,

			TemplateFile: v.Slack.TemplateFile.got.file,
			Template:     v.Slack.TemplateFile.got.text,
		},
		SummaryInterval: v.SummaryInterval.got,
		PairTTL:         v.PairTTL.got,
		Delay:           Delay{Longest: v.Delay.got},
		Event: Event{
			MaxAge:   v.Event.MaxAge.got,
			MaxBytes: v.Event.MaxBytes.got,
		},
		Concurrency:          v.Concurrency.got,
		HTTP:                 HTTP{Addr: address, AddrSet: v.HTTP.Addr.given},
		Log:                  Log{Level: v.Log.Level.got, Format: v.Log.Format.got},
		ShutdownTimeout:      v.ShutdownTimeout.got,
		MetricsMaxCategories: v.Metrics.MaxCategories.got,
	}
}

// origins tells where each rule comes from.
func (v *variables) origins() map[string]throttle.Origin {
	of := func(s setting) throttle.Origin {
		if s.given {
			return throttle.FromEnvironment
		}
		return throttle.FromDefault
	}
	origins := map[string]throttle.Origin{
		throttle.LevelGlobal: of(v.GlobalLimit.setting), throttle.LevelCategory: of(v.CategoryLimit.setting),
	}
	for _, rule := range v.Limits.got {
		origins[rule.Pattern.String()] = throttle.FromEnvironment
	}
	return origins
}

func (v tlsVariables) files() TLS {
	return TLS{CAFile: v.CAFile.got, CertFile: v.CertFile.got, KeyFile: v.KeyFile.got}
}
