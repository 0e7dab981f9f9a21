package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestSecretIsMasked(t *testing.T) {
	t.Parallel()
	secret := config.NewSecret("canary")
	testkit.Equal(t, secret.Reveal(), "canary", "Reveal")
	var shown []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%t", "%10s"} {
		shown = append(shown,
			fmt.Sprintf(verb, secret),
			fmt.Sprintf(verb, &secret),
			fmt.Sprintf(verb, []config.Secret{secret}),
		)
		// fmt calls no method of an unexported field.
		testkit.Lacks(t, verb+" of an unexported field", fmt.Sprintf(verb, struct{ secret config.Secret }{secret}), "canary", "63616e617279")
	}
	encoded := testkit.Must(json.Marshal(map[string]any{"secret": secret}))(t)
	shown = append(shown, secret.String(), string(encoded), secret.LogValue().String())
	for _, text := range shown {
		testkit.Contains(t, "a secret", text, "(hidden)")
		testkit.Lacks(t, "a secret", text, "canary")
	}
	if empty := config.NewSecret(""); empty.IsSet() || empty.String() != "" || !secret.IsSet() {
		t.Errorf("an empty secret: got %q, set: %t, want neither", empty.String(), empty.IsSet())
	}
}

// No secret shows when a Config is printed, logged or encoded.
func TestConfigShowsNoSecret(t *testing.T) {
	variables := base(env{"NATS_USER": "u", "SLACK_CHANNEL": "#c"})
	for name, value := range secretValues {
		if name != "NATS_TOKEN" && name != "SLACK_WEBHOOK_URL" { // not together with others
			variables[name] = value
		}
	}
	first, warnings := load(t, variables, config.Options{})
	second, more := load(t, base(env{
		"NATS_TOKEN":        secretValues["NATS_TOKEN"],
		"SLACK_WEBHOOK_URL": secretValues["SLACK_WEBHOOK_URL"],
		"SLACK_CHANNEL":     "#c",
	}), config.Options{})

	var out bytes.Buffer
	fmt.Fprintln(&out, warnings, more)
	for _, c := range []config.Config{first, second} {
		fmt.Fprintf(&out, "%v\n%+v\n%#v\n%v\n", c, c, c, &c)
		fmt.Fprintf(&out, "%+v\n", struct{ c config.Config }{c})
		slog.New(slog.NewJSONHandler(&out, nil)).Info("settings", "config", c, "url", c.NATS.URL)
		slog.New(slog.NewTextHandler(&out, nil)).Info("settings", "config", c, "url", c.Redis.URL)
		testkit.NoError(t, json.NewEncoder(&out).Encode(c))
	}
	testkit.Lacks(t, "log", out.String(), "canary")
	testkit.Contains(t, "output", out.String(), "(hidden)")
}

func TestFaultsShowNoSecret(t *testing.T) {
	for name := range secretValues {
		for kind, value := range map[string]string{
			"valid":      secretValues[name],
			"line feed":  secretValues[name] + "\n",
			"control":    "\x01canary:%zz@",
			"bad port":   "nats://u:canary@h:canary",
			"bad scheme": "canary://u:canary@h/canary",
			"bad escape": "redis://:canary%zz@h/canary?x=%zz",
			"database":   "redis://:canary@h/canary",
			"addresses":  "redis://:canary@h?addr=canary&master_name=",
			"unverified": "rediss://u:canary@h?skip_verify=canary",
			"mixed":      "nats://canary@h,ws://canary@h",
		} {
			file := write(t, value)
			for where, variables := range map[string]env{
				"alone":         {name: value},
				"in a file":     {name + "_FILE": file},
				"both":          {name: value, name + "_FILE": file},
				"misspelt":      {name + "X": value},
				"with all else": {name: value, "SLACK_TOKEN": "xoxb-canary", "SLACK_WEBHOOK_URL": "https://h/canary", "NATS_TOKEN": "canary", "NATS_PASSWORD": "canary"},
			} {
				t.Run(strings.Join([]string{name, kind, where}, "/"), func(t *testing.T) {
					variables["LOG_LEVEL"] = "loud" // is always a fault
					testkit.SetSettings(t, variables)
					_, _, err := config.Load(config.Options{})
					testkit.Require(t, err != nil, "got no fault")
					testkit.Lacks(t, "error", fmt.Sprintf("%v %+v", err, err), "canary")
				})
			}
		}
	}
}
