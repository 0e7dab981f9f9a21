package script

import "fmt"

// ErrReply is the class of refusals whose reply has not the expected form: another script has answered.
var ErrReply = fmt.Errorf("%w: the script's reply is not of the expected form", ErrRefused)

// Numbers reads a reply of so many numbers.
func Numbers(reply []any, count int) ([]int64, error) {
	if len(reply) != count {
		return nil, fmt.Errorf("%w: %d values, expected %d", ErrReply, len(reply), count)
	}
	numbers := make([]int64, count)
	for i, value := range reply {
		number, isNumber := value.(int64)
		if !isNumber {
			return nil, fmt.Errorf("%w: value %d is %T", ErrReply, i, value)
		}
		numbers[i] = number
	}
	return numbers, nil
}
