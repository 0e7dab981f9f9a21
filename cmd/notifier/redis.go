package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// A call whose reply was lost is tried again: the scripts count an event once. All tries share one timeout.
const (
	redisRetries  = 2
	shortestRetry = 8 * time.Millisecond
	longestRetry  = 128 * time.Millisecond
)

// newRedisClient makes a client for a single server, Sentinel or Cluster, as the URL says. It does not connect yet.
func newRedisClient(settings config.Redis, logger *slog.Logger) (redis.UniversalClient, error) {
	redis.SetLogger(redisLog{logger})
	o, err := redisOptions(settings.URL.Reveal())
	if err != nil {
		return nil, fmt.Errorf("NOTIFIER_REDIS_URL: %w", err)
	}
	if settings.Password.Reveal() != "" {
		o.Password = settings.Password.Reveal()
	}
	files, err := settings.TLS.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the TLS files for redis: %w", err)
	}
	if files != nil {
		if o.TLSConfig != nil {
			files.ServerName = o.TLSConfig.ServerName
		}
		o.TLSConfig = files
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = settings.Timeout, settings.Timeout, settings.Timeout
	o.ContextTimeoutEnabled = true
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = redisRetries, shortestRetry, longestRetry
	o.DialerRetries = 1 // the call is tried again anyway; several dials would use up its timeout, and hide why they failed
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewUniversalClient(o), nil
}

// redisOptions reads the URL. Its errors do not repeat the URL, which may hold a password.
func redisOptions(text string) (*redis.UniversalOptions, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	query := parsed.Query()
	switch {
	case query.Has("master_name"):
		o, err := redis.ParseFailoverURL(text)
		if err != nil {
			return nil, redacted(err, text)
		}
		return &redis.UniversalOptions{
			Addrs: o.SentinelAddrs, MasterName: o.MasterName, DB: o.DB, Username: o.Username, Password: o.Password,
			SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword, TLSConfig: o.TLSConfig,
		}, nil
	case query.Has("addr"):
		o, err := redis.ParseClusterURL(text)
		if err != nil {
			return nil, redacted(err, text)
		}
		return &redis.UniversalOptions{
			Addrs: o.Addrs, IsClusterMode: true, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
		}, nil
	}
	o, err := redis.ParseURL(text)
	if err != nil {
		return nil, redacted(err, text)
	}
	return &redis.UniversalOptions{
		Addrs: []string{o.Addr}, DB: o.DB, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
	}, nil
}

// redacted keeps a parser's words unless they quote a secret. An "@" in them is the end of a password that is not encoded.
func redacted(err error, secret string) error {
	text := err.Error()
	hide := strings.Contains(text, secret) || strings.Contains(text, "@")
	if parsed, parseErr := url.Parse(secret); parseErr == nil && parsed.User != nil {
		password, set := parsed.User.Password()
		hide = hide || set && strings.Contains(text, password)
	}
	if hide {
		return errors.New("not a URL that the client understands")
	}
	return fmt.Errorf("not a URL that the client understands: %s", text)
}

// redisLog takes what the client would print by itself. It is for debugging: the limiter reports outages.
type redisLog struct{ logger *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, values ...any) {
	l.logger.DebugContext(ctx, "redis client", "detail", fmt.Sprintf(format, values...))
}

// noEviction is the only maxmemory-policy that keeps every log.
const noEviction = "noeviction"

// evictionPolicy asks for the maxmemory-policy. It is "" where the user may not ask. INFO tells it; CONFIG GET would show passwords too.
func evictionPolicy(ctx context.Context, client redis.UniversalClient) string {
	return client.InfoMap(ctx, "memory").Item("Memory", "maxmemory_policy")
}

func newRunner(client redis.UniversalClient, settings config.Redis) *script.Runner {
	return script.NewRunner(script.Options{
		Client: client, Prefix: settings.Prefix, Timeout: settings.Timeout, Scripting: script.Scripting(settings.Scripting),
	})
}

func newStore(client redis.UniversalClient, settings config.Redis, s throttle.Settings) *throttle.Redis {
	return throttle.NewRedis(newRunner(client, settings), s)
}

// selfTests are those of the scripts that a worker needs besides the store's.
func selfTests() []throttle.SelfTest { return []throttle.SelfTest{pacing.SelfTest, summary.SelfTest} }

// explainRedis names the settings to look at.
func explainRedis(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "NOAUTH"), strings.Contains(text, "WRONGPASS"):
		text += " (check NOTIFIER_REDIS_PASSWORD and the user in NOTIFIER_REDIS_URL)"
	case strings.Contains(text, "NOPERM"), strings.Contains(text, "ACL failure"), strings.Contains(text, "The user executing the script can't"):
		text += " (the user lacks a command or the keys; configs/redis has one with what is needed)"
	case strings.Contains(text, "WRONGTYPE"):
		text += " (something else uses the keys of NOTIFIER_REDIS_PREFIX)"
	case strings.Contains(text, "MOVED"), strings.Contains(text, "CROSSSLOT"):
		text += " (the server is a cluster: name another node as ?addr=host:port in NOTIFIER_REDIS_URL)"
	default:
		if _, answered := errors.AsType[redis.Error](err); !answered && !errors.Is(err, script.ErrRefused) {
			text += " (check NOTIFIER_REDIS_URL)"
		}
	}
	return text
}
