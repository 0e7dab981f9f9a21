package setup

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRedisOptions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		addresses                []string
		user, password           string
		database                 int
		tls, cluster             bool
		master                   string
		sentinelUser, sentinelPW string
	}{
		"redis://127.0.0.1:6379/0":                  {addresses: []string{"127.0.0.1:6379"}},
		"redis://example.com":                       {addresses: []string{"example.com:6379"}},
		"redis://user:p%40ss%2F@example.com:7000/3": {addresses: []string{"example.com:7000"}, user: "user", password: "p@ss/", database: 3},
		"rediss://:pass@example.com:7000/3":         {addresses: []string{"example.com:7000"}, password: "pass", database: 3, tls: true},
		"redis://[::1]:6379/0":                      {addresses: []string{"[::1]:6379"}},
		"rediss://user:pass@a:1?addr=b:2&addr=c:3":  {addresses: []string{"a:1", "b:2", "c:3"}, user: "user", password: "pass", tls: true, cluster: true},
		// The user in front of the host of a Sentinel URL is the user of the Sentinels.
		"redis://su:sp@a:1/2?master_name=m&addr=b:2&username=user&password=pass": {
			addresses: []string{"a:1", "b:2"}, user: "user", password: "pass", database: 2, master: "m", sentinelUser: "su", sentinelPW: "sp"},
		"rediss://a:1?master_name=m": {addresses: []string{"a:1"}, master: "m", tls: true},
	} {
		o, err := redisOptions(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		testkit.EqualSlices(t, slices.Sorted(slices.Values(o.Addrs)), want.addresses, "%s: addresses", text)
		if o.Username != want.user || o.Password != want.password || o.DB != want.database || (o.TLSConfig != nil) != want.tls ||
			o.IsClusterMode != want.cluster || o.MasterName != want.master || o.SentinelUsername != want.sentinelUser || o.SentinelPassword != want.sentinelPW {
			t.Errorf("%s: %+v, want %+v", text, o, want)
		}
	}
}

func TestRedisErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"canary", "canary://host", "redis://user:canary@host:port/0", "redis://user:canary@host:6379/x", "redis://user:canary@host:6379/0/1",
		"redis://user:canary@host:6379/canary", "redis://user:canary@host:6379/0?unknown=1", "redis://user:canary@host:6379/0?canary=1",
		"redis://user:canary@host:6379/0?dial_timeout=canary", "redis://user:12?canary@host:6379/0", "redis://user:12?canary@host:6379/0&addr=b:1",
		"redis://user:12?canary@host:6379/0&master_name=m", "redis://user:12/canary@host:6379/0", "redis://user:ca\x7fnary@host:6379/0",
		"redis://user:canary@host:6379/x?addr=b:1", "redis://user:canary@host:6379/x?master_name=m", "redis://user:canary@host?addr=b:1&canary=1",
		"redis://user:canary@host?master_name=m&canary=1", "redis://user:%zzcanary@host:6379/0", "canary://user:canary@host?addr=b:1",
	} {
		o, err := redisOptions(text)
		if err == nil {
			if o.Password != "canary" && len(o.Addrs) > 0 && strings.Contains(strings.Join(o.Addrs, " "), "canary") {
				t.Errorf("%s: got the addresses %q, want no part of the password", text, o.Addrs)
			}
			continue
		}
		if secret := strings.Contains(text, "user:"); secret && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: got %v, want no password", text, err)
		}
		_, err = Redis(config.Redis{URL: config.NewSecret(text)})
		testkit.Check(t, err != nil && strings.HasPrefix(err.Error(), "NOTIFIER_REDIS_URL: "), "%s: %v, want the name of the setting", text, err)
	}
}

