package screen

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestFold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text        string
		width, most int
		want        []string
	}{
		{"", 10, 3, []string{""}},
		{"0123456789", 10, 1, []string{"0123456789"}},
		{"0123456789a", 10, 1, []string{"012345678…"}},
		{"0123456789a", 10, 2, []string{"0123456789", "a"}},
		{"äöüß", 2, 3, []string{"äö", "üß"}},
		{"\x1b[31mred\x1b[0m", 3, 1, []string{"\x1b[31mred\x1b[0m"}},
		{"\x1b[31mreddest\x1b[0m", 3, 2, []string{"\x1b[31mred\x1b[0m", "de…"}},
		{"\x1b[31mreddest", 3, 1, []string{"\x1b[31mre…\x1b[0m"}},
	} {
		testkit.EqualSlices(t, Fold(test.text, test.width, test.most), test.want, "%q in %d rows of %d", test.text, test.most, test.width)
	}
}
