package script_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestCheckServer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		version   string
		scripting script.Scripting
		want      string // "" if it is new enough
	}{
		{"5.0.14", script.Eval, "Redis 5.0.14 at 127.0.0.1:"},
		{"6.2.0", script.Eval, ""},
		{"7.2.4\r\nredis_mode:sentinel", script.Eval, "is a Sentinel: add ?master_name=… to NOTIFIER_REDIS_URL"},
		{"7.2.4\r\nvalkey_version:8.0.1\r\nserver_mode:sentinel", script.Eval, "is a Sentinel: add ?master_name=… to NOTIFIER_REDIS_URL"},
		{"6.2.0", script.Functions, "is older than 7.0: NOTIFIER_REDIS_SCRIPTING=function needs functions"},
	} {
		err := newRunner(t, servertest.OldRedis(t, test.version), test.scripting).CheckServer(t.Context())
		if test.want == "" {
			testkit.NoError(t, err)
		} else if !errors.Is(err, script.ErrForbidden) || !errors.Is(err, script.ErrRefused) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s, %s: error %v, want %q", test.version, test.scripting, err, test.want)
		}
	}
	server := servertest.StartRedis(t)
	testkit.NoError(t, newRunner(t, server.Addr, script.Eval).CheckServer(t.Context()))
	server.CLI("ACL", "SETUSER", "default", "-info")
	testkit.NoError(t, newRunner(t, server.Addr, script.Eval).CheckServer(t.Context()))
	server.CLI("ACL", "SETUSER", "default", "+info")
	server.CLI("CONFIG", "SET", "requirepass", "right")
	for password, want := range map[string]string{"": "NOAUTH", "wrong": "WRONGPASS", "right": ""} {
		client := scripttest.NewClient(t, redis.Options{Addr: server.Addr, Password: password})
		err := script.NewRunner(script.Options{Client: client, Prefix: "test", Timeout: scripttest.Patience}).CheckServer(t.Context())
		if errors.Is(err, script.ErrForbidden) != (want != "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("with the password %q: error %v, want %s", password, err, want)
		}
	}
	server.Kill()
	testkit.Fails(t, "error", newRunner(t, server.Addr, script.Eval).CheckServer(t.Context()), script.ErrUnavailable)
}

// TestWrongAddress calls scripts with settings for another kind of server.
func TestWrongAddress(t *testing.T) {
	t.Parallel()
	single := servertest.StartRedis(t)
	cluster, _, home, _ := scripttest.StartPair(t, "{test}:calls")
	for name, test := range map[string]struct {
		client redis.UniversalClient
		want   string // "" if the address is right
	}{
		"a database that does not exist": {scripttest.NewClient(t, redis.Options{Addr: single.Addr, DB: 99}), "DB index is out of range"},
		"a cluster at a single server":   {redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{single.Addr}}), "cluster support disabled"},
		"a database of a cluster":        {scripttest.NewClient(t, redis.Options{Addr: home.Addr, DB: 1}), "not allowed in cluster mode"},
		"a cluster":                      {redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}), ""},
	} {
		t.Cleanup(func() { _ = test.client.Close() })
		_, err := mention(t.Context(), script.NewRunner(script.Options{Client: test.client, Prefix: "test", Timeout: scripttest.Patience}))
		if errors.Is(err, script.ErrForbidden) != (test.want != "") || test.want != "" && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %s", name, err, test.want)
		}
	}
}