// NOTIFIER_REDIS_PASSWORD wins over the password of the URL.
func TestRedisPassword(t *testing.T) {
	server := servertest.StartRedis(t, "--requirepass", "right")
	url := "redis://:canary@" + server.Addr + "/0"
	for password, works := range map[string]bool{"right": true, "": false, "canary2": false} {
		settings := config.Redis{URL: config.NewSecret(url), Timeout: testkit.Patience}
		if password != "" {
			settings.Password = config.NewSecret(password)
		}
		client := testkit.Must(Redis(settings))(t)
		err := client.Ping(t.Context()).Err()
		testkit.Equal(t, err == nil, works, "whether the password %q works (%v)", password, err)
		if err != nil && (strings.Contains(ExplainRedis(err, settings), "canary") || !strings.Contains(ExplainRedis(err, settings), "NOTIFIER_REDIS_PASSWORD")) {
			t.Errorf("explained as %q, want the setting and no password", ExplainRedis(err, settings))
		}
		testkit.NoError(t, client.Close())
	}
}

// The slot of the keys moves while the client is idle, and its old owner dies, so no answer names the new owner. The client finds the new
// owner within [slotsAge]: with the library's default it would need a minute.
func TestDeadClusterNode(t *testing.T) {
	cluster := servertest.StartCluster(t, 3, "--cluster-require-full-coverage", "no")
	addresses := cluster.Addrs()
	settings := config.Redis{
		URL: config.NewSecret("redis://" + addresses[0] + "?addr=" + addresses[1] + "&addr=" + addresses[2]), Prefix: "p", Timeout: time.Second,
	}
	servers := goleak.IgnoreCurrent()
	client := testkit.Must(Redis(settings))(t)
	inCluster, isCluster := client.(*redis.ClusterClient)
	testkit.Equal(t, isCluster, true, "a client of a cluster")
	testkit.Equal(t, inCluster.Options().ClusterStateReloadInterval, slotsAge, "the oldest map of the client")
	defer func() {
		testkit.NoError(t, client.Close())
		testkit.Eventually(t, "the goroutine ends that dials the dead node", func() bool { return goleak.Find(servers) == nil })
	}()
	testkit.Must(RedisInfo(t.Context(), client, settings))(t)

	slot := cluster.Slot("{p}:calls")
	home := cluster.Owner(slot)
	other := cluster.Nodes[(slices.Index(cluster.Nodes, home)+1)%len(cluster.Nodes)]
	cluster.MoveSlot(slot, other).End()
	home.Kill()
	testkit.Eventually(t, "the new owner of the slot answers", func() bool {
		_, err := RedisInfo(t.Context(), client, settings)
		return err == nil && client.Set(t.Context(), "{p}:calls", 1, time.Minute).Err() == nil
	})
}

// Where nobody listens, the error says so, and not that time has run out.
func TestWrongRedisPort(t *testing.T) {
	t.Parallel()
	nobody := "127.0.0.1:" + strconv.Itoa(servertest.ReservePort(t))
	for _, url := range []string{"redis://" + nobody, "redis://" + nobody + "?addr=" + nobody} {
		testkit.Await(t, "an error of "+url, func() error {
			settings := config.Redis{URL: config.NewSecret(url), Prefix: "notifier", Timeout: 500 * time.Millisecond}
			client := testkit.Must(Redis(settings))(t)
			defer func() { _ = client.Close() }()
			_, err := RedisInfo(t.Context(), client, settings)
			if !strings.Contains(fmt.Sprint(err), "connect: connection refused (check NOTIFIER_REDIS_URL)") {
				return fmt.Errorf("want connection refused: %w", err)
			}
			return nil
		})
	}
}

// TestWrongRedisURL wants the explanation of a server's answer to name what is wrong in the URL, and that the server has no memory left.
func TestWrongRedisURL(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, "--maxmemory", "1mb", "--maxmemory-policy", "noeviction")
	server.CLI("EVAL", "for i = 1, 2000 do redis.call('SET', i, string.rep('x', 1000)) end", "0")
	for url, want := range map[string]string{
		"/99":                  "(check the number of the database in NOTIFIER_REDIS_URL)",
		"?addr=" + server.Addr: "(the server is not a cluster: remove addr= from NOTIFIER_REDIS_URL)",
		"?master_name=main":    "(the server is not a Sentinel: remove master_name= from NOTIFIER_REDIS_URL)",
		"/0":                   "(Redis has reached its maxmemory: ",
	} {
		settings := config.Redis{URL: config.NewSecret("redis://" + server.Addr + url), Timeout: testkit.Patience}
		client := testkit.Must(Redis(settings))(t)
		err := client.Set(t.Context(), "key", "value", 0).Err()
		testkit.Fails(t, url, err, nil)
		testkit.Contains(t, url, ExplainRedis(err, settings), want)
		testkit.NoError(t, client.Close())
	}
}

