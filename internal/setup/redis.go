package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// The client retries a call after a lost reply: the scripts count an event once. All attempts share one timeout.
const (
	redisRetries  = 2
	shortestRetry = 8 * time.Millisecond
	longestRetry  = 128 * time.Millisecond
)

// slotsAge is how old the client's map of a cluster may become. A call to a primary that has died does not renew the map, and the library's
// default is a minute.
const slotsAge = 2 * time.Second

// Redis returns a client for the server, Sentinel or Cluster of the URL. The client connects at its first call.
func Redis(settings config.Redis) (redis.UniversalClient, error) {
	o, err := redisOptions(settings.URL.Reveal())
	if err != nil {
		return nil, err
	}
	if settings.Password.IsSet() {
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
	if o.TLSConfig != nil && (o.IsClusterMode || o.MasterName != "") {
		o.Dialer = dialTLS(o.TLSConfig, settings.Timeout, o.Addrs)
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = settings.Timeout, settings.Timeout, settings.Timeout
	o.ContextTimeoutEnabled = true
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = redisRetries, shortestRetry, longestRetry
	o.DialerRetries = 1 // the call is retried anyway; several dials would use up its timeout and hide why they failed
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if !o.IsClusterMode {
		return redis.NewUniversalClient(o), nil
	}
	cluster := o.Cluster()
	cluster.ClusterStateReloadInterval = slotsAge
	return redis.NewClusterClient(cluster), nil
}

// CheckRedisURL returns an error if the client does not understand the URL. The package config knows its form, but not the client's options.
func CheckRedisURL(settings config.Redis) error {
	_, err := redisOptions(settings.URL.Reveal())
	return err
}

// redisOptions parses the URL. Its errors do not contain the URL, which may hold a password.
func redisOptions(text string) (*redis.UniversalOptions, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("NOTIFIER_REDIS_URL: not a URL")
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

// redacted drops the text of a parser's error if it may quote a secret. An "@" in the text ends a password that is not percent-encoded.
func redacted(err error, secret string) error {
	text := err.Error()
	hide := strings.Contains(text, secret) || strings.Contains(text, "@")
	if parsed, parseErr := url.Parse(secret); parseErr == nil && parsed.User != nil {
		password, set := parsed.User.Password()
		hide = hide || set && strings.Contains(text, password)
	}
	if hide {
		return errors.New("NOTIFIER_REDIS_URL: not a URL that the client understands")
	}
	return fmt.Errorf("NOTIFIER_REDIS_URL: not a URL that the client understands: %s", text)
}

// LogRedis has the messages of all clients of this process logged at the level debug. The limiter reports outages.
func LogRedis(logger *slog.Logger) { redis.SetLogger(redisLog{logger}) }

type redisLog struct{ logger *slog.Logger }

// Printf logs a message of the client.
func (l redisLog) Printf(ctx context.Context, format string, values ...any) {
	l.logger.DebugContext(ctx, "redis client", "detail", fmt.Sprintf(format, values...))
}

// NoEviction is the only maxmemory-policy that keeps every log.
const NoEviction = "noeviction"

// EvictionPolicy returns the maxmemory-policy in the sections of INFO. It is "" without them. CONFIG GET would also return passwords.
func EvictionPolicy(info map[string]map[string]string) string {
	return info["Memory"]["maxmemory_policy"]
}

// Runner returns what runs the scripts in Redis.
func Runner(client redis.UniversalClient, settings config.Redis) *script.Runner {
	return script.NewRunner(script.Options{
		Client: client, Prefix: settings.Prefix, Timeout: settings.Timeout, Scripting: script.Scripting(settings.Scripting),
	})
}

// Store returns what decides in Redis.
func Store(client redis.UniversalClient, settings config.Redis, s store.Settings) *store.Redis {
	return store.NewRedis(Runner(client, settings), s)
}

// SelfTests returns the self-tests of the scripts that a worker runs beside the scripts of the store.
func SelfTests() []store.SelfTest { return []store.SelfTest{pacing.SelfTest, summary.SelfTest} }

// redisHints are the settings and permissions to check, by a part of the text of an error.
var redisHints = []struct{ sign, hint string }{
	{"NOAUTH", checkRedisUser}, {"WRONGPASS", checkRedisUser},
	{"unauthenticated", checkRedisUser}, // the answer to a long call, instead of NOAUTH
	{"NOPERM", checkRedisRights}, {"ACL failure", checkRedisRights}, {"The user executing the script can't", checkRedisRights},
	{"WRONGTYPE", "something else uses the keys of NOTIFIER_REDIS_PREFIX"},
	{"MOVED", addRedisNode}, {"CROSSSLOT", addRedisNode},
	{"cluster support disabled", "the server is not a cluster: remove addr= from NOTIFIER_REDIS_URL"},
	{"not allowed in cluster mode", "a cluster has only database 0: correct the number in NOTIFIER_REDIS_URL"},
	{"DB index is out of range", "check the number of the database in NOTIFIER_REDIS_URL"},
	{"get-master-addr-by-name", "the server is not a Sentinel: remove master_name= from NOTIFIER_REDIS_URL"},
	{"unreachable: redis: nil", "the Sentinels do not know the master_name of NOTIFIER_REDIS_URL"},
	{"READONLY", "the server is a replica: NOTIFIER_REDIS_URL must lead to its primary"},
	{"OOM command", "Redis has reached its maxmemory: raise it; running workers may go on, and no worker that starts becomes ready"},
	{unknownAuthority, "check NOTIFIER_REDIS_TLS_CA_FILE"}, {outdated, renew}, {refusedClient, "check NOTIFIER_REDIS_TLS_CERT_FILE"},
}

const (
	checkRedisUser   = "check NOTIFIER_REDIS_PASSWORD and the user in NOTIFIER_REDIS_URL"
	checkRedisRights = "the user lacks a command or the keys; configs/redis has one with what is needed"
	addRedisNode     = "the server is a cluster: name another node as ?addr=host:port in NOTIFIER_REDIS_URL"
)

// ExplainRedis returns the text of an error, with the setting or permission to check. It names the servers if the error does not.
func ExplainRedis(err error, settings config.Redis) string {
	text := err.Error()
	for _, h := range redisHints {
		if strings.Contains(text, h.sign) {
			return text + " (" + h.hint + ")"
		}
	}
	if _, answered := errors.AsType[redis.Error](err); !answered && !errors.Is(err, script.ErrRefused) {
		text += " (check NOTIFIER_REDIS_URL" + silence(err, settings) + ")"
	}
	return text
}

// silence describes the connection if the server may have been silent because only one side uses TLS. It returns "" for other errors.
func silence(err error, settings config.Redis) string {
	if !errors.Is(err, io.EOF) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	o, err := redisOptions(settings.URL.Reveal())
	if err != nil {
		return ""
	}
	question := "TLS is off: does the server require TLS?"
	switch {
	case o.TLSConfig != nil:
		question = "TLS is on: does the server speak TLS?"
	case settings.TLS != config.TLS{}:
		question = "a file of NOTIFIER_REDIS_TLS_… turns TLS on: does the server speak TLS?"
	}
	return ": no answer from " + strings.Join(o.Addrs, ", ") + "; " + question
}

// RedisOwner returns the server that holds the deployment's keys.
func RedisOwner(ctx context.Context, client redis.UniversalClient, settings config.Redis) (redis.Cmdable, error) {
	return script.Owner(ctx, client, "{"+settings.Prefix+"}:calls")
}

// RedisInfo returns the sections of INFO of the server that holds the deployment's keys.
func RedisInfo(ctx context.Context, client redis.UniversalClient, settings config.Redis) (map[string]map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, settings.Timeout)
	defer cancel()
	node, err := RedisOwner(ctx, client, settings)
	if err != nil {
		return nil, errors.New(ExplainRedis(err, settings))
	}
	info, err := node.InfoMap(ctx).Result()
	if err != nil {
		return nil, errors.New(ExplainRedis(err, settings))
	}
	return info, nil
}
