package simulate

import (
	"fmt"
	"io"
	"slices"
	"strconv"
)

// always is how many columns of a comparison are shown whatever they hold: category, seen, sent a, sent b.
const always = 4

// WriteComparison prints two reports on the same events side by side, and how many more are sent by the second. Below the table it prints
// by which rules the events were dropped. Paths are left out as in WriteTable, and so is a column that holds nothing but zeros.
func WriteComparison(out io.Writer, a, b Report, top int) error {
	rows := [][]string{{
		"category", "seen", "sent a", "sent b", "b-a", "dropped a", "dropped b", "dupl. a", "dupl. b", "silence a", "silence b",
	}}
	others := b.lines(top)
	for i, one := range a.lines(top) { // both have the same paths in the same order
		other := others[i]
		rows = append(rows, []string{
			one.Category, strconv.Itoa(one.Seen), strconv.Itoa(one.Sent), strconv.Itoa(other.Sent), difference(one.Sent, other.Sent),
			strconv.Itoa(one.Drops()), strconv.Itoa(other.Drops()), strconv.Itoa(one.Duplicate), strconv.Itoa(other.Duplicate),
			one.silence(), other.silence(),
		})
	}
	for column := len(rows[0]) - 1; column >= always; column-- {
		if !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[column] != "0" && row[column] != "0s" && row[column] != none }) {
			for i, row := range rows {
				rows[i] = slices.Delete(row, column, column+1)
			}
		}
	}
	if err := writeColumns(out, rows, 0); err != nil {
		return err
	}
	if a.Total.Drops()+b.Total.Drops() == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "\na drops by: %s\nb drops by: %s\n", byLevel(a.Total.Dropped), byLevel(b.Total.Dropped))
	return err
}

func difference(a, b int) string {
	if a == b {
		return "0"
	}
	return fmt.Sprintf("%+d", b-a)
}
