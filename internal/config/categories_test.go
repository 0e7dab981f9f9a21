package config_test

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The test has each setting that may name a category.
func TestCategories(t *testing.T) {
	for name, test := range map[string]struct {
		settings env
		want     []string
	}{
		"none": {},
		"one of each": {
			env{
				"LIMITS": "limited=1/1m,a.b=none,a.*=1/1m,limited@key=1/1m", "SHADOW_LIMITS": "global=50/30m,category=2/1h,shadowed@key=1/1m,*.b=1/1h",
				"GUARANTEES": "guaranteed=20", "DELAY": "delayed=1h,a.>=1h,>=1m,*=1m", "SLACK_MENTIONS": "mentioned=@here,*=@here",
				"SLACK_ROUTES": "routed=#a,routed.*=#b",
			},
			[]string{"limited", "a.b", "shadowed", "guaranteed", "routed", "delayed", "mentioned"},
		},
		"the same everywhere": {
			env{"LIMITS": "a=1/1m", "SHADOW_LIMITS": "a=2/1m", "GUARANTEES": "a=20", "DELAY": "a=1h", "SLACK_MENTIONS": "a=@here", "SLACK_ROUTES": "a=#a"},
			[]string{"a"},
		},
		"categories called like rules": {env{"GUARANTEES": "global=1,category=1"}, []string{"global", "category"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := load(t, base(test.settings), config.Options{})
			testkit.EqualSlices(t, c.Categories(), test.want, "categories")
		})
	}
}
