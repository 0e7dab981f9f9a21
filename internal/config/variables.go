package config

import (
	"log/slog"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// variables has every setting as envconfig reads it. The name of a variable is NOTIFIER and the names
// of the fields that lead to it. No field has an envconfig tag: envconfig would also read such a
// variable without the prefix. The tags are default, secret, and desc for the table of settings. Single
// quotes in desc enclose literal text.
type variables struct {
	NATS struct {
		URL       value[Secret, hidden[natsServers]] `default:"nats://127.0.0.1:4222" secret:"true" desc:"NATS servers, comma separated: 'nats://', 'tls://', 'ws://' or 'wss://'"`
		CredsFile value[string, file]                `split_words:"true" desc:"credentials file of the NATS user"`
		User      value[string, anyText]             `desc:"name of the NATS user"`
		Password  value[Secret, hidden[anyText]]     `secret:"true" desc:"password of the NATS user"`
		Token     value[Secret, hidden[anyText]]     `secret:"true" desc:"NATS token, instead of a user"`
		TLS       tlsVariables
		Stream    value[string, streamName]      `default:"NOTIFICATIONS" desc:"stream that producers publish to"`
		Subject   value[string, subject]         `default:"notify" desc:"subject prefix of events: 'notify' stands for 'notify' and 'notify.>'"`
		Consumer  value[string, streamName]      `default:"notifier" desc:"durable pull consumer of the stream, shared by all workers"`
		Provision value[bool, boolean]           `default:"true" desc:"create absent streams and consumers; existing ones are never altered"`
		AckWait   value[time.Duration, positive] `split_words:"true" default:"30s" desc:"time that a worker has for an event before another one gets it; longer than the timeouts of Slack and Redis together"`
		Replicas  value[int, replicas]           `default:"auto" desc:"replicas of every stream, bucket and consumer that is created: '1', '3', '5', or 'auto' (three in a cluster of three servers or more, else one)"`
		Inbox     value[string, subject]         `default:"_INBOX_notifier" desc:"subject prefix of replies; each NATS user has one of its own"`
	}
	Stream struct {
		MaxBytes value[int64, size]           `split_words:"true" default:"1GiB" desc:"size of the stream when it is created: bytes, or '512MiB', '2GB'; '0': unbounded. A full stream refuses its producers"`
		MaxAge   value[time.Duration, maxAge] `split_words:"true" default:"7d" desc:"how long the stream keeps an event that no worker takes, set when it is created; '0': for ever"`
	}
	Room struct {
		Stream value[string, streamName] `default:"NOTIFICATIONS_ROOM" desc:"stream of the workers for events that wait, on 'notify-room.>'"`
		Max    value[int, waiting]       `default:"10000" desc:"events of one first-level category that may wait at once, up to 1000000; further ones are dropped"`
	}
	DLQ struct {
		Stream        value[string, streamName]    `default:"NOTIFICATIONS_DLQ" desc:"stream of dead letters"`
		Subject       value[string, subject]       `default:"notify-dlq" desc:"subject prefix of dead letters: 'notify-dlq.<reason>.<first level of the category>'"`
		MaxPerSubject value[int, letters]          `split_words:"true" default:"1000" desc:"dead letters that are kept of one reason and first-level category, up to 1000000; newer ones push out the oldest"`
		MaxBytes      value[int64, size]           `split_words:"true" default:"256MiB" desc:"size of the stream of dead letters when it is created; '0': unbounded"`
		MaxAge        value[time.Duration, maxAge] `split_words:"true" default:"30d" desc:"how long a dead letter is kept, set when the stream is created; '0': for ever"`
	}
	Redis struct {
		URL      value[Secret, hidden[redisURL]] `default:"redis://127.0.0.1:6379/0" secret:"true" desc:"'redis://' or 'rediss://'; Cluster: further nodes as '?addr=host:port'; Sentinel: '?master_name=…&addr=…'"`
		Password value[Secret, hidden[anyText]]  `secret:"true" desc:"password of the Redis user"`
		TLS      tlsVariables
		Prefix   value[string, redisPrefix]       `default:"notifier" desc:"prefix and hash tag of every key"`
		Timeout  value[time.Duration, positive]   `default:"1s" desc:"timeout of one call to Redis"`
		Failure  value[string, failurePolicy]     `default:"local" desc:"while Redis is unavailable: 'hold' (wait, events stay in JetStream), or after the grace 'local' (each worker applies its share of every limit), 'open' (send all), 'closed' (drop all)"`
		Grace    value[time.Duration, noNegative] `default:"5s" desc:"how long Redis may be unavailable before 'local', 'open' or 'closed' acts"`

		Scripting value[string, scripting] `default:"eval" desc:"how the scripts run: 'eval', or 'function' (Redis 7 or later, where nobody else may load functions)"`
	}
	GlobalLimit   value[limits.Limits, limitList]       `split_words:"true" default:"100/30m" desc:"limit for all events together: '<count>/<window>', several joined with '+', or 'none'"`
	CategoryLimit value[limits.Limits, limitList]       `split_words:"true" default:"10/30m" desc:"limit for each first-level category"`
	Limits        value[[]limits.Rule, rules]           `desc:"limits of single categories: 'path=limit,…'; '*' stands for one level of a path"`
	Guarantees    value[[]limits.Guarantee, guarantees] `desc:"slots of each global window that belong to a path: 'path=slots,…'; nobody else can take them"`
	LimitsBucket  value[string, bucketName]             `split_words:"true" default:"notifier-limits" desc:"JetStream key-value bucket of the limits that 'notifier limits' changes while workers run"`
	ShadowLimits  value[[]limits.Override, overrides]   `split_words:"true" desc:"limits to try out: 'path=limit,…', also 'global' and 'category'; evaluated and counted, without any effect"`
	DenyCacheTTL  value[time.Duration, noNegative]      `split_words:"true" default:"1s" desc:"how long a worker may remember that a limit is full, without asking Redis; '0' turns that off"`
	Shadow        value[bool, boolean]                  `default:"false" desc:"decide and count, but send everything"`

	PairTTL         value[time.Duration, window]               `split_words:"true" default:"7d" desc:"how long a firing event can be resolved"`
	SummaryInterval value[time.Duration, summaryInterval]      `split_words:"true" default:"30m" desc:"shortest time between two digests of dropped events in a channel; '0': no digests"`
	Delay           value[event.Scopes[time.Duration], delays] `desc:"longest time that denied events wait for a slot instead of being dropped: 'path=duration,…'; 'path.>' stands for all paths below, '>' for everything"`

	Sink  value[string, sink] `desc:"'slack', or 'console', which prints one line for each message; not set: 'slack' if a Slack token or webhook is set, else an error"`
	Slack struct {
		Token        value[Secret, hidden[slackToken]]      `secret:"true" desc:"bot token, for 'chat.postMessage'"`
		Channel      value[string, channel]                 `desc:"channel of categories without a route; required with a token"`
		Routes       value[event.Table[string], routes]     `desc:"channels of single categories: 'path=channel,…'; a route applies to all paths below"`
		Mentions     value[event.Table[[]string], mentions] `desc:"who is mentioned: 'path=@here+@oncall,…', with '@here', '@channel', '@everyone', IDs of users and groups, handles of groups; the most specific path counts, and applies to all paths below"`
		TemplateFile value[template, templateFile]          `split_words:"true" desc:"file of a Go template for messages; not set: the default template"`
		WebhookURL   value[Secret, hidden[webURL]]          `split_words:"true" secret:"true" desc:"URL of an incoming webhook, instead of a token"`
		API          struct {
			URL value[string, apiURL] `desc:"URL of a proxy or a test server; not set: Slack itself"`
		}
		Timeout value[time.Duration, positive] `default:"10s" desc:"timeout of one request to Slack"`
		Rate    value[limits.Limit, rate]      `default:"1/s" desc:"messages to one channel, by all workers together: '<count>/<window>', or 'none'"`
		Burst   value[int, burst]              `default:"5" desc:"messages that a quiet channel takes at once, up to 100"`
	}
	Event struct {
		MaxAge   value[time.Duration, noNegative] `split_words:"true" default:"1h" desc:"an event stored longer ago than this is 'expired', not sent; '0': no limit"`
		MaxBytes value[int, bodySize]             `split_words:"true" default:"262144" desc:"a larger body is 'too_large'; up to 67108864"`
	}
	Concurrency value[int, concurrency] `default:"8" desc:"largest number of concurrent posts to one channel, up to 1024"`
	HTTP        struct {
		Addr value[string, listenAddress] `default:":8080" desc:"address of '/metrics', '/healthz' and '/readyz' ('dev': '127.0.0.1:8080'); 'off' turns them off"`
	}
	Log struct {
		Level  value[slog.Level, logLevel] `default:"info" desc:"'debug', 'info', 'warn' or 'error'"`
		Format value[string, logFormat]    `default:"json" desc:"'json', or 'text' for people"`
	}
	ShutdownTimeout value[time.Duration, positive] `split_words:"true" default:"25s" desc:"time for the deliveries under way after SIGTERM; then they are given back to JetStream"`
	Metrics         struct {
		MaxCategories value[int, categories] `split_words:"true" default:"50" desc:"categories with a label value of their own in the metrics, up to 10000: those named in settings, then the busiest; all others are 'other'"`
	}
}

type tlsVariables struct {
	CAFile   value[string, authorities] `split_words:"true" desc:"certificate authorities to trust, PEM"`
	CertFile value[string, file]        `split_words:"true" desc:"client certificate, PEM"`
	KeyFile  value[string, file]        `split_words:"true" desc:"key of the client certificate, PEM"`
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
func (v *variables) origins() map[string]limits.Origin {
	of := func(s setting) limits.Origin {
		if s.given {
			return limits.FromEnvironment
		}
		return limits.FromDefault
	}
	origins := map[string]limits.Origin{
		limits.LevelGlobal: of(v.GlobalLimit.setting), limits.LevelCategory: of(v.CategoryLimit.setting),
	}
	for _, rule := range v.Limits.got {
		origins[rule.Pattern.String()] = limits.FromEnvironment
	}
	return origins
}

func (v tlsVariables) files() TLS {
	return TLS{CAFile: v.CAFile.got, CertFile: v.CertFile.got, KeyFile: v.KeyFile.got}
}