// EvictionPolicy needs the right to INFO alone.
func TestEvictionPolicy(t *testing.T) {
	server := servertest.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	for right, want := range map[string]string{"+info": "allkeys-lru", "+config|get": ""} {
		server.CLI("ACL", "SETUSER", "limited", "reset", "on", ">password", "+ping", "+hello", "+auth", right)
		settings := config.Redis{URL: config.NewSecret("redis://limited:password@" + server.Addr + "/0"), Timeout: testkit.Patience}
		client := testkit.Must(Redis(settings))(t)
		info, _ := RedisInfo(t.Context(), client, settings)
		testkit.Equal(t, EvictionPolicy(info), want, "with the right %s the policy", right)
		testkit.NoError(t, client.Close())
	}
}

// A client's own messages are logged at the level debug, also after another client was made.
func TestRedisLog(t *testing.T) {
	text := testkit.NewLog(t)
	LogRedis(text.Logger())
	defer LogRedis(slog.New(slog.DiscardHandler))
	settings := config.Redis{URL: config.NewSecret("redis://127.0.0.1:1/0"), Timeout: testkit.Patience}
	client, other := testkit.Must(Redis(settings))(t), testkit.Must(Redis(settings))(t)
	testkit.Fails(t, "a call without a server", client.Ping(t.Context()).Err(), nil)
	text.WantCount(t, 1+redisRetries, `level=DEBUG msg="redis client" detail=`)
	testkit.NoError(t, errors.Join(client.Close(), other.Close()))
}

// TestRedisOverTLS runs the scripts on a server that requires a client certificate.
func TestRedisOverTLS(t *testing.T) {
	t.Parallel()
	authority := func(name string) config.TLS {
		certificate, key := testkit.Certificate(t, name)
		return config.TLS{CAFile: certificate, CertFile: certificate, KeyFile: key}
	}
	ours, others := authority("ours"), authority("others")
	port := servertest.ReservePort(t)
	servertest.StartRedis(t, "--tls-port", strconv.Itoa(port), "--tls-cert-file", ours.CertFile, "--tls-key-file", ours.KeyFile,
		"--tls-ca-cert-file", ours.CAFile, "--tls-auth-clients", "yes")
	tree := testkit.Must(limits.NewTree(limits.Plan{Global: limits.Limits{{Count: 1, Window: time.Hour}}}))(t)
	for name, test := range map[string]struct {
		tls   config.TLS
		works bool
	}{
		"a client certificate":          {ours, true},
		"no client certificate":         {config.TLS{CAFile: ours.CAFile}, false},
		"another authority's client":    {config.TLS{CAFile: ours.CAFile, CertFile: others.CertFile, KeyFile: others.KeyFile}, false},
		"a server of another authority": {config.TLS{CAFile: others.CAFile, CertFile: ours.CertFile, KeyFile: ours.KeyFile}, false},
		"no authority":                  {config.TLS{CertFile: ours.CertFile, KeyFile: ours.KeyFile}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := config.Redis{
				URL: config.NewSecret(fmt.Sprintf("rediss://127.0.0.1:%d/0", port)), TLS: test.tls, Prefix: "tls", Timeout: testkit.Patience,
			}
			client := testkit.Must(Redis(settings))(t)
			defer func() { _ = client.Close() }()
			shared := Store(client, settings, store.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour})
			err := shared.SelfTest(t.Context(), SelfTests()...)
			testkit.Equal(t, err == nil, test.works, "whether the self-test works (%v)", err)
		})
	}
}
