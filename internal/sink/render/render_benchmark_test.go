package render

import (
	"testing"

	"github.com/seed-4578ace9/notifier/configs"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func BenchmarkRender(b *testing.B) {
	parsed := testkit.Must(parseTemplate("t", configs.SlackMessage))(b)
	v := UsualView()
	for name, t := range map[string]*Template{"go": nil, "template": parsed} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				testkit.Must(t.render(v))(b)
			}
		})
	}
}
