package oplog

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestCondition(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	c := NewCondition(log.Logger(), "cannot write", "writing again")
	c.Note(nil)
	log.WantCount(t, 0, "")
	first, second := errors.New("first"), errors.New("second")
	c.Note(first, "bucket", "a")
	c.Note(second, "bucket", "b")
	testkit.Equal(t, c.Err(), second, "the newest failure")
	c.Note(nil, "bucket", "c")
	c.Note(nil)
	testkit.Equal(t, c.Err(), nil, "no failure")
	log.WantCount(t, 2, "")
	log.WantCount(t, 1, "bucket=a error=first")
	log.WantCount(t, 1, "bucket=c")
}

func TestRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var written []string
		r := NewRepeated(func(key string, count int, newest []any) {
			mu.Lock()
			defer mu.Unlock()
			written = append(written, key+" "+strconv.Itoa(count)+" "+fmt.Sprint(newest...))
		})
		want := func(what string, lines ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			testkit.EqualSlices(t, written, lines, "lines %s", what)
			written = nil
		}
		r.Add("a", 2, "one")
		r.Add("a", 3, "two")
		r.Add("a", 4, "three")
		r.Add("b", 1, "four")
		want("at once", "a 2 one", "b 1 four")
		time.Sleep(Every + 1)
		synctest.Wait()
		want("after an interval", "a 7 three")
		time.Sleep(2 * Every)
		synctest.Wait()
		r.Add("a", 1, "five")
		r.Add("a", 1, "six")
		want("after a pause", "a 1 five")
		r.Stop()
		r.Add("a", 1, "seven")
		want("at and after the end", "a 1 six", "a 1 seven")
		time.Sleep(2 * Every)
		synctest.Wait()
		want("later")
	})
}
