package oplog

import (
	"errors"
	"fmt"
	"strconv"
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

func TestLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Limited
		testkit.Equal(t, l.Allow(Every), true, "the first line")
		time.Sleep(Every - time.Second)
		testkit.Equal(t, l.Allow(Every), false, "within the interval")
		time.Sleep(time.Second)
		testkit.Equal(t, l.Allow(Every), true, "after the interval")
	})
}

func TestRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		r := NewRepeated(func(key string, count int, newest []any) {
			lines = append(lines, key+" "+strconv.Itoa(count)+" "+fmt.Sprint(newest...))
		})
		r.Add("a", 2, "one")
		r.Add("a", 3, "two")
		r.Add("a", 4, "three")
		r.Add("b", 1, "four")
		testkit.EqualSlices(t, lines, []string{"a 2 one", "b 1 four"}, "at once")
		time.Sleep(Every + 1)
		synctest.Wait()
		testkit.EqualSlices(t, lines[2:], []string{"a 7 three"}, "after an interval")
		time.Sleep(2 * Every)
		synctest.Wait()
		r.Add("a", 1, "five")
		r.Add("a", 1, "six")
		testkit.EqualSlices(t, lines[3:], []string{"a 1 five"}, "after a pause")
		r.Stop()
		r.Add("a", 1, "seven")
		testkit.EqualSlices(t, lines[4:], []string{"a 1 six", "a 1 seven"}, "at and after the end")
		time.Sleep(2 * Every)
		synctest.Wait()
		testkit.Equal(t, len(lines), 6, "lines")
	})
}
