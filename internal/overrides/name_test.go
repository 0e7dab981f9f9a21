package overrides

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name Name
		text string
		key  string
	}{
		{enforced("global"), "global", "global"},
		{enforced("category"), "category", "category"},
		{enforced("payments"), "payments", "payments"},
		{enforced("payments.*"), "payments.*", "payments.="},
		{enforced("*.refunds.*"), "*.refunds.*", "=.refunds.="},
		{enforced("*"), "*", "="},
		{enforced("a-b_c.0"), "a-b_c.0", "a-b_c.0"},
		{enforced("shadow"), "shadow", "shadow"},
		{enforced("payments@key"), "payments@key", "payments=key"},
		{enforced("payments.*@key"), "payments.*@key", "payments.==key"},
		{enforced("*@key"), "*@key", "==key"},
		{shadow("payments@key"), "shadow payments@key", "shadow/payments=key"},
		{shadow("shadow.*"), "shadow shadow.*", "shadow/shadow.="},
		{shadow("global"), "shadow global", "shadow/global"},
	} {
		testkit.Equal(t, test.name.String(), test.text, "text of %+v", test.name)
		testkit.Equal(t, testkit.Must(test.name.Key())(t), test.key, "key of %v", test.name)
		testkit.Equal(t, testkit.Must(ParseKey(test.key))(t), test.name, "name of key %q", test.key)
	}
}

func TestBadNames(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		"", ".", "a..b", "a.", ".a", "Payments", "a=b", "=", "a.=", "a*", "a b", "a/b", "shadow/a", "ä", ">", "$x", "@key", "a@", "a@db", "a@key.b", "a=key",
	} {
		for _, name := range []Name{enforced(pattern), shadow(pattern)} {
			_, err := name.Key()
			testkit.Fails(t, fmt.Sprintf("key of %+v", name), err, ErrName, `"`+pattern+`"`)
		}
	}
}

func TestForeignKeys(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		"", "Payments", "a..b", "a*", "*", "a=", "other/a", "shadow/", "shadow/shadow/a", "Shadow/a", "/a", "_kv.x/y", "=key", "a@key", "a=key=key", "a=key.b", "a=db",
	} {
		_, err := ParseKey(key)
		testkit.Fails(t, "name of key "+key, err, ErrName, `"`+key+`"`)
	}
}

func TestNamesAreOrdered(t *testing.T) {
	t.Parallel()
	want := []Name{enforced("*"), enforced("a"), enforced("a.b"), enforced("b"), shadow("a"), shadow("b")}
	got := []Name{want[5], want[3], want[0], want[4], want[2], want[1]}
	slices.SortFunc(got, Name.Compare)
	testkit.EqualSlices(t, got, want, "order")
	testkit.Equal(t, enforced("a").Compare(enforced("a")), 0, "a name compared with itself")
}

// ParseKey accepts only keys that Name.Key returns and that NATS stores.
func FuzzParseKey(f *testing.F) {
	for _, key := range []string{"global", "payments.=", "shadow/a.b", "shadow/", "a..b", "A", "=.=", "*"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		name, err := ParseKey(key)
		if err != nil {
			testkit.Fails(t, "key "+key, err, ErrName)
			return
		}
		testkit.Equal(t, testkit.Must(name.Key())(t), key, "key of %+v", name)
		testkit.Check(t, !strings.ContainsAny(key, "*> \t\r\n") && !strings.HasPrefix(key, ".") && !strings.Contains(key, ".."),
			"key %q cannot be stored", key)
	})
}
