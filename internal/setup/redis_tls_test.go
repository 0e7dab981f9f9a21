package setup

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

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
			client := testkit.Must(Redis(settings, slog.New(slog.DiscardHandler)))(t)
			defer func() { _ = client.Close() }()
			shared := Store(client, settings, store.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour})
			err := shared.SelfTest(t.Context(), SelfTests()...)
			testkit.Equal(t, err == nil, test.works, "whether the self-test works (%v)", err)
		})
	}
}
