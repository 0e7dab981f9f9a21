package limits

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// A limit is pointless if a log above its level never allows more within the limit's window.
func TestPointless(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		global, category, rules string
		want                    []string
	}{
		{"100/30m", "10/30m", "", nil},
		{"100/30m", "100/30m", "", []string{"100/30m of category never denies anything: global above it allows no more than 100/30m"}},
		{"100/30m", "99/30m+200/1m", "", []string{"200/1m of category never denies anything: global above it allows no more than 100/30m"}},
		{"100/30m", "200/31m", "", []string{"200/31m of category never denies anything: global above it allows no more than 100/30m"}},
		{"100/30m", "199/31m", "search=token:200/30m,a=none", nil},
		{"10000000/1ms", "10000000/366d", "", nil},
		{"token:5/1h", "10/30m", "", nil},
		{"100/30m", "10/30m", "a=5/1h,a@key=5/1h,*@key=100/30m,b.c@key=10/30m,a.b=9/2h,a.b@key=4/1h", []string{
			"5/1h of a@key never denies anything: a above it allows no more than 5/1h",
			"100/30m of *@key never denies anything: global above it allows no more than 100/30m",
			"10/30m of b.c@key never denies anything: b above it allows no more than 10/30m",
		}},
		{"none", "10/30m", "payments=40/30m,payments.refunds=40/30m,search.slow=10/1m", []string{
			"40/30m of payments.refunds never denies anything: payments above it allows no more than 40/30m",
			"10/1m of search.slow never denies anything: search above it allows no more than 10/30m",
		}},
		{"100/30m", "10/30m", "payments=40/30m,payments.*=50/30m,*.slow=50/30m,*.fast=100/30m", []string{
			"50/30m of payments.* never denies anything: payments above it allows no more than 40/30m",
			"100/30m of *.fast never denies anything: global above it allows no more than 100/30m",
		}},
	} {
		var got []string
		for _, pointless := range newTree(t, test.global, test.category, test.rules).Pointless() {
			got = append(got, pointless.String())
		}
		testkit.EqualSlices(t, got, test.want, "of %s, %s and %q", test.global, test.category, test.rules)
	}
}
