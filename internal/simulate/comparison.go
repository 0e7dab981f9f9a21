package simulate

import (
	"fmt"
	"io"
	"slices"
	"strconv"
)

// always is the number of columns that every comparison has: category, seen, sent a, sent b.
const always = 4

// WriteComparison prints two reports about one history side by side, with the difference of the sent events. Below the table it prints the
// drops by rule. It omits columns of zeros. The choice of paths follows WriteTable.
func WriteComparison(out io.Writer, a, b Report, top int) error {
	rows := [][]string{{
		"category", "seen", "sent a", "sent b", "b-a", "dropped a", "dropped b", "dupl. a", "dupl. b", "folded a", "folded b", "silence a", "silence b",
	}}
	others := b.lines(top)
	for i, one := range a.lines(top) { // both reports order their paths identically
		other := others[i]
		rows = append(rows, []string{
			one.Category, strconv.Itoa(one.Seen), strconv.Itoa(one.Sent), strconv.Itoa(other.Sent), difference(one.Sent, other.Sent),
			strconv.Itoa(one.Drops()), strconv.Itoa(other.Drops()), strconv.Itoa(one.Duplicate), strconv.Itoa(other.Duplicate),
			strconv.Itoa(one.Folded), strconv.Itoa(other.Folded), one.silence(), other.silence(),
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
